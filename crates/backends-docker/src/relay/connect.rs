//! Connections to ports of the sandbox: each is a task whose stdin and stdout are those of the connection.

use std::io;

use bytes::Buf as _;
use cantle_core::sandbox::{Connection, SandboxError};
use cantle_supervisor::frames::StdioMode;
use cantle_supervisor::tasks::{Task, TaskError};
use cantle_supervisor::wire::{Reader, Report};

use super::connection::ChannelConnection;
use super::files::encode_task;
use super::stream::{CommandHandle, Spawned};
use super::{ANSWER_TIMEOUT, Relay, answer};

/// Kills the task of a connection on drop.
struct KillOnDrop(CommandHandle);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Relay {
    /// Connects to a port; see [`Sandbox::connect`](cantle_core::sandbox::Sandbox::connect).
    ///
    /// # Errors
    /// As there.
    pub async fn open_port(&self, port: u16) -> Result<Connection, SandboxError> {
        let relay = &*self.inner;
        if relay.proxy.is_some() && port == cantle_proxy::PORT {
            let refused = io::ErrorKind::ConnectionRefused.into();
            return Err(SandboxError::connect_failed(port, &refused));
        }
        relay.connections.open(self.connect_port(port)).await
    }

    async fn connect_port(&self, port: u16) -> Result<ChannelConnection<KillOnDrop>, SandboxError> {
        let body = encode_task(&Task::Connect { port }, &[]);
        let mut spawned = self.inner.link.stream.spawn(StdioMode::All, body)?;
        let guard = KillOnDrop(spawned.command.clone());
        let connecting = async {
            let Some(mut first) = spawned.stdout.next().await else {
                return Err(failure(&mut spawned).await);
            };
            // The zero of the task.
            first.advance(1);
            Ok(first)
        };
        let doing = format!("failed to connect to port {port} of the sandbox");
        let connected = answer(ANSWER_TIMEOUT, &doing, connecting).await?;
        let Spawned {
            stdout,
            input: Some(input),
            ..
        } = spawned
        else {
            return Err(self.inner.link.stream.gone_error());
        };
        if self.is_gone() {
            return Err(self.inner.link.stream.gone_error());
        }
        let unread = connected.map_err(|error| SandboxError::connect_failed(port, &error))?;
        Ok(ChannelConnection::new(stdout, unread, input, guard))
    }
}

/// Returns the error of a task that did not connect.
async fn failure(spawned: &mut Spawned) -> io::Error {
    let errno = match spawned.stderr.next().await {
        Some(error) => Reader::new(&error)
            .read::<TaskError<'_>>()
            .map(|it| it.errno),
        None => match spawned.reports.recv().await {
            Some(Report::Failed { errno, .. }) => Some(errno),
            _ => None,
        },
    };
    match errno {
        // Of Linux, on any host system.
        Some(111) => io::ErrorKind::ConnectionRefused.into(),
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::ErrorKind::UnexpectedEof.into(),
    }
}
