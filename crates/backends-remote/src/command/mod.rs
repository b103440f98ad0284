//! Commands: each runs in bash with a wrapper script, and has one stream of events.
//!
//! The protocol reports when a process ends and can kill it, and no more. The script adds the rest: a command
//! ends when its own process ends, even if another one holds its channels; its status is exact; background
//! processes are killed or listed; and all processes of a command can be found, because they carry a
//! variable with a value that is unique.
//!
//! The command driver drives them; its transport is in `transport`, and `control` performs its orders.

mod control;
mod marks;
mod pump;
mod request;
mod stdin;
mod transport;

use std::sync::Arc;

use cantle_command_driver::{CommandDriver, DrivenProcess, StartedCommand};
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SpawnRequest};
use tokio::sync::{mpsc, oneshot};

use self::control::{CommandControl, Orders};
use self::pump::Progress;
use self::stdin::RemoteInput;
use self::transport::RemoteTransport;
use crate::envd::{Envd, Fault, Version};
use crate::script::{self, ScriptOutput};
use crate::shared::Shared;

/// Chunks of output between the stream and the driver, for each channel.
const CHUNKS_IN_FLIGHT: usize = 2;

const FIND_SCRIPT: &str = include_str!("../scripts/find.bash");
const CONTROL_SCRIPT: &str = include_str!("../scripts/control.bash");

/// Starts a command.
pub(crate) async fn spawn(
    shared: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<DrivenProcess<RemoteTransport>, SandboxError> {
    if request.read_only_except.is_some() {
        return Err(SandboxError::unsupported(
            "the service has no read-only commands",
        ));
    }
    let active = shared.activate().await?;
    let token = unique_id();
    let start_request = request::build(shared, &request, &token)?;
    let is_terminal = request.pty.is_some();
    let has_input = request::has_input(&request.stdin);
    if has_input && !is_terminal && active.envd.version < Version::CLOSE_STDIN {
        return Err(SandboxError::unsupported(
            "what runs in the sandbox is too old to end a command's input",
        )
        .with_advice("Give the input as a file, or use a newer template."));
    }
    let driver = CommandDriver::new(request, &shared.limits.policy);
    let progress = Arc::new(Progress::default());
    let orders = Orders::new();
    // Kills the command if this start is abandoned, or when all handles are dropped.
    let abandon = orders.abandon.clone().drop_guard();
    let (started, start) = oneshot::channel();
    let (report_sender, reports) = mpsc::unbounded_channel();
    let (stdout_sender, stdout) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let (stderr_sender, stderr) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let control = CommandControl {
        active,
        token: token.clone(),
        request: driver.request().clone(),
        time_limit: driver.time_limit(),
        progress: Arc::clone(&progress),
        orders: orders.clone(),
    };
    let channels = [stdout_sender, stderr_sender];
    shared.spawn_task(control.run(start_request, channels, started, report_sender));
    let leader = start.await.map_err(|_| {
        let message = "the sandbox was closed while the command was started";
        SandboxError::new(SandboxErrorKind::Closed, message)
    })??;
    let input = (has_input || is_terminal).then(|| RemoteInput {
        shared: Arc::clone(shared),
        progress: Arc::clone(&progress),
        is_terminal,
    });
    Ok(driver.drive(StartedCommand {
        transport: Arc::new(RemoteTransport {
            shared: Arc::clone(shared),
            progress,
            token,
            leader,
            orders,
            _abandon: abandon,
        }),
        pid: leader,
        reports,
        stdout,
        stderr,
        input,
    }))
}

/// An operation on all processes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Kill,
    Terminate,
    List,
}

impl Order {
    fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Terminate => "terminate",
            Self::List => "list",
        }
    }
}

/// Finds the processes of a command and performs an operation on them.
async fn order(
    envd: &Envd,
    token: &str,
    leader: Option<u32>,
    order: Order,
) -> Result<ScriptOutput, Fault> {
    let leader = leader.map(|pid| pid.to_string()).unwrap_or_default();
    let text = [FIND_SCRIPT, CONTROL_SCRIPT].concat();
    script::run(envd, &text, &[token, &leader, order.word()]).await
}
