//! Commands: each is bash with a script of ours around it, one stream of events, and a task that looks
//! after both.
//!
//! The protocol tells when a process ends and can kill it, and no more. The script adds what a command
//! means elsewhere here: it ends when its own process ends, whatever still holds its channels; how it
//! ended is exact; what it leaves is killed or listed; and what belongs to it can be found, since all of
//! it has a variable that nothing else has.

mod drive;
mod line;
mod marks;
mod process;
mod pump;
pub(crate) mod side;
mod spill;
mod stdin;

use std::sync::Arc;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SpawnRequest, Stdin};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::drive::Driver;
use self::line::Line;
pub(crate) use self::line::check_variable;
pub(crate) use self::process::RemoteProcess;
use self::pump::Progress;
use self::stdin::RemoteStdin;
use crate::sandbox::Shared;

/// Pieces of output between the stream and the reader.
const PIECES_IN_FLIGHT: usize = 16;

const FIND: &str = include_str!("../scripts/find.bash");
const END: &str = include_str!("../scripts/end.bash");

/// Starts a command.
pub(crate) async fn spawn(
    shared: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<RemoteProcess, SandboxError> {
    let awake = shared.awake().await?;
    let token = crate::random_token();
    let line = Line::new(shared, &request, &token)?;
    let is_terminal = line.pty.is_some();
    let feed = match &request.stdin {
        Stdin::Bytes(bytes) if !bytes.is_empty() => Some(bytes.clone()),
        _ => None,
    };
    let takes_input = is_terminal || request.stdin == Stdin::Piped;
    if (feed.is_some() || takes_input && !is_terminal) && !awake.envd.closes_input() {
        return Err(SandboxError::unsupported(
            "what runs in the sandbox is too old to end a command's input",
        )
        .with_advice("Give the input as a file, or use a newer template."));
    }
    let progress = Arc::new(Progress::new(shared.limits.output_bytes));
    let abandoned = CancellationToken::new();
    let handle = abandoned.clone().drop_guard();
    let (reader, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
    let (started, start) = oneshot::channel();
    let (outcome, told) = watch::channel(None);
    let stdin = takes_input.then(|| {
        let (shared, progress) = (Arc::clone(shared), Arc::clone(&progress));
        RemoteStdin::new(shared, progress, is_terminal)
    });
    let driver = Driver {
        shared: Arc::clone(shared),
        awake,
        line,
        token,
        request,
        feed,
        progress: Arc::clone(&progress),
        abandoned,
        reader,
        started,
        outcome,
    };
    shared.attend(driver.run());
    let leader = start.await.map_err(|_| {
        let message = "the sandbox was closed while the command was started";
        SandboxError::new(SandboxErrorKind::Closed, message)
    })??;
    Ok(RemoteProcess::new(
        process::Parts {
            shared: Arc::clone(shared),
            progress,
            leader,
            is_terminal,
            pieces: Some(pieces),
            stdin,
            told,
        },
        handle,
    ))
}

/// What is done to all that belongs to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
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

/// Finds what belongs to a command and does that.
pub(crate) async fn order(
    envd: &crate::envd::Envd,
    token: &str,
    leader: Option<u32>,
    order: Order,
) -> Result<side::Answer, crate::envd::Fault> {
    let leader = leader.map(|pid| pid.to_string()).unwrap_or_default();
    let script = [FIND, END].concat();
    side::run(envd, &script, &[token, &leader, order.word()]).await
}
