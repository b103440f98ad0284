//! The server that the tests talk to, made with the official SDK.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequestParams,
    ElicitationSchema, ErrorData, JsonObject, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, Resource, ResourceContents, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::{Value, json};

/// A GIF of one pixel.
pub(crate) const PIXEL: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";

#[derive(Clone, Default)]
pub(crate) struct TestServer {
    /// Whether it knows no protocol without a handshake and sessions.
    pub(crate) is_old: bool,
    pub(crate) cancelled: Arc<AtomicUsize>,
}

const TOOLS: &[&str] = &[
    "ask",
    "count_cancelled",
    "die",
    "echo",
    "fail",
    "look",
    "media",
    "sample",
    "wait",
];

/// Runs the server in place of the tests.
#[test]
#[ignore = "started by other tests, as a server"]
fn over_stdio() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let service = TestServer::default().serve(rmcp::transport::stdio()).await;
        if let Ok(service) = service {
            let _ = service.waiting().await;
        }
    });
}

impl ServerHandler for TestServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.is_old {
            true => Cow::Borrowed(&[ProtocolVersion::LATEST_WITH_INITIALIZE]),
            false => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
        }
    }

    async fn list_tools(
        &self,
        params: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // Two tools per page.
        let page: usize = params
            .and_then(|params| params.cursor)
            .map_or(0, |cursor| cursor.parse().unwrap_or(0));
        let schema = json!({
            "type": "object",
            "properties": {"text": {"type": "string"}},
        });
        let schema: JsonObject = serde_json::from_value(schema).expect("an object");
        let tools = TOOLS.chunks(2).nth(page).unwrap_or_default();
        let tools = tools
            .iter()
            .map(|name| Tool::new(*name, format!("Tool {name}."), schema.clone()));
        let mut result = ListToolsResult::with_all_items(tools.collect());
        if page + 1 < TOOLS.len().div_ceil(2) {
            result.next_cursor = Some((page + 1).to_string());
        }
        Ok(result)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        cx: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let text = arguments
            .get("text")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let text = match &*request.name {
            "echo" => text.to_owned(),
            "fail" => {
                return Ok(CallToolResult::error(vec![ContentBlock::text("no such file")]).into());
            }
            "look" => {
                let token = std::env::var("TOKEN").unwrap_or_default();
                let home = std::fs::read_dir("/root").is_ok();
                let network = std::net::TcpStream::connect("192.0.2.1:80").is_ok();
                let proxy = std::env::var("NODE_USE_ENV_PROXY").unwrap_or_default();
                format!("token {token}, home {home}, network {network}, proxy {proxy}")
            }
            "media" => return Ok(media().into()),
            "die" => {
                let token = std::env::var("TOKEN").unwrap_or_default();
                // Its end, which is kept, begins within the token.
                eprintln!("{}..\nout of cheese for {token}", token.repeat(500));
                std::process::exit(3);
            }
            "wait" => {
                if let Some(token) = cx.meta.get_progress_token() {
                    let progress = ProgressNotificationParam::new(token, 1.0)
                        .with_total(2.0)
                        .with_message("half\u{1b}[2Jway");
                    let _ = cx.peer.notify_progress(progress).await;
                }
                cx.ct.cancelled().await;
                self.cancelled.fetch_add(1, Ordering::Relaxed);
                String::new()
            }
            "count_cancelled" => self.cancelled.load(Ordering::Relaxed).to_string(),
            "ask" => self.ask(cx).await,
            "sample" => sample(cx).await,
            name => return Err(ErrorData::invalid_params(format!("no tool {name}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

impl TestServer {
    async fn ask(&self, cx: RequestContext<RoleServer>) -> String {
        let schema = json!({
            "type": "object",
            "properties": {
                "colour": {"type": "string", "enum": ["red", "green"]},
                "note": {"type": "string", "default": ""},
                "number": {"type": "integer"},
                "subscribed": {"type": "boolean"},
            },
            "required": ["colour"],
        });
        let schema: ElicitationSchema = serde_json::from_value(schema).expect("a form");
        let params = ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: "What do you like?".to_owned(),
            requested_schema: schema,
        };
        match cx.peer.create_elicitation(params).await {
            Ok(result) => format!("{:?} {}", result.action, result.content.unwrap_or_default()),
            Err(error) => error.to_string(),
        }
    }
}

#[expect(deprecated, reason = "old servers ask for it")]
async fn sample(cx: RequestContext<RoleServer>) -> String {
    use rmcp::model::{CreateMessageRequestParams, SamplingMessage};
    let params = CreateMessageRequestParams::new(vec![SamplingMessage::user_text("hi")], 16);
    match cx.peer.create_message(params).await {
        Ok(_) => "a model answered".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn media() -> CallToolResult {
    let link = Resource::new("file:///notes.txt", "notes").with_description("My notes");
    let blob = ResourceContents::BlobResourceContents {
        uri: "test://blob".to_owned(),
        mime_type: Some("application/pdf".to_owned()),
        blob: "JVBERi0=".to_owned(),
        meta: None,
    };
    CallToolResult::success(vec![
        ContentBlock::text("Look:"),
        ContentBlock::image(PIXEL, "image/gif"),
        ContentBlock::image("bm8gaW1hZ2U=", "image/png"),
        ContentBlock::audio("UklGRg==", "audio/wav"),
        ContentBlock::resource_link(link),
        ContentBlock::embedded_text("test://text", "inside"),
        ContentBlock::resource(blob),
        ContentBlock::image("***", "image/png"),
    ])
}
