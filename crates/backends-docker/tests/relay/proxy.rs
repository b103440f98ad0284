//! Connections to the proxy, carried over the relay's stream.

use std::net::SocketAddr;
use std::sync::Arc;

use cantle_core::sandbox::{ExitStatus, Sandbox as _, SandboxExt as _, SpawnRequest};
use cantle_proxy::ProxySettings;
use cantle_supervisor::frames::MAX_CONNECTIONS;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{DEADLINE, RelayBackend, RelaySandbox, soon};

/// The start of a client in Python, which requests tunnels to the server.
const CLIENT: &str = "import socket, sys, threading\n\
    proxy, server = (int(argument) for argument in sys.argv[1:3])\n\
    def connect():\n\
    \x20   return socket.create_connection(('127.0.0.1', proxy), timeout=50)\n\
    def tunnel():\n\
    \x20   connection = connect()\n\
    \x20   connection.sendall(b'CONNECT allowed.example.com:%d HTTP/1.1\\r\\n\\r\\n' % server)\n\
    \x20   head = b''\n\
    \x20   while not head.endswith(b'\\r\\n\\r\\n'):\n\
    \x20       head += connection.recv(1)\n\
    \x20   assert b' 200 ' in head, head\n\
    \x20   return connection\n";

/// A server on loopback, and a sandbox whose proxy allows it under the name `allowed.example.com`.
struct World {
    sandbox: Arc<RelaySandbox>,
    proxy: u16,
    server: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl World {
    async fn new<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        let host = format!("allowed.example.com:{}", server.port())
            .parse()
            .unwrap();
        let settings = ProxySettings::new(vec![host]).reaching(server);
        let backend = RelayBackend::own_user().with_proxy(settings);
        Self {
            proxy: backend.proxy_port(),
            sandbox: backend.sandbox().await,
            server,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    fn client(&self, code: &str) -> SpawnRequest {
        let code = format!("{CLIENT}{code}");
        let [proxy, server] = [self.proxy, self.server.port()].map(|port| port.to_string());
        SpawnRequest::argv(["python3", "-c", &code, &proxy, &server]).with_timeout(DEADLINE)
    }

    async fn run(&self, code: &str) -> String {
        let output = soon(self.sandbox.run(self.client(code))).await.unwrap();
        assert_eq!(output.exit.status, ExitStatus::Code(0), "{output:?}");
        output.stdout.text()
    }
}

async fn echo(mut stream: TcpStream) {
    let (mut reader, mut writer) = stream.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_carry_data_both_ways_and_their_ends() {
    let world = World::new(echo).await;
    let code = "data = bytes(range(251)) * 40000\n\
        def exchange(number):\n\
        \x20   connection = tunnel()\n\
        \x20   def send():\n\
        \x20       connection.sendall(data)\n\
        \x20       connection.shutdown(socket.SHUT_WR)\n\
        \x20   threading.Thread(target=send).start()\n\
        \x20   received = b''.join(iter(lambda: connection.recv(100000), b''))\n\
        \x20   print(received == data)\n\
        threads = [threading.Thread(target=exchange, args=(number,)) for number in range(3)]\n\
        for thread in threads: thread.start()\n\
        for thread in threads: thread.join()";
    assert_eq!(world.run(code).await, "True\n".repeat(3));
    world.sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded_and_commands_run_beside_them() {
    let world = World::new(echo).await;
    let more = MAX_CONNECTIONS * 2;
    let code = format!(
        "import time\n\
        tunnels = [tunnel() for _ in range({MAX_CONNECTIONS})]\n\
        waiting = [connect() for _ in range({more} - {MAX_CONNECTIONS})]\n\
        waiting[0].sendall(b'GET http://other.example.com/ HTTP/1.1\\r\\n\\r\\n')\n\
        waiting[0].settimeout(0.3)\n\
        try:\n\
        \x20   print(waiting[0].recv(1))\n\
        except TimeoutError:\n\
        \x20   print('waits')\n\
        for each in tunnels:\n\
        \x20   each.sendall(b'x')\n\
        \x20   assert each.recv(1) == b'x'\n\
        tunnels[0].close()\n\
        waiting[0].settimeout(50)\n\
        print(waiting[0].recv(12))"
    );
    assert_eq!(world.run(&code).await, "waits\nb'HTTP/1.1 403'\n");
    // All ended with their client.
    let code = format!("print(len([tunnel() for _ in range({MAX_CONNECTIONS})]))");
    assert_eq!(world.run(&code).await, format!("{MAX_CONNECTIONS}\n"));
    world.sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_connection_delays_nothing_else() {
    let world =
        World::new(
            |mut stream| async move { while stream.write_all(&[b'x'; 10_000]).await.is_ok() {} },
        )
        .await;
    let code = "unread = [tunnel() for _ in range(8)]\n\
        print('ready', flush=True)\n\
        sys.stdin.read()";
    let mut request = world.client(code);
    request.stdin = cantle_core::sandbox::Stdin::Piped;
    let mut process = world.sandbox.spawn(request).await.unwrap();
    let mut output = process.take_output().unwrap();
    soon(futures_util::StreamExt::next(&mut output))
        .await
        .unwrap()
        .unwrap();
    let code = "connection = tunnel()\n\
        left = 20_000_000\n\
        while left > 0: left -= len(connection.recv(100000))\n\
        print('read')";
    assert_eq!(world.run(code).await, "read\n");
    drop(process);
    world.sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_hosts_are_noted_in_the_result_or_before() {
    let world = World::new(echo).await;
    let code = "connection = connect()\n\
        connection.sendall(b'CONNECT other.example.com:443 HTTP/1.1\\r\\n\\r\\n')\n\
        print(connection.recv(12))";
    let output = world.sandbox.run(world.client(code)).await.unwrap();
    assert_eq!(output.stdout.text(), "b'HTTP/1.1 403'\n");
    let [note] = &*output.exit.notes else {
        panic!("{output:?}");
    };
    assert!(
        note.starts_with("network: `other.example.com:443` was refused: it is not allowed"),
        "{note}"
    );
    let mut request = world.client(&format!("{code}\nsys.stdout.flush()\nsys.stdin.read()"));
    request.stdin = cantle_core::sandbox::Stdin::Piped;
    let mut process = world.sandbox.spawn(request).await.unwrap();
    let mut printed = process.take_output().unwrap();
    soon(futures_util::StreamExt::next(&mut printed))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(process.take_notes(), output.exit.notes);
    drop(process.take_stdin());
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.notes, [""; 0]);
    world.sandbox.close().await.unwrap();
}
