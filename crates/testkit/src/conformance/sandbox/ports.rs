//! Connections to servers inside the sandbox.

use cantle_core::policy::Strictness;
use cantle_core::sandbox::{Connection, MAX_CONNECTIONS};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};

use super::prelude::*;

const MEGABYTE: usize = 1_000_000;

cases! { cases for Harness:
    a_connection_reaches_a_server.optional(),
    a_port_without_a_server_is_reported.optional(),
    connections_are_bounded.optional(),
    connections_end_with_the_sandbox.optional(),
}

/// A server that returns what it receives, and prints its port first.
const SERVERS: [&str; 2] = [
    r#"exec perl -e 'use Socket; $| = 1; $SIG{CHLD} = "IGNORE";
socket(S, PF_INET, SOCK_STREAM, 0) and bind(S, pack_sockaddr_in(0, INADDR_LOOPBACK)) and listen(S, 128) or die $!;
print((unpack_sockaddr_in(getsockname(S)))[0], "\n");
while (accept(C, S)) {
    if (!fork) { while (sysread(C, my $data, 65536)) { while (length $data) { substr($data, 0, syswrite(C, $data)) = "" } } exit }
    close C;
}'"#,
    r#"exec python3 -uc '
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 128
server = Server(("127.0.0.1", 0), Echo)
print(server.server_address[1])
server.serve_forever()'"#,
];

/// A sandbox with a loopback interface of its own, and a server in it.
struct Served {
    sandbox: Arc<dyn Sandbox>,
    port: u16,
    _server: Box<dyn Process>,
}

impl Served {
    async fn start(bench: &Bench<'_>) -> Checked<Self> {
        let sandbox = isolated(bench).await?;
        // Without ports, sandboxes may refuse the server's socket.
        let connecting = sandbox.connect(9).await;
        refused("connecting to a closed port", connecting, &[NotFound])?;
        for (program, server) in ["perl", "python3"].into_iter().zip(SERVERS) {
            let found = sandbox.run(SpawnRequest::shell(format!("command -v {program}")));
            if found.await?.exit.status != ExitStatus::Code(0) {
                continue;
            }
            let mut process = sandbox.spawn(SpawnRequest::shell(server)).await?;
            let line = read_until(&mut take_output(&mut *process)?, "\n").await?;
            let port = line.trim().parse();
            let port = port.map_err(|_| Failure::new(format!("the server printed {line:?}")))?;
            return Ok(Self {
                sandbox,
                port,
                _server: process,
            });
        }
        Err(Failure::skip("a server needs perl or python3"))
    }

    async fn connect(&self) -> Checked<Connection> {
        let connecting = self.sandbox.connect(self.port);
        Ok(step("a connection", connecting).await??)
    }
}

/// Opens a sandbox whose policy separates its network from the host's, where that is possible.
async fn isolated(bench: &Bench<'_>) -> Checked<Arc<dyn Sandbox>> {
    let mut policy = Policy::workspace();
    policy.strictness = Strictness::BestEffort;
    Ok(bench.open(policy).await?)
}

async fn a_connection_reaches_a_server(bench: &Bench<'_>) -> Checked {
    let served = Served::start(bench).await?;
    let sent: Vec<u8> = (0..=255).cycle().take(MEGABYTE).collect();
    let (mut reader, mut writer) = split(served.connect().await?);
    let mut received = Vec::new();
    let both = async {
        let writing = async {
            writer.write_all(&sent).await?;
            writer.shutdown().await
        };
        // The server closes its direction after ours has ended.
        tokio::try_join!(writing, reader.read_to_end(&mut received))
    };
    step("the exchange", both).await??;
    same_bytes("what the server returned", &received, &sent)
}

async fn a_port_without_a_server_is_reported(bench: &Bench<'_>) -> Checked {
    let sandbox = isolated(bench).await?;
    let connecting = sandbox.connect(9);
    let connected = step("the refusal", connecting).await?;
    refused("connecting to a closed port", connected, &[NotFound])
}

async fn connections_are_bounded(bench: &Bench<'_>) -> Checked {
    let served = Served::start(bench).await?;
    let mut connections = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        connections.push(served.connect().await?);
    }
    let more = served.sandbox.connect(served.port).await;
    refused(
        "one connection more",
        more,
        &[SandboxErrorKind::Unavailable],
    )?;
    connections.pop();
    let mut connection = served.connect().await?;
    let echo = async {
        connection.write_all(b"text").await?;
        connection.flush().await?;
        let mut received = [0; 4];
        connection.read_exact(&mut received).await?;
        Checked::Ok(received)
    };
    equal("the echo", step("the echo", echo).await??, *b"text")
}

async fn connections_end_with_the_sandbox(bench: &Bench<'_>) -> Checked {
    let served = Served::start(bench).await?;
    let mut connection = served.connect().await?;
    step("the end of `close`", served.sandbox.close()).await??;
    let mut rest = Vec::new();
    // The end, or an error.
    let _ = step(
        "the end of the connection",
        connection.read_to_end(&mut rest),
    )
    .await?;
    let more = served.sandbox.connect(served.port).await;
    refused("connecting to a closed sandbox", more, &[Closed])
}
