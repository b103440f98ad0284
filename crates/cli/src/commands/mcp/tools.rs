//! The tools that MCP clients get. They share a sandbox, which the first call opens.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cantle::core::content::{Content, Part};
use cantle::core::ids::RunId;
use cantle::core::policy::Policy;
use cantle::core::sandbox::{
    Backend, ByteRange, FileKind, Sandbox, SandboxError, SandboxExt as _, SandboxPath,
};
use cantle::core::tool::{DynTool, OpenContext, ToolContext, ToolError, ToolOutput, ToolProvider};
use cantle::python::{Interpreter, PythonTool};
use cantle::tools::CodeExec;
use cantle_server::{ExtensionClient, SandboxPlace};
use futures_util::TryStreamExt as _;
use parking_lot::Mutex as SyncMutex;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::commands::exec;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum size of what one call reads of a file.
const MAX_READ_BYTES: u64 = 40_000;
/// Maximum number of files that one call lists.
const MAX_LISTED: usize = 500;

/// Maximum interval in which an unused sandbox is looked for.
const IDLE_CHECK: Duration = Duration::from_secs(10);

/// The tools, and the sandbox that they share.
#[derive(Clone)]
pub(super) struct SandboxTools(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    policy: Policy,
    commands: CodeExec,
    python: PythonTool,
    /// The client of a server, which counts its sandboxes.
    client: Option<ServedClient>,
    /// The time without a call after which the sandbox is closed.
    idle: Option<Duration>,
    state: Mutex<State>,
}

/// A client of a server.
#[derive(Clone, Debug)]
pub(super) struct ServedClient {
    pub(super) client: ExtensionClient,
    /// Waited for when the server stops.
    pub(super) _open: TaskTrackerToken,
}

enum State {
    Unopened,
    Open(Arc<Opened>),
    /// Closed after some time without a call, which the client does not know yet.
    Expired,
    Closed,
}

/// The open sandbox, and the tool that keeps variables in it.
struct Opened {
    sandbox: Arc<dyn Sandbox>,
    python: DynTool,
    /// The latest time at which a call began or was seen to run.
    used: SyncMutex<Instant>,
    _place: Option<SandboxPlace>,
}

impl Drop for Inner {
    /// Closes the sandbox of a session that has ended.
    fn drop(&mut self) {
        let state = std::mem::replace(self.state.get_mut(), State::Closed);
        if let (State::Open(opened), Ok(runtime)) = (state, Handle::try_current()) {
            let client = self.client.take();
            runtime.spawn(async move {
                // Whatever remains is removed by `cantle gc` or when a server starts.
                let _ = opened.sandbox.close().await;
                drop(client);
            });
        }
    }
}

impl SandboxTools {
    /// Creates tools for a sandbox of `backend`, which is closed after the time `idle` without a call.
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        policy: Policy,
        client: Option<ServedClient>,
        idle: Option<Duration>,
    ) -> Self {
        let interpreter = Interpreter::new(Arc::clone(&backend)).policy(policy.clone());
        Self(Arc::new(Inner {
            commands: CodeExec::new(Arc::clone(&backend)).policy(policy.clone()),
            python: PythonTool::new(interpreter).images(true),
            backend,
            policy,
            client,
            idle,
            state: Mutex::new(State::Unopened),
        }))
    }

    /// Returns the tools.
    pub(super) fn list(&self) -> Vec<DynTool> {
        let tools = Arc::new(self.clone());
        vec![
            tools.run_command(),
            tools.run_python(),
            tools.read_file(),
            tools.write_file(),
            tools.list_files(),
        ]
    }

    /// Returns whether the sandbox was closed because no call used it.
    pub(super) fn is_expired(&self) -> bool {
        // A call that works on it holds the lock.
        let state = self.0.state.try_lock();
        state.is_ok_and(|state| matches!(*state, State::Expired))
    }

    /// Closes the sandbox, if it is open, for good.
    pub(super) async fn close(&self) -> Result<(), SandboxError> {
        let mut state = self.0.state.lock().await;
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(opened) => opened.sandbox.close().await,
            State::Unopened | State::Expired | State::Closed => Ok(()),
        }
    }

    /// Returns the sandbox, and opens it if this is the first call.
    async fn opened(&self, cx: &ToolContext) -> Result<Arc<Opened>, ToolError> {
        let opened = cx.cancellation.run_until_cancelled(self.open(cx.run)).await;
        opened.ok_or_else(ToolError::cancelled)?
    }

    async fn open(&self, run: RunId) -> Result<Arc<Opened>, ToolError> {
        let mut state = self.0.state.lock().await;
        match &*state {
            State::Open(opened) => {
                *opened.used.lock() = Instant::now();
                return Ok(Arc::clone(opened));
            }
            State::Closed => return Err(ToolError::failed("The sandbox is closed.")),
            State::Expired => {
                *state = State::Unopened;
                let message = "The sandbox was closed because it had not been used for some time. Its files, variables \
                               and processes are gone; the next call opens a new one.";
                return Err(ToolError::failed(message));
            }
            State::Unopened => {}
        }
        let client = self.0.client.as_ref();
        let place = client.map(|served| served.client.take_place()).transpose();
        let place = place.map_err(ToolError::failed)?;
        let sandbox = self.0.backend.open(exec::context(&self.0.policy)).await?;
        exec::report(sandbox.info(), false).await;
        let opened = Arc::new(Opened {
            python: tool_in(&self.0.python, &sandbox, run).await?,
            sandbox,
            used: SyncMutex::new(Instant::now()),
            _place: place,
        });
        *state = State::Open(Arc::clone(&opened));
        if let Some(idle) = self.0.idle {
            let closing = close_when_idle(Arc::downgrade(&self.0), Arc::downgrade(&opened), idle);
            tokio::spawn(closing);
        }
        Ok(opened)
    }

    #[cantle::tool(
        description = "Runs a bash command in the sandbox and returns its exit code, stdout and stderr. Each call is a new \
                       shell in the working directory: files and background processes stay, variables do not. Standard \
                       input is empty. Long output is cut in the middle; the result names a file that has all of it."
    )]
    async fn run_command(
        &self,
        /// The command; several lines are fine.
        command: String,
        /// Time limit in seconds, at most 3600. Default: 300.
        timeout_s: Option<f64>,
        cx: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let opened = self.opened(&cx).await?;
        let commands = self.0.commands.clone().timeout(time_limit(timeout_s)?);
        let tool = tool_in(&commands, &opened.sandbox, cx.run).await?;
        tool.call(json!({"cmd": command}), cx).await
    }

    #[cantle::tool(
        description = "Executes Python code in the sandbox and returns what it prints, the value of its last expression, \
                       figures of matplotlib, and the traceback of an exception. Variables are kept from call to call, and \
                       files are those of run_command. Long output is cut in the middle."
    )]
    async fn run_python(
        &self,
        /// The code.
        code: String,
        /// Time limit in seconds, at most 3600. Default: 300.
        timeout_s: Option<f64>,
        cx: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let opened = self.opened(&cx).await?;
        let timeout = time_limit(timeout_s)?;
        let arguments = json!({"code": code, "timeout": timeout});
        opened.python.call(arguments, cx).await
    }

    #[cantle::tool(
        description = "Reads a text file of the sandbox, or a range of its bytes. If more follows, the result says where to \
                       read on."
    )]
    async fn read_file(
        &self,
        /// The file, relative to the working directory.
        path: String,
        /// The first byte to read, counted from 0. Default: 0.
        start: Option<u64>,
        /// Number of bytes, at most 40000. Default: 40000.
        length: Option<u64>,
        cx: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        if length == Some(0) {
            // "Read on" would name the same start again.
            return Err(ToolError::failed("Argument `length`: at least 1 byte."));
        }
        let opened = self.opened(&cx).await?;
        let path = path_of(&path)?;
        let start = start.unwrap_or(0);
        let length = length.unwrap_or(MAX_READ_BYTES).min(MAX_READ_BYTES);
        // One more byte shows whether the file continues.
        let range = ByteRange::new(start, length + 1);
        let stream = opened.sandbox.read(&path, range).await?;
        let mut bytes: BytesMut = stream.try_collect().await?;
        let has_more = bytes.len() as u64 > length;
        bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        if let Err(error) = std::str::from_utf8(&bytes) {
            // The range may end within a character.
            if !has_more || error.error_len().is_some() || error.valid_up_to() == 0 {
                return Err(ToolError::failed(format!(
                    "`{path}` is not UTF-8 text in this range. Use run_command for other files."
                )));
            }
            bytes.truncate(error.valid_up_to());
        }
        let end = start + bytes.len() as u64;
        let mut parts = vec![Part::Text(String::from_utf8_lossy(&bytes).into_owned())];
        if has_more {
            let note = format!("(bytes {start} to {end}; read on with start = {end})");
            parts.push(Part::Text(note));
        } else if start > 0 && bytes.is_empty() {
            let note = format!("(no bytes from {start} on: the file ends there or before)");
            parts = vec![Part::Text(note)];
        }
        Ok(ToolOutput::new(Content::Parts(parts)))
    }

    #[cantle::tool(
        description = "Writes a text file in the sandbox, with its parent directories, and replaces an existing one."
    )]
    async fn write_file(
        &self,
        /// The file, relative to the working directory.
        path: String,
        /// The file's new content.
        content: String,
        cx: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let opened = self.opened(&cx).await?;
        let path = path_of(&path)?;
        let size = content.len();
        let data = Bytes::from(content);
        opened.sandbox.write_bytes(&path, data).await?;
        Ok(ToolOutput::text(format!("Wrote {size} bytes to `{path}`.")))
    }

    #[cantle::tool(
        description = "Lists a directory of the sandbox, not recursively: names, sizes, and `/` after directories."
    )]
    async fn list_files(
        &self,
        /// The directory, relative to the working directory, which is the default.
        path: Option<String>,
        cx: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let opened = self.opened(&cx).await?;
        let path = match path {
            Some(path) => path_of(&path)?,
            None => SandboxPath::working_directory(),
        };
        let files = opened.sandbox.list(&path).await?;
        let more = files.len().saturating_sub(MAX_LISTED);
        let mut lines: Vec<String> = Vec::new();
        for file in files.iter().take(MAX_LISTED) {
            let name = file.path.to_string();
            let name = name.escape_debug();
            lines.push(match file.kind {
                FileKind::Directory => format!("{name}/"),
                FileKind::File => format!("{name} ({} bytes)", file.size_bytes),
                _ => name.to_string(),
            });
        }
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        if lines.is_empty() {
            lines.push("(an empty directory)".to_owned());
        }
        Ok(ToolOutput::text(lines.join("\n")))
    }
}

/// Closes a sandbox that no call has used for the time `idle`.
async fn close_when_idle(tools: Weak<Inner>, opened: Weak<Opened>, idle: Duration) {
    loop {
        tokio::time::sleep(idle.min(IDLE_CHECK)).await;
        let Some(tools) = tools.upgrade() else {
            return;
        };
        let mut state = tools.state.lock().await;
        let Some(opened) = opened.upgrade() else {
            return;
        };
        // This function, the state and each call.
        if Arc::strong_count(&opened) > 2 {
            *opened.used.lock() = Instant::now();
            continue;
        }
        let unused = opened.used.lock().elapsed();
        if unused >= idle {
            *state = State::Expired;
            // Whatever remains is removed when a server starts.
            let _ = opened.sandbox.close().await;
            return;
        }
    }
}

/// Returns the one tool of a provider, in an open sandbox.
async fn tool_in(
    provider: &dyn ToolProvider,
    sandbox: &Arc<dyn Sandbox>,
    run: RunId,
) -> Result<DynTool, ToolError> {
    let mut context = OpenContext::new(run);
    context.sandbox = Some(Arc::clone(sandbox));
    let failed = |error: String| ToolError::failed(error);
    let set = provider.open(context).await;
    let set = set.map_err(|error| failed(error.to_string()))?;
    let missing = || failed(format!("{} has no tool", provider.name()));
    set.tools().pop().ok_or_else(missing)
}

fn time_limit(seconds: Option<f64>) -> Result<Duration, ToolError> {
    let Some(seconds) = seconds else {
        return Ok(DEFAULT_TIMEOUT);
    };
    let limit = Duration::try_from_secs_f64(seconds).ok();
    limit
        .filter(|limit| !limit.is_zero() && *limit <= MAX_TIMEOUT)
        .ok_or_else(|| ToolError::failed("Argument `timeout_s`: above 0 and at most 3600 seconds."))
}

fn path_of(path: &str) -> Result<SandboxPath, ToolError> {
    SandboxPath::new(path).map_err(|error| ToolError::failed(error.to_string()))
}

#[cfg(test)]
mod tests;
