use std::error::Error as _;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, Completion, LlmClient, LlmClientExt as _, LlmError,
    LlmErrorKind, ModelInfo, StopReason, ToolSpecs, TurnEnd,
};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, ToolCall, ToolMessage, UserKind, UserMessage,
};
use cantle_core::tool::ToolSpec;
use cantle_core::usage::TokenUsage;
use serde_json::json;

use super::Recorder;
use crate::replay::ReplayClient;
use crate::scripted::{ScriptedClient, failed};

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    fn replayed(&self) -> ReplayClient {
        ReplayClient::from_jsonl(&self.0.lock().unwrap()).unwrap()
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// A disk with room for one line.
struct Full(usize);
impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += 1;
        if self.0 > 1 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn call() -> ToolCall {
    // Without a provider's id, so that it is different in each run.
    ToolCall::new(None, "look", "{}")
}

/// A model that calls a tool, fails, and then is done.
fn model() -> ScriptedClient {
    ScriptedClient::new("m", |attempt| match attempt {
        0 => {
            let usage = TokenUsage {
                input: 10,
                answer: 5,
                ..TokenUsage::default()
            };
            let mut end = TurnEnd::new(StopReason::ToolCalls, Some(usage));
            end.cost_usd = Some(0.5);
            end.served_by = Some("m-2".to_owned());
            vec![
                Ok(ChatEvent::Block(AssistantBlock::ToolCall(call()))),
                Ok(ChatEvent::Finished(end)),
            ]
        }
        1 => vec![failed(LlmErrorKind::Server)],
        _ => vec![
            Ok(ChatEvent::TextDelta("Do".to_owned())),
            Ok(ChatEvent::Block(AssistantBlock::text("Done: sk-secret."))),
            Ok(ChatEvent::Finished(TurnEnd::new(StopReason::EndTurn, None))),
        ],
    })
}

fn tools() -> ToolSpecs {
    ToolSpecs::new(vec![ToolSpec::new(
        "look",
        "Looks.",
        json!({"type": "object"}),
    )])
}

async fn ask(client: &dyn LlmClient, messages: Vec<Message>) -> Result<Completion, LlmError> {
    let messages = messages.into_iter().map(Into::into).collect();
    client.complete(ChatRequest::new(messages, tools())).await
}

type Outcomes = Vec<
    Result<
        (
            Vec<AssistantBlock>,
            StopReason,
            Option<TokenUsage>,
            Option<f64>,
        ),
        String,
    >,
>;

/// A whole run: a turn, what its tool says, and the next turn, which is asked for twice.
async fn run(client: &dyn LlmClient, task: &str, said: &str) -> Outcomes {
    let mut outcomes = Vec::new();
    let mut messages = vec![Message::system("Be brief: sk-secret."), Message::user(task)];
    for _ in 0..3 {
        let outcome = ask(client, messages.clone()).await;
        if let Ok(completion) = &outcome
            && let Some(call) = completion.message.tool_calls().next()
        {
            let mut result = ToolMessage::new(call, said);
            result.tool_start_time = Some(1.25);
            let turn: AssistantMessage = completion.message.clone();
            messages.extend([turn.into(), result.into()]);
        }
        outcomes.push(match outcome {
            Ok(it) => Ok((it.message.blocks, it.stop, it.usage, it.cost_usd)),
            Err(error) => Err(error.to_string()),
        });
    }
    outcomes
}

async fn recording() -> (Memory, Outcomes) {
    let file = Memory::default();
    let secrets = vec!["sk-secret".into(), "".into()];
    let recorder = Recorder::new(model(), file.clone(), secrets).unwrap();
    let outcomes = run(&recorder, "Look.", "two files").await;
    (file, outcomes)
}

#[tokio::test]
async fn recordings_replay_answers_and_errors() {
    let (file, outcomes) = recording().await;
    assert_eq!(outcomes.len(), 3);
    // The secret was taken out of what is compared, too.
    let text = file.text();
    assert!(
        !text.contains("sk-secret") && text.matches("[hidden]").count() == 2,
        "{text}"
    );
    let played = file.replayed();
    assert_eq!(played.model().slug, "m");
    let mut messages = vec![
        Message::system("Be brief: [hidden]."),
        Message::user("Look."),
    ];
    let first = ask(&played, messages.clone()).await.unwrap();
    assert_eq!(first.served_by.as_deref(), Some("m-2"));
    let result = ToolMessage::new(first.message.tool_calls().next().unwrap(), "two files");
    messages.extend([first.message.clone().into(), result.into()]);
    let failure = ask(&played, messages.clone()).await.unwrap_err();
    let last = ask(&played, messages.clone()).await.unwrap();
    assert_eq!(
        outcomes,
        [
            Ok((
                first.message.blocks,
                first.stop,
                first.usage,
                first.cost_usd
            )),
            Err(failure.to_string()),
            Ok((
                vec![AssistantBlock::text("Done: sk-secret.")],
                last.stop,
                last.usage,
                last.cost_usd
            )),
        ]
    );
}

#[tokio::test]
async fn each_message_is_written_once() {
    let (file, _) = recording().await;
    let text = file.text();
    let kinds: Vec<_> = text
        .lines()
        .skip(1)
        .map(|line| line.split('"').nth(1).unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "message", "message", "tools", "call", "message", "message", "call", "call"
        ]
    );
}

#[tokio::test]
async fn an_unknown_request_shows_the_difference() {
    let (file, _) = recording().await;
    let played = file.replayed();
    let refused = async |messages: Vec<Message>| {
        let error = ask(&played, messages).await.unwrap_err();
        assert_eq!(error.kind(), LlmErrorKind::InvalidRequest);
        error.to_string()
    };
    let system = || Message::system("Be brief: [hidden].");
    let other_task = refused(vec![system(), Message::user("Look around.")]).await;
    let too_many = refused(vec![
        system(),
        Message::user("Look."),
        Message::user("And?"),
    ])
    .await;
    let first = ask(&played, vec![system(), Message::user("Look.")])
        .await
        .unwrap();
    let call = first.message.tool_calls().next().unwrap();
    let result = Message::from(ToolMessage::new(call, "three files"));
    let turn = Message::from(first.message.clone());
    let other_result = refused(vec![system(), Message::user("Look."), turn, result]).await;
    let messages = vec![system().into(), Message::user("Look.").into()];
    let no_tools = ChatRequest::new(messages, ToolSpecs::default());
    let no_tools = played.complete(no_tools).await.unwrap_err().to_string();
    insta::assert_snapshot!([other_task, too_many, other_result, no_tools].join("\n\n"));
}

#[tokio::test]
async fn a_recording_that_cannot_be_written_fails_the_call() {
    let recorder = Recorder::new(model(), Full(0), Vec::new()).unwrap();
    let error = ask(&recorder, vec![Message::user("Hi")]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to write the recording: no space left"
    );
    assert!(error.source().is_none(), "the message has it");
    // The model has answered all the same.
    assert_eq!(error.usage().map(|usage| usage.total()), Some(15));
}

/// Results are returned by call, in the order in which they were recorded.
#[tokio::test]
async fn tool_results_are_found_by_call() {
    let file = Memory::default();
    let recorder = Recorder::new(model(), file.clone(), vec!["s\"k".into()]).unwrap();
    let log = recorder.results();
    let mut call = ToolCall::new(Some("call_1".to_owned()), "look", "{}");
    log.write(&call, &"at 12:00, s\"k".into(), true);
    log.write(&call, &"at 12:01".into(), false);
    let played = file.replayed();
    assert!(played.replays_calls());
    let said = || {
        let result = played.result_of(&call)?;
        assert!(result.was_executed);
        Some((result.content.text(), result.success))
    };
    assert_eq!(said(), Some(("at 12:00, [hidden]".to_owned(), true)));
    assert_eq!(said(), Some(("at 12:01".to_owned(), false)));
    assert_eq!(said(), Some(("at 12:01".to_owned(), false)));
    let last = played.result_of(&call).unwrap();
    assert_eq!(last.difference(&"at 12:01".into(), false), None);
    assert_eq!(
        last.difference(&"at 12:02".into(), false).unwrap(),
        "``\n  recorded: at 12:01\n  now:      at 12:02"
    );
    assert_eq!(
        last.difference(&"at 12:01".into(), true).unwrap(),
        "its outcome\n  recorded: failure\n  now:      success"
    );
    call.arguments = "{ }".to_owned();
    assert_eq!(played.result_of(&call), None);
}

#[tokio::test]
async fn calls_that_were_not_executed_have_the_message_instead() {
    let (file, _) = recording().await;
    let text = file.text();
    let id = text.split("\"tool_call_id\":\"").nth(1).unwrap();
    let id = id.split('"').next().unwrap().to_owned();
    let call = ToolCall::new(Some(id), "look", "{}");
    let result = file.replayed().result_of(&call).unwrap();
    assert_eq!(
        (&*result.content.text(), result.was_executed),
        ("two files", false)
    );
    assert!(file.replayed().has_tool("look") && !file.replayed().has_tool("loo"));
}

#[tokio::test]
async fn turn_warnings_are_not_compared() {
    let file = Memory::default();
    let recorder = Recorder::new(
        ScriptedClient::always(crate::scripted::done),
        file.clone(),
        Vec::new(),
    );
    let recorder = recorder.unwrap();
    let messages = |warning: Option<&str>, replaced: &str| {
        let summary = UserKind::Summary {
            replaced_ids: vec![replaced.to_owned()],
        };
        let mut messages: Vec<Message> = vec![
            Message::user("Look."),
            Message::User(UserMessage::new(summary, "There was much.")),
        ];
        let warning =
            warning.map(|text| Message::User(UserMessage::new(UserKind::TurnWarning, text)));
        messages.extend(warning);
        messages
    };
    ask(&recorder, messages(Some("61 of 90 s"), "a"))
        .await
        .unwrap();
    let played = file.replayed();
    for warning in [None, Some("62 of 90 s")] {
        ask(&played, messages(warning, "b")).await.unwrap();
    }
}

#[tokio::test]
async fn the_models_limits_are_recorded() {
    let file = Memory::default();
    let sized = Sized(
        ModelInfo::new("m")
            .with_limits(Some(8000), Some(500))
            .unwrap(),
    );
    Recorder::new(sized, file.clone(), Vec::new()).unwrap();
    let replayed = file.replayed();
    let limits = (
        replayed.model().context_window,
        replayed.model().max_output_tokens,
    );
    assert_eq!(limits, (Some(8000), Some(500)));
}

/// A model of a known size, which says nothing.
#[derive(Debug)]
struct Sized(ModelInfo);

impl LlmClient for Sized {
    fn model(&self) -> &ModelInfo {
        &self.0
    }

    fn stream(&self, _: ChatRequest) -> ChatStream {
        Box::pin(futures_util::stream::empty())
    }
}

#[tokio::test]
async fn a_result_that_cannot_be_written_fails_the_next_call() {
    let recorder = Recorder::new(model(), Full(0), Vec::new()).unwrap();
    recorder.results().write(&call(), &"all".into(), true);
    let error = ask(&recorder, vec![Message::user("Hi")]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to write the recording: no space left"
    );
}
