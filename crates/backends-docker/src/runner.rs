//! How commands run and files are accessed: by the supervisor in the container, or by execs of the engine.

use std::ffi::OsString;
use std::sync::Arc;

use cantle_core::policy::Limits;
use cantle_core::sandbox::SandboxError;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::container::{Container, ContainerStream};
use crate::environment::Variables;
use crate::options::Options;
use crate::plain::ExecRunner;
use crate::relay::{Relay, RelayOptions};

/// How commands run and files are accessed.
#[derive(Debug)]
pub(crate) enum CommandRunner {
    Supervised(Relay),
    Exec {
        runner: Arc<ExecRunner>,
        /// Task that keeps the container alive and notices its end.
        watch: Mutex<Option<AbortOnDropHandle<()>>>,
    },
}

impl CommandRunner {
    /// Connects to the supervisor.
    pub(crate) async fn supervised(
        stream: ContainerStream,
        mut options: RelayOptions,
        variables: &Variables,
        limits: &Limits,
    ) -> Result<Self, SandboxError> {
        let pairs = variables.iter();
        options.environment = pairs
            .map(|(name, value)| (OsString::from(name), OsString::from(value.expose())))
            .collect();
        options.limits = limits.clone();
        let connected = Relay::connect_chunks(stream.stdout, stream.stdin, options).await;
        connected.map(Self::Supervised).map_err(|error| {
            let stderr = stream.stderr.text();
            if stderr.is_empty() {
                return error;
            }
            SandboxError::unavailable(format!("{error}: {stderr}"))
        })
    }

    /// Runs commands as execs in a container; `end` completes when that has ended.
    pub(crate) fn exec(
        container: &Container,
        options: &Options,
        variables: Variables,
        limits: &Limits,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let gone = CancellationToken::new();
        let runner = ExecRunner::new(container, options, variables, limits, gone.clone());
        let watch = tokio::spawn(async move {
            let _guard = gone.drop_guard();
            end.await;
        });
        Self::Exec {
            runner,
            watch: Mutex::new(Some(AbortOnDropHandle::new(watch))),
        }
    }

    /// Whether commands have the system call filter of local sandboxes.
    pub(crate) fn has_filter(&self) -> bool {
        matches!(self, Self::Supervised(relay) if relay.has_filter())
    }

    /// Closes the stream, which ends all commands.
    pub(crate) async fn end_commands(&self) {
        match self {
            Self::Supervised(relay) => {
                // Removing the container kills a supervisor that doesn't exit.
                if let Err(error) = relay.close().await {
                    tracing::debug!(%error, "the supervisor did not exit in time");
                }
            }
            Self::Exec { watch, .. } => {
                watch.lock().take();
            }
        }
    }
}
