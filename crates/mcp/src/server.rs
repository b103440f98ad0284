//! The server's side of the protocol: tools for an MCP client on standard input and output.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::content::{Content, MediaKind, Part};
use cantle_core::escape::shorten;
use cantle_core::ids::RunId;
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput};
use futures_util::FutureExt as _;
use http::request::Parts;
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    Implementation, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ProgressToken, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{
    Peer, RequestContext, RoleServer, ServerInitializeError, serve_server_with_ct,
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::limits::{MAX_ERROR_CHARS, MAX_SERVED_CALLS};

/// Time for cancelled calls to end by themselves once the connection has ended.
const CALL_GRACE: Duration = Duration::from_secs(15);

/// Interval at which running calls report progress, shorter than the time limits of clients.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Serves tools over standard input and output until the input ends or `cancellation` is cancelled. Calls that then run
/// have a few seconds to end, are cancelled, and have 15 seconds to clean up.
///
/// A request that the client cancels cancels its call. If the client asks for progress, it gets the seconds that a call has
/// run, every five seconds. Messages have up to 16 MiB, and up to 16 calls run at once; further ones are refused. So are calls
/// of tools that are not for guests, since calls have no principal. Nothing else may write to standard output.
///
/// # Errors
/// If the client does not begin with a handshake of the protocol.
pub async fn serve_stdio(tools: Vec<DynTool>, cancellation: CancellationToken) -> io::Result<()> {
    let server = ToolServer::new(tools, None);
    let calls = Arc::clone(&server.calls);
    match serve_server_with_ct(server, rmcp::transport::stdio(), cancellation).await {
        Ok(service) => {
            let ended = service.waiting().await;
            // The calls are tasks of rmcp, which cancels them and does not wait for them.
            let all = u32::try_from(MAX_SERVED_CALLS).unwrap_or(u32::MAX);
            let _ = timeout(CALL_GRACE, calls.acquire_many(all)).await;
            ended.map(drop).map_err(io::Error::other)
        }
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
            Ok(())
        }
        Err(error) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            shorten(&error.to_string(), MAX_ERROR_CHARS),
        )),
    }
}

/// The header with the id of a session over HTTP.
pub(crate) const SESSION: &str = "mcp-session-id";

/// The tools of a client.
#[derive(Debug)]
pub(crate) struct ToolServer {
    tools: Vec<DynTool>,
    /// Over HTTP, the tools of requests without a session.
    shared: Option<Arc<[DynTool]>>,
    run: RunId,
    calls: Arc<Semaphore>,
}

impl ToolServer {
    /// Over HTTP, `tools` are those of its session, and `shared` those of requests without one.
    pub(crate) fn new(tools: Vec<DynTool>, shared: Option<Arc<[DynTool]>>) -> Self {
        Self {
            tools,
            shared,
            run: RunId::new(),
            calls: Arc::new(Semaphore::new(MAX_SERVED_CALLS)),
        }
    }

    /// Returns the tools of a request.
    fn tools(&self, cx: &RequestContext<RoleServer>) -> &[DynTool] {
        let request = cx.extensions.get::<Parts>();
        let has_session = request.is_some_and(|request| request.headers.contains_key(SESSION));
        match &self.shared {
            Some(shared) if !has_session => shared,
            _ => &self.tools,
        }
    }

    async fn call(
        &self,
        tool: &DynTool,
        request: CallToolRequestParams,
        cx: RequestContext<RoleServer>,
    ) -> Result<ToolOutput, ToolError> {
        let Ok(_permit) = self.calls.try_acquire() else {
            let message = format!("{MAX_SERVED_CALLS} calls are running. Call again later.");
            return Err(ToolError::failed(message));
        };
        // A client is no principal.
        if let Some(refusal) = tool.properties().level.refusal(tool.name(), None) {
            return Err(ToolError::failed(refusal));
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let arguments = tool.parse(&arguments.to_string())?.arguments;
        let mut context = ToolContext::new(self.run, cx.id.to_string());
        context.cancellation = cx.ct;
        let called = AssertUnwindSafe(tool.call(arguments, context)).catch_unwind();
        let called = tokio::select! {
            called = called => called,
            never = report_progress(&cx.peer, cx.meta.get_progress_token()) => match never {},
        };
        called.unwrap_or_else(|payload| Err(ToolError::from_panic(&*payload)))
    }
}

/// Reports how many seconds a call has run, if the client asked for that.
async fn report_progress(peer: &Peer<RoleServer>, token: Option<ProgressToken>) -> Infallible {
    let Some(token) = token else {
        return pending().await;
    };
    let started = Instant::now();
    loop {
        sleep(PROGRESS_INTERVAL).await;
        let seconds = started.elapsed().as_secs_f64().round();
        let progress = ProgressNotificationParam::new(token.clone(), seconds);
        // Without a connection, the call is cancelled.
        let _ = peer.notify_progress(progress).await;
    }
}

impl ServerHandler for ToolServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let cantle = Implementation::new("cantle", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(cantle)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        cx: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.tools(&cx).iter().map(|tool| {
            let spec = tool.spec();
            let schema = spec.parameters().as_object().cloned().unwrap_or_default();
            Tool::new(
                spec.name().to_owned(),
                spec.description().to_owned(),
                Arc::new(schema),
            )
        });
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        cx: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut tools = self.tools(&cx).iter();
        let Some(tool) = tools.find(|tool| tool.name() == request.name) else {
            let name = shorten(&request.name, 100);
            let message = format!("there is no tool `{name}`");
            return Err(ErrorData::invalid_params(message, None));
        };
        Ok(match self.call(tool, request, cx).await {
            Ok(output) if output.success => CallToolResult::success(blocks(output.content)),
            Ok(output) => CallToolResult::error(blocks(output.content)),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
        }
        .into())
    }
}

/// Converts content. MCP knows no video, which no tool here returns.
fn blocks(content: Content) -> Vec<ContentBlock> {
    match content {
        Content::Text(text) => vec![ContentBlock::text(text)],
        Content::Parts(parts) => parts
            .into_iter()
            .map(|part| match part {
                Part::Text(text) => ContentBlock::text(text),
                Part::Media(media) if media.kind() == MediaKind::Audio => {
                    ContentBlock::audio(media.base64(), media.mime_type())
                }
                Part::Media(media) => ContentBlock::image(media.base64(), media.mime_type()),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use cantle_core::principal::Level;
    use cantle_core::tool::ToolSpec;
    use parking_lot::Mutex;
    use rmcp::service::NotificationContext;
    use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
    use serde_json::json;

    use super::*;

    /// A client that keeps the progress that was reported to it.
    #[derive(Clone, Default)]
    struct Reported(Arc<Mutex<Vec<f64>>>);

    impl ClientHandler for Reported {
        async fn on_progress(
            &self,
            progress: ProgressNotificationParam,
            _: NotificationContext<RoleClient>,
        ) {
            self.0.lock().push(progress.progress);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_calls_report_progress() {
        let spec = ToolSpec::new("waits", "Waits.", json!({"type": "object"}));
        let tool = DynTool::from_schema(spec, async |_, _| {
            sleep(Duration::from_secs(12)).await;
            Ok(ToolOutput::text("waited"))
        });
        let reported = Reported::default();
        let (here, there) = tokio::io::duplex(1 << 16);
        let (server, client) = tokio::join!(
            ToolServer::new(vec![tool], None).serve(there),
            reported.clone().serve(here)
        );
        let (_server, client) = (server.unwrap(), client.unwrap());
        let call = CallToolRequestParams::new("waits");
        client.call_tool(call).await.unwrap();
        assert_eq!(*reported.0.lock(), [5.0, 10.0]);
    }

    #[tokio::test]
    async fn a_tool_that_panics_is_a_failed_call() {
        let spec = ToolSpec::new("panics", "Panics.", json!({"type": "object"}));
        let tool = DynTool::from_schema(spec, async |_, _| panic!("out of cheese"));
        let (here, there) = tokio::io::duplex(1 << 16);
        let (server, client) = tokio::join!(
            ToolServer::new(vec![tool], None).serve(there),
            ().serve(here)
        );
        let (_server, client) = (server.unwrap(), client.unwrap());
        for _ in 0..2 {
            let call = CallToolRequestParams::new("panics");
            let result = client.call_tool(call).await.unwrap();
            assert_eq!(result.is_error, Some(true));
            let text = serde_json::to_string(&result.content).unwrap();
            assert!(text.contains("out of cheese"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_tool_that_is_not_for_guests_is_refused() {
        let spec = ToolSpec::new("delete", "Deletes.", json!({"type": "object"}));
        let tool = DynTool::from_schema(spec, async |_, _| Ok(ToolOutput::text("deleted")));
        let (here, there) = tokio::io::duplex(1 << 16);
        let (server, client) = tokio::join!(
            ToolServer::new(vec![tool.with_level(Level::User)], None).serve(there),
            ().serve(here)
        );
        let (_server, client) = (server.unwrap(), client.unwrap());
        let call = CallToolRequestParams::new("delete");
        let result = client.call_tool(call).await.unwrap();
        let text = "Permission denied: delete requires 'user' but user has 'none'";
        assert_eq!(result.is_error, Some(true));
        assert_eq!(result.content, [ContentBlock::text(text)]);
    }
}
