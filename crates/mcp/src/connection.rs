//! The connection to one server: its start, its tools, its calls, and its recovery.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::escape::shorten;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::principal::Principal;
use cantle_core::sandbox::{Sandbox, SandboxContext, SandboxError, SandboxErrorKind};
use cantle_core::tool::{OpenContext, Progress, ToolContext, ToolError, ToolOutput};
use futures_util::FutureExt as _;
use parking_lot::Mutex as SyncMutex;
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, JsonObject, ProtocolVersion, SubscriptionFilter, Tool,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RunningService, Subscription,
};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use crate::call_error::{CallError, call_error};
use crate::config::{HttpServer, McpServer, Place, StdioServer, Transport};
use crate::handler::Handler;
use crate::http;
use crate::limits::MAX_ERROR_CHARS;
use crate::listing;
use crate::package::{self, InstalledPackage};
use crate::result;
use crate::stdio::{Child, hidden};
use crate::surroundings::Surroundings;

/// Time for a server to answer without a handshake.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to end a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Added if a server fails that has no network.
const HINT_NETWORK: &str =
    "It has no network: `\"policy\": {\"hosts\": [\"HOST\"]}` in its entry allows hosts. ";
/// Words of errors that may be due to that.
const NETWORK_WORDS: [&str; 6] = [
    "network",
    "host",
    "resol",
    "getaddrinfo",
    "fetch",
    "connect",
];

/// A server, as one session uses it.
pub(crate) struct Server {
    pub(crate) config: McpServer,
    pub(crate) surroundings: Surroundings,
    run: RunId,
    principal: Option<Principal>,
    progress: Arc<dyn Progress>,
    /// The tools that it listed last.
    tools: SyncMutex<Arc<[Tool]>>,
    /// Locked during a call: a server works on one call at a time.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The sandbox of a server that is started. It outlives the process.
    sandbox: Option<Arc<dyn Sandbox>>,
    /// The package of the server, if it is started from one, and the number of words that name it.
    package: Option<(InstalledPackage, usize)>,
    /// Whether a server at a URL was reached with a handshake.
    needs_handshake: bool,
    live: Option<Live>,
}

/// An open connection.
struct Live {
    service: RunningService<RoleClient, Handler>,
    child: Option<Arc<Child>>,
    /// The subscription through which a server without a handshake reports that its tools changed.
    changes: Option<Subscription>,
    /// Whether the tools may differ from those that were listed last.
    is_changed: bool,
    /// Whether the latest attempt to list them failed.
    is_unlisted: bool,
}

impl Live {
    /// Returns whether the server has announced a change since this was asked, or no longer can.
    fn has_new_tools(&mut self) -> bool {
        let mut changed = self.service.service().take_changed();
        if let Some(changes) = &mut self.changes {
            while let Some(Ok(Some(_))) = changes.next().now_or_never() {
                changed = true;
            }
        }
        changed || self.is_unsubscribed()
    }

    /// Returns whether the stream has ended in which the server reports changes, for example in a proxy.
    fn is_unsubscribed(&self) -> bool {
        let changes = self.changes.as_ref();
        changes.is_some_and(|changes| changes.end().is_some())
    }

    /// Asks a server without a handshake to report changes of its tools.
    async fn subscribe(&mut self, limit: Duration) {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let subscribed = timeout(limit, self.service.peer().listen(filter));
        // A server that does not answer is asked for its tools next.
        if let Ok(Ok(changes)) = subscribed.await {
            self.changes = Some(changes);
        }
    }

    /// Returns whether the server announces changes of its tools.
    fn announces_changes(&self) -> bool {
        let info = self.service.peer().peer_info();
        let tools = info.and_then(|info| info.capabilities.tools.clone());
        tools.and_then(|tools| tools.list_changed) == Some(true)
    }
}

impl Server {
    pub(crate) fn new(config: McpServer, surroundings: Surroundings, cx: &OpenContext) -> Self {
        Self {
            config,
            surroundings,
            run: cx.run,
            principal: cx.principal.clone(),
            progress: Arc::clone(&cx.progress),
            tools: SyncMutex::new(Arc::default()),
            state: Mutex::default(),
        }
    }

    /// Connects, and lists the server's tools. Returns whether it may add tools later.
    pub(crate) async fn open(&self) -> Result<bool, String> {
        let mut state = self.state.lock().await;
        let live = self.connect(&mut state).await;
        let live = live.map_err(|error| error.to_string())?;
        live.has_new_tools();
        match self.list(live).await {
            Ok(tools) => {
                *self.tools.lock() = listing::accepted(&self.config, tools)?.into();
                Ok(self.config.tools.is_none() && live.announces_changes())
            }
            Err(problem) => {
                let child = live.child.clone();
                state.live = None;
                Err(problem + ". " + &post_mortem(child).await)
            }
        }
    }

    /// Returns the tools that the server listed last.
    pub(crate) fn tools(&self) -> Arc<[Tool]> {
        Arc::clone(&self.tools.lock())
    }

    async fn list(&self, live: &Live) -> Result<Vec<Tool>, String> {
        let listed = listing::list(live.service.peer());
        match timeout(self.config.connect_timeout, listed).await {
            Ok(listed) => listed,
            Err(_) => Err(format!("did not list its tools within {}", self.limit())),
        }
    }

    /// Lists the tools again, unless a call is running.
    pub(crate) async fn refresh(&self) {
        if let Ok(mut state) = self.state.try_lock()
            && let Some(live) = &mut state.live
        {
            // A call does not try again: it would wait each time for a server that does not answer.
            live.is_changed |= live.is_unlisted;
            self.list_changes(live).await;
        }
    }

    /// Lists the tools again if the server announced a change. Returns the change, for the model.
    async fn list_changes(&self, live: &mut Live) -> Option<String> {
        live.is_changed |= live.has_new_tools();
        if !live.is_changed {
            return None;
        }
        if live.is_unsubscribed() {
            // First, so that no change after the list is missed.
            live.subscribe(self.config.connect_timeout).await;
        }
        let listed = self.list(live).await;
        // Only now: a cancelled call leaves it to the next one.
        (live.is_changed, live.is_unlisted) = (false, listed.is_err());
        let listed = listed.and_then(|tools| listing::accepted(&self.config, tools));
        let name = &self.config.name;
        let tools: Arc<[Tool]> = match listed {
            Ok(tools) => tools.into(),
            Err(problem) => {
                let problem = result::mark(name, &format!("It {problem}."));
                return Some(format!(
                    "The server's tools changed, and are not known.\n{problem}"
                ));
            }
        };
        let mut known = self.tools.lock();
        let earlier = std::mem::replace(&mut *known, Arc::clone(&tools));
        drop(known);
        listing::changes(name, &earlier, &tools)
    }

    /// Calls a tool.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: JsonObject,
        cx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let mut state = self.state.lock().await;
        let name = &self.config.name;
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let mut is_repeated = false;
        let (error, explanation) = loop {
            let live = match self.connect(&mut state).await {
                Ok(live) => live,
                Err(problem) => {
                    let problem = format!("It {problem}");
                    let cause = result::mark(name, problem.trim_end());
                    let text = format!("The call was not run.\n{cause}");
                    return Ok(ToolOutput::failure(text));
                }
            };
            if let Some(child) = &live.child {
                // What it was refused before is not about this call.
                child.take_refusals().await;
            }
            match self.call_once(live, params.clone(), cx).await {
                Ok(result) => {
                    let changes = self.list_changes(live).await;
                    let explanation = match result::error_text(&result) {
                        Some(problem) => self.explain(live, &problem).await,
                        None => None,
                    };
                    let remarks: Vec<_> = changes.into_iter().chain(explanation).collect();
                    let images = self.surroundings.images;
                    return result::convert(name, result, &remarks, images, cx).await;
                }
                Err(CallError::NotSent) if !is_repeated => {
                    is_repeated = true;
                    state.live = None;
                }
                Err(CallError::Lost) => {
                    let child = live.child.clone();
                    state.live = None;
                    let cause = post_mortem(child).await;
                    let problem = format!("lost the connection. {cause}");
                    break (CallError::Unknown(problem), None);
                }
                Err(error) => {
                    let problem = match &error {
                        CallError::Refused(problem) | CallError::Unknown(problem) => problem,
                        CallError::NotSent | CallError::Lost => "",
                    };
                    let explanation = self.explain(live, problem).await;
                    break (error, explanation);
                }
            }
        };
        let text = match error {
            CallError::NotSent | CallError::Lost => {
                format!("The call was not run: the MCP server `{name}` can't be reached.")
            }
            CallError::Refused(problem) => result::mark(name, &problem),
            CallError::Unknown(problem) => format!(
                "The outcome of this call is unknown: it may or may not have had an effect. Find out before you repeat \
                 it.\n{}",
                result::mark(name, &format!("It {problem}"))
            ),
        };
        Ok(ToolOutput::failure(result::with_remarks(
            explanation.as_slice(),
            &text,
        )))
    }

    /// Explains a call that failed if the sandbox may be the reason: with the hosts that the server was refused, or as it
    /// has no network, and the key that allows hosts.
    async fn explain(&self, live: &Live, problem: &str) -> Option<String> {
        let (Some(stdio), Some(child)) = (self.config.stdio(), &live.child) else {
            return None;
        };
        let problem = problem.to_lowercase();
        let cause = match stdio.has_network() {
            true => child.take_refusals().await,
            false if NETWORK_WORDS.iter().any(|word| problem.contains(word)) => {
                HINT_NETWORK.to_owned()
            }
            false => String::new(),
        };
        let name = &self.config.name;
        let cause = cause.trim();
        (!cause.is_empty()).then(|| format!("The MCP server `{name}` failed. {cause}"))
    }

    /// Sends one request, within the time limit.
    async fn call_once(
        &self,
        live: &Live,
        params: CallToolRequestParams,
        cx: &ToolContext,
    ) -> Result<CallToolResult, CallError> {
        let handler = live.service.service();
        let (_guard, asking) = handler.begin_call(cx);
        let call = live.service.call_tool(params);
        match within(self.config.call_timeout, asking, call).await {
            Some(answer) => answer.map_err(|error| call_error(&error)),
            None => {
                let limit = self.config.call_timeout.as_secs_f64();
                let problem = format!("did not answer within {limit} s; the call was cancelled.");
                Err(CallError::Unknown(problem))
            }
        }
    }

    /// Returns the open connection, or opens one.
    async fn connect<'s>(&self, state: &'s mut State) -> Result<&'s mut Live, ConnectError> {
        let live = match state.live.take() {
            Some(live) if !live.service.is_transport_closed() => live,
            _ => match &self.config.transport {
                Transport::Stdio(stdio) => self.start(stdio, state).await?,
                Transport::Http(server) => self.reach(server, state).await?,
            },
        };
        Ok(state.live.insert(live))
    }

    /// Connects to a URL: first without a handshake, unless the server needed one before.
    async fn reach(&self, server: &HttpServer, state: &mut State) -> Result<Live, ConnectError> {
        let mut may_lack_handshake = state.needs_handshake;
        if !may_lack_handshake {
            let limit = DISCOVERY_TIMEOUT.min(self.config.connect_timeout / 2);
            let discovered = timeout(limit, self.discover(server)).await;
            // Some servers keep silent instead of refusing it. Others are only slow.
            may_lack_handshake = discovered.is_err();
            match discovered {
                Ok(Err(ConnectError::Refused(_))) | Err(_) => {}
                Ok(connected) => return connected,
            }
        }
        let transport = http::transport(server, self.config.connect_timeout).await?;
        let mode = ClientLifecycleMode::Initialize;
        match self.shake_hands(transport, mode, None).await {
            Err(ConnectError::Refused(_)) if may_lack_handshake => self.discover(server).await,
            connected => {
                state.needs_handshake |= connected.is_ok();
                connected
            }
        }
    }

    /// Connects to a URL without a handshake.
    async fn discover(&self, server: &HttpServer) -> Result<Live, ConnectError> {
        let transport = http::transport(server, self.config.connect_timeout).await?;
        let mut live = self
            .shake_hands(transport, without_handshake(), None)
            .await?;
        if live.announces_changes() {
            live.subscribe(self.config.connect_timeout).await;
        }
        Ok(live)
    }

    /// Starts the server in its sandbox, and opens that if there is none. A sandbox that sees the workspace is opened only
    /// once, before commands can move what is protected there: the paths of another one would protect something else.
    async fn start(&self, stdio: &StdioServer, state: &mut State) -> Result<Live, ConnectError> {
        let prepared = self.prepared(stdio, state).await;
        let stdio = &prepared.map_err(|problem| hidden(problem, &stdio.secrets()))?;
        let has_workspace = self.config.wants_workspace();
        if let Some(sandbox) = &state.sandbox {
            match self.start_in(stdio, &**sandbox).await {
                Err(ConnectError::Sandbox(error))
                    if error.kind() == SandboxErrorKind::Gone && !has_workspace => {}
                started => return started,
            }
        }
        let sandbox = self.open_sandbox(stdio).await?;
        state.sandbox = Some(Arc::clone(&sandbox));
        self.start_in(stdio, &*sandbox).await
    }

    /// Returns the server as it is started: in the workspace, if it sees that, and from its package, which is installed
    /// first.
    async fn prepared(
        &self,
        stdio: &StdioServer,
        state: &mut State,
    ) -> Result<StdioServer, String> {
        let mut stdio = stdio.clone();
        let Place::Sandbox { policy, workspace } = &mut stdio.place else {
            return Ok(stdio);
        };
        if let (Some(_), Some(shared)) = (workspace, &self.surroundings.workspace) {
            let directory = shared.directory.display().to_string();
            stdio.directory.get_or_insert(directory);
        }
        let Some(installer) = &self.surroundings.packages else {
            return Ok(stdio);
        };
        let argv: Vec<&str> = stdio.argv.iter().map(|word| word.expose()).collect();
        if state.package.is_none()
            && let Some((package, words)) = package::of_command(&argv)?
        {
            let installed = installer.install(&package, &*self.progress).await;
            let installed =
                installed.map_err(|problem| format!("can't be installed: {problem}"))?;
            state.package = Some((installed, words));
        }
        if let Some((installed, words)) = &state.package {
            let program = installed.program.display().to_string();
            stdio.argv.splice(..*words, [program.into()]);
            let roots = policy.read_roots.get_or_insert_default();
            roots.paths.extend(installed.read_roots.iter().cloned());
        }
        Ok(stdio)
    }

    /// Connects with the handshake that most servers know: they may exit or hang without it. One that refuses it is
    /// started again.
    async fn start_in(
        &self,
        stdio: &StdioServer,
        sandbox: &dyn Sandbox,
    ) -> Result<Live, ConnectError> {
        let (child, pipes) = Child::start(stdio, sandbox).await?;
        let mode = ClientLifecycleMode::Initialize;
        match self.shake_hands(pipes, mode, Some(child)).await {
            Err(ConnectError::Refused(problem)) => {
                let (child, pipes) = Child::start(stdio, sandbox).await?;
                let connected = self
                    .shake_hands(pipes, without_handshake(), Some(child))
                    .await;
                // The first refusal is the one that servers of both eras explain.
                connected.map_err(|_| ConnectError::Other(problem))
            }
            connected => connected,
        }
    }

    async fn open_sandbox(&self, stdio: &StdioServer) -> Result<Arc<dyn Sandbox>, ConnectError> {
        let places = &self.surroundings;
        let (backend, policy) = match &stdio.place {
            Place::Host => (&places.host, Policy::unconfined()),
            Place::Sandbox { policy, workspace } => {
                let mut policy = Policy::clone(policy);
                if let Some(access) = workspace {
                    let missing = "asks for the workspace, and this program shares none";
                    let workspace = places.workspace.as_ref();
                    let workspace = workspace.ok_or_else(|| missing.to_owned())?;
                    workspace.add_to(&mut policy, *access);
                }
                (&places.sandboxes, policy)
            }
        };
        let Some(backend) = backend else {
            let place = self.config.place();
            let problem = format!("can't be started: this program starts no servers in a {place}");
            return Err(ConnectError::Other(problem));
        };
        let mut cx = SandboxContext::new(self.run, policy);
        cx.principal.clone_from(&self.principal);
        cx.progress = Arc::clone(&self.progress);
        Ok(backend.open(cx).await?)
    }

    async fn shake_hands<T, E, A>(
        &self,
        transport: T,
        mode: ClientLifecycleMode,
        child: Option<Arc<Child>>,
    ) -> Result<Live, ConnectError>
    where
        T: rmcp::transport::IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let handler = Handler::new(&self.config.name);
        let served = handler.serve_with_lifecycle(transport, mode);
        let problem = match timeout(self.config.connect_timeout, served).await {
            Ok(Ok(service)) => {
                return Ok(Live {
                    service,
                    child,
                    changes: None,
                    is_changed: false,
                    is_unlisted: false,
                });
            }
            Ok(Err(ClientInitializeError::JsonRpcError(error))) => {
                let message = shorten(&error.message, MAX_ERROR_CHARS);
                let problem = format!("refused the connection: {message}");
                return Err(ConnectError::Refused(problem));
            }
            Ok(Err(ClientInitializeError::TransportError { error, .. }))
                if !error.error.is::<SandboxError>() =>
            {
                let problem = format!("can't be reached: {}", http::describe(&*error.error));
                if http::is_server_failure(&*error.error) {
                    return Err(ConnectError::Refused(problem));
                }
                problem
            }
            Ok(Err(
                ClientInitializeError::TransportError { .. }
                | ClientInitializeError::ConnectionClosed(_),
            )) => "ended the connection before it answered".to_owned(),
            Ok(Err(error)) => {
                let error = shorten(&error.to_string(), MAX_ERROR_CHARS);
                let problem = format!("answered against the protocol: {error}");
                return Err(ConnectError::Refused(problem));
            }
            Err(_) => format!("did not answer within {}", self.limit()),
        };
        let hint = match self.config.stdio() {
            Some(stdio) if !stdio.has_network() => HINT_NETWORK,
            _ => "",
        };
        let cause = post_mortem(child).await;
        Err(ConnectError::Other(format!("{problem}. {hint}{cause}")))
    }

    fn limit(&self) -> String {
        let limit = self.config.connect_timeout.as_secs_f64();
        format!("{limit} s (`connect_timeout_s`)")
    }

    /// Ends the connection and removes the sandbox.
    pub(crate) async fn close(&self) -> Result<(), SandboxError> {
        let mut state = self.state.lock().await;
        if let Some(mut live) = state.live.take() {
            // Its task ends with the service if it takes longer.
            let _ = live.service.close_with_timeout(CLOSE_TIMEOUT).await;
        }
        match state.sandbox.take() {
            Some(sandbox) => sandbox.close().await,
            None => Ok(()),
        }
    }
}

/// The reason why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("can't be started: {0}. {advice}", advice = .0.advice().unwrap_or_default())]
    Sandbox(#[from] SandboxError),
    /// The server answered, but not as it should. It may know another handshake.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Other(String),
}

impl From<String> for ConnectError {
    fn from(problem: String) -> Self {
        Self::Other(problem)
    }
}

/// The protocol since 2026-07-28.
fn without_handshake() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::LATEST],
    }
}

async fn post_mortem(child: Option<Arc<Child>>) -> String {
    match child {
        Some(child) => child.post_mortem().await.trim_start().to_owned(),
        None => String::new(),
    }
}

/// Waits for `work` as long as the limit allows. The clock restarts when the user has answered.
async fn within<T>(
    limit: Duration,
    mut asking: watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        let is_asking = *asking.borrow_and_update();
        tokio::select! {
            done = &mut work => return Some(done),
            () = tokio::time::sleep(limit), if !is_asking => return None,
            Ok(()) = asking.changed() => {}
        }
    }
}
