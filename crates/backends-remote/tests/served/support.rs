//! A server in this process, and backends for it.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_backends_remote::{RemoteBackend, RemoteBackendBuilder};
use cantle_server::{Server, ServerBuilder};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const KEY: &str = "a-secret-key";

/// Deadline of every wait, generous for slow machines.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct TestServer {
    pub(crate) url: String,
    pub(crate) shutdown: CancellationToken,
    server: JoinHandle<()>,
    _directory: TempDir,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(|builder| builder).await
    }

    pub(crate) async fn start_with(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        let directory = TempDir::new().unwrap();
        let local = LocalBackend::new()
            .in_directory(directory.path())
            .workspace_at("/home/user");
        let server = configure(Server::builder(local))
            .bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let url = format!("http://{}", server.address());
        let shutdown = CancellationToken::new();
        let serving = server.serve(shutdown.clone());
        Self {
            url,
            shutdown,
            server: tokio::spawn(async move { serving.await.unwrap() }),
            _directory: directory,
        }
    }

    pub(crate) fn builder(&self) -> RemoteBackendBuilder {
        RemoteBackend::builder()
            .api_key(KEY)
            .api_url(&self.url)
            .sandbox_url(&self.url)
            .creation_rate(8, Duration::ZERO)
    }

    /// Kills a sandbox through the API.
    pub(crate) async fn kill(&self, id: &str) -> io::Result<()> {
        let answer = self.request("DELETE", id).await?;
        if answer.starts_with("HTTP/1.1 204") {
            return Ok(());
        }
        Err(io::Error::other(answer))
    }

    /// Returns the state of a sandbox as the API reports it.
    pub(crate) async fn state(&self, id: &str) -> Option<String> {
        let answer = self.request("GET", id).await.ok()?;
        let (_, state) = answer.split_once("\"state\":\"")?;
        Some(state.split('"').next()?.to_owned())
    }

    /// Sends an API request for a sandbox and returns the response.
    async fn request(&self, method: &str, id: &str) -> io::Result<String> {
        let address = self.url.trim_start_matches("http://").to_owned();
        let request = format!(
            "{method} /sandboxes/{id} HTTP/1.1\r\nhost: {address}\r\nx-api-key: {KEY}\r\n\
             connection: close\r\n\r\n"
        );
        let exchange = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        exchange.await?
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.server.await.unwrap();
    }
}
