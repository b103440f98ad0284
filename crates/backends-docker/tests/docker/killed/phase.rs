//! Activities in a sandbox at the time of a kill.

use std::future::{Future, pending};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use cantle_core::ids::RunId;
use cantle_core::sandbox::{
    Background, ByteRange, ExitStatus, OutputOptions, OutputStream, Process, Sandbox, SandboxError,
    SandboxExt as _, SandboxPath, SpawnRequest, Stdin, WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::entries;
use crate::support::{DEADLINE, eventually, stdout};

/// The activity in a sandbox at the time of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No activity.
    Idle,
    /// A command runs without output.
    Command,
    /// A kept background process runs.
    Background,
    /// Input is sent to a command that doesn't read it.
    Input,
    /// A command writes continuously.
    Output,
    /// A file is written, and its source stalls.
    Upload,
    /// A file of a known size is written, which may use another transfer method.
    SizedUpload,
    /// A file is read.
    Download,
    /// Files are copied into an output directory.
    Saving,
    /// The sandbox is being closed.
    Closing,
}

impl Phase {
    pub(super) const ALL: [Self; 10] = [
        Self::Idle,
        Self::Command,
        Self::Background,
        Self::Input,
        Self::Output,
        Self::Upload,
        Self::SizedUpload,
        Self::Download,
        Self::Saving,
        Self::Closing,
    ];

    /// The phases that are supported without the supervisor.
    pub(super) const PLAIN: [Self; 5] = [
        Self::Idle,
        Self::Command,
        Self::Output,
        Self::Upload,
        Self::Download,
    ];

    pub(super) fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|phase| format!("{phase:?}") == name).unwrap()
    }
}

/// The call that was in progress; it completes with the sandbox's end.
///
/// Contains the exit status if the call was a command's wait.
pub(super) type PendingCall =
    Pin<Box<dyn Future<Output = Result<Option<ExitStatus>, SandboxError>> + Send>>;

/// A sparse file that takes longer to read than any test.
const LARGE: &str = "truncate -s 100G large";
/// Sparse files that take as long to save, although each fits on a small disk.
const LARGE_OUTPUTS: &str = "truncate -s 128M $(seq 64)";
const LARGE_INPUT: usize = 64 << 20;

pub(super) fn path(path: &str) -> SandboxPath {
    SandboxPath::new(path).unwrap()
}

async fn start(sandbox: &dyn Sandbox, request: SpawnRequest) -> (Box<dyn Process>, OutputStream) {
    let mut process = sandbox.spawn(request).await.unwrap();
    let output = process.take_output().unwrap();
    (process, output)
}

async fn read_until(output: &mut OutputStream, word: &str) {
    let mut text = String::new();
    while !text.contains(word) {
        let chunk = timeout(DEADLINE, output.next()).await.unwrap();
        text += &String::from_utf8_lossy(&chunk.expect("the stream ended").unwrap().bytes);
    }
}

/// Starts a phase's activity, and returns once it is in progress.
///
/// Commands have `mark` in their environment; outputs are saved in `directory`.
pub(super) async fn begin(
    sandbox: &Arc<dyn Sandbox>,
    phase: Phase,
    mark: RunId,
    directory: &Path,
) -> PendingCall {
    let shell = |line: &str| SpawnRequest::shell(line).with_env("MARK", mark.to_string());
    let sandbox = Arc::clone(sandbox);
    let poll = async |sandbox: Arc<dyn Sandbox>| loop {
        sandbox.run(SpawnRequest::shell("true")).await?;
    };
    match phase {
        Phase::Idle => Box::pin(poll(sandbox)),
        Phase::Background => {
            let request = shell("setsid sleep 1000 & true").with_background(Background::Keep);
            sandbox.run(request).await.unwrap();
            Box::pin(poll(sandbox))
        }
        Phase::Command | Phase::Closing => {
            let line = "echo begun; setsid sleep 1000 & sleep 1000";
            let (mut process, mut output) = start(&*sandbox, shell(line)).await;
            read_until(&mut output, "begun").await;
            if phase == Phase::Command {
                return Box::pin(async move { process.wait().await.map(|exit| Some(exit.status)) });
            }
            let closing = tokio::spawn(async move {
                let _process = process;
                sandbox.close().await
            });
            Box::pin(async move { closing.await.unwrap().map(|()| None) })
        }
        Phase::Input => {
            let line = "head -c 1000 > /dev/null; echo begun; sleep 1000";
            let (mut process, mut output) =
                start(&*sandbox, shell(line).with_stdin(Stdin::Piped)).await;
            let mut input = process.take_stdin().unwrap();
            let writing =
                tokio::spawn(async move { input.write(vec![b'x'; LARGE_INPUT].into()).await });
            read_until(&mut output, "begun").await;
            Box::pin(async move {
                let written = writing.await.unwrap();
                assert!(written.is_err(), "unread input was written");
                process.wait().await.map(|exit| Some(exit.status))
            })
        }
        Phase::Output => {
            let (mut process, mut output) = start(&*sandbox, shell("yes")).await;
            read_until(&mut output, "y").await;
            Box::pin(async move {
                while let Some(Ok(_)) = output.next().await {}
                process.wait().await.map(|exit| Some(exit.status))
            })
        }
        Phase::Upload | Phase::SizedUpload => {
            let (requested, begun) = oneshot::channel();
            // The first chunks have been consumed when more is requested.
            let more = stream::once(async move {
                requested.send(()).unwrap();
                pending().await
            });
            let first = stream::iter(0..16).map(|_| Ok(vec![b'x'; 1 << 20].into()));
            let data = Box::pin(first.chain(more));
            let mut options = WriteOptions::default();
            if phase == Phase::SizedUpload {
                options = options.with_size(1 << 30);
            }
            let writing =
                tokio::spawn(
                    async move { sandbox.write(&path("new/upload"), options, data).await },
                );
            timeout(DEADLINE, begun).await.unwrap().unwrap();
            Box::pin(async move { writing.await.unwrap().map(|()| None) })
        }
        Phase::Download => {
            stdout(&*sandbox, LARGE).await;
            let mut data = sandbox
                .read(&path("large"), ByteRange::all())
                .await
                .unwrap();
            data.next().await.expect("the stream ended").unwrap();
            Box::pin(async move {
                while let Some(chunk) = data.next().await {
                    chunk?;
                }
                Ok(None)
            })
        }
        Phase::Saving => {
            stdout(&*sandbox, LARGE_OUTPUTS).await;
            let to = directory.to_owned();
            let files: Vec<_> = (1..=64).map(|number| number.to_string()).collect();
            let saving = tokio::spawn(async move {
                sandbox
                    .save_outputs(&files, &to, OutputOptions::default())
                    .await
            });
            eventually("the output file", || entries(directory) > 0);
            Box::pin(async move { saving.await.unwrap().map(|_| None) })
        }
    }
}
