//! Images in a long conversation: each is decoded, brought within bounds and encoded once, however often
//! it is sent.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use cantle_clients::chat::ChatClient;
use cantle_core::content::{Content, Media, Part};
use cantle_core::llm::{ChatRequest, ChatStream, LlmClient, ModelInfo};
use cantle_core::message::{Message, SharedMessage};
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::{Value, json};

use crate::support::{finish_tool, outcome};

const IMAGES: usize = 50;

/// A picture of 100 by 80 pixels, of a color of its own: too simple to be large.
fn picture(number: usize) -> Vec<u8> {
    let (width, height) = (100_u32, 80_u32);
    let row = width * 3;
    let mut bytes = b"BM".to_vec();
    let size = 54 + row * height;
    bytes.extend(size.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(54_u32.to_le_bytes());
    bytes.extend(40_u32.to_le_bytes());
    bytes.extend(width.to_le_bytes());
    bytes.extend(height.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(24_u16.to_le_bytes());
    bytes.extend([0; 24]);
    let pixel = [u8::try_from(number).unwrap(), 100, 200];
    bytes.extend(pixel.iter().cycle().take((row * height) as usize));
    bytes
}

/// Counts of one message over all requests.
#[derive(Default)]
struct Seen {
    sent: usize,
    /// How often it had no form yet when it was sent: then it is encoded.
    encoded: usize,
}

/// A client that inspects its requests.
#[derive(Clone)]
struct Looked {
    client: Arc<dyn LlmClient>,
    /// By where the message is. They live as long as the run.
    messages: Arc<Mutex<HashMap<usize, Seen>>>,
    /// Where images are, and where their base64 is.
    images: Arc<Mutex<HashSet<(usize, usize)>>>,
    held: Arc<Mutex<Vec<SharedMessage>>>,
}

impl fmt::Debug for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Looked")
    }
}

fn images(message: &Message) -> Vec<&Media> {
    match message {
        Message::User(message) => message.content.media().collect(),
        Message::Tool(message) => message.content.media().collect(),
        _ => Vec::new(),
    }
}

impl LlmClient for Looked {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        for message in &request.messages {
            let images = images(message);
            if images.is_empty() {
                continue;
            }
            let forms = message.forms();
            let place = std::ptr::from_ref(forms).addr();
            let mut messages = self.messages.lock().unwrap();
            let seen = messages.entry(place).or_default();
            seen.sent += 1;
            seen.encoded += usize::from(format!("{forms:?}") == "[]");
            for image in images {
                let base64 = image.base64();
                let both = (image.data().as_ptr().addr(), base64.as_ptr().addr());
                self.images.lock().unwrap().insert(both);
            }
            // So that no other one comes to where it is.
            self.held.lock().unwrap().push(message.clone());
        }
        self.client.stream(request)
    }
}

#[tokio::test]
async fn of_fifty_images_none_is_encoded_after_it_was_first_sent() {
    let mut script = Script::new();
    for number in 0..IMAGES {
        let call = ToolCall::new("look", json!({"n": number})).id(format!("c{number}"));
        script = script.turn(Turn::tool(call));
    }
    let finish = ToolCall::new("finish", json!({"reason": "seen"}));
    let server = ScriptedServer::start(script.turn(Turn::tool(finish)))
        .await
        .unwrap();
    let client = ChatClient::builder("model").base_url(server.url());
    let client = Looked {
        client: Arc::new(client.build().unwrap()),
        messages: Arc::default(),
        images: Arc::default(),
        held: Arc::default(),
    };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let look = DynTool::from_schema(
        ToolSpec::new("look", "Shows an image.", schema),
        |arguments, _| async move {
            let number = arguments["n"].as_u64().unwrap() as usize;
            let image = Media::image(picture(number)).unwrap();
            Ok(ToolOutput::new(Content::Parts(vec![Part::Media(image)])))
        },
    );
    let agent = cantle_agent::Agent::builder("test", client.clone())
        .tool(look)
        .finish(finish_tool())
        .max_turns(100)
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let session = agent.session(Default::default()).await.unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    session.close().await.unwrap();

    let messages = client.messages.lock().unwrap();
    let sent: usize = messages.values().map(|seen| seen.sent).sum();
    let encoded: usize = messages.values().map(|seen| seen.encoded).sum();
    // The first is in fifty requests, the last in one.
    assert_eq!(sent, IMAGES * (IMAGES + 1) / 2);
    assert_eq!((messages.len(), encoded), (IMAGES, IMAGES));
    assert_eq!(client.images.lock().unwrap().len(), IMAGES);

    // On the wire, too, each is what it was the first time.
    let requests = server.requests();
    assert_eq!(requests.len(), IMAGES + 1);
    let shown = |body: &Value| -> Vec<String> {
        let messages = body["messages"].as_array().unwrap().iter();
        let images = messages.filter(|message| message.to_string().contains("data:image/"));
        images.map(Value::to_string).collect()
    };
    let last = shown(&requests[IMAGES].body());
    assert_eq!(last.iter().collect::<HashSet<_>>().len(), IMAGES);
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(shown(&request.body()), last[..number]);
    }
}
