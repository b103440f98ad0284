//! Ports of a sandbox: HTTP and WebSocket by headers and by host name, tokens, and ports that do not answer.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle_backends_docker::DockerBackend;
use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::policy::{Policy, Strictness};
use cantle_server::Server;
use cantle_testkit::lane::skip;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    DEADLINE, Sandbox, Stream, TestResponse, TestServer, serve, serve_in, serve_with,
    shared_tempdir,
};

const DOMAIN: &str = "sbx.example.com";
const TRAFFIC: &str = "e2b-traffic-access-token";

/// Starts the HTTP server in a sandbox; returns its port and the command.
async fn start(sandbox: &Sandbox<'_>) -> (u16, Stream) {
    sandbox
        .put("server.py", include_str!("ports_server.py"))
        .await;
    let mut command = sandbox.start("exec python3 server.py", &[]).await;
    loop {
        let event = command.event().await.expect("the server starts");
        if let Some(port) = event["data"]["stdout"].as_str() {
            let port = String::from_utf8(STANDARD.decode(port).unwrap()).unwrap();
            return (port.trim().parse().unwrap(), command);
        }
    }
}

/// A request to a port, identified by headers.
fn to_port(sandbox: &Sandbox<'_>, port: u16, path: &str) -> http::request::Builder {
    Request::get(path)
        .header("host", sandbox.server.address.to_string())
        .header("e2b-sandbox-id", &sandbox.id)
        .header("e2b-sandbox-port", port.to_string())
}

fn empty(request: http::request::Builder) -> Request<Full<Bytes>> {
    request.body(Full::default()).unwrap()
}

/// Checks that a long body comes back as it was sent.
async fn check_echo(sandbox: &Sandbox<'_>, port: u16) {
    let sent: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let post = to_port(sandbox, port, "/echo").method(Method::POST);
    let post = post.body(Full::from(sent.clone())).unwrap();
    let answer = sandbox.server.ask(post).await;
    assert!(answer.body == sent, "{} bytes", answer.body.len());
}

/// Returns the token for the ports of a sandbox.
pub(crate) async fn traffic_token(server: &TestServer, sandbox: &Sandbox<'_>) -> String {
    let connect = format!("/v2/sandboxes/{}/connect", sandbox.id);
    let connected = server
        .control(Method::POST, &connect, Some(json!({})))
        .await;
    connected.json()["trafficAccessToken"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A proxy that terminates TLS for the domain, as an administrator would put it before the server.
struct TlsProxy {
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

fn fixture(name: &str) -> std::path::PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/tls");
    directory.join(name)
}

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_file(fixture("cert.pem")).unwrap()
}

impl TlsProxy {
    async fn start(server: &TestServer) -> Self {
        let key = PrivatePkcs8KeyDer::from(std::fs::read(fixture("key.der")).unwrap());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate()], key.into())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, target) = (listener.local_addr().unwrap(), server.address);
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let mut client = acceptor.accept(stream).await.unwrap();
                    let mut server = TcpStream::connect(target).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self {
            address,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Connects to a host name of the domain, which resolves to the proxy.
    async fn connect(&self, host: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.unwrap()
    }
}

/// The host name that `get_host` of the SDKs returns.
fn host_of(sandbox: &Sandbox<'_>, port: u16) -> String {
    format!("{port}-{}.{DOMAIN}", sandbox.id)
}

/// Opens a WebSocket and returns its stream after the handshake.
async fn open_websocket(
    proxy: &TlsProxy,
    host: &str,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut stream = proxy.connect(host).await;
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(DEADLINE, stream.read_u8())
            .await
            .expect("an answer");
        head.push(byte.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    // The answer to the key above, of RFC 6455.
    let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_lowercase();
    assert!(head.contains(&accept), "{head}");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_a_server_in_the_sandbox_by_headers() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let (port, _command) = start(&sandbox).await;
    let request = to_port(&sandbox, port, "/sandboxes/x?q=1")
        .header("x-access-token", &sandbox.token)
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "1")
        .header("authorization", "Bearer own");
    let answer = server.ask(empty(request)).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let seen = answer.json();
    assert_eq!(seen["path"], "/sandboxes/x?q=1");
    let headers = seen["headers"].as_object().unwrap();
    let names: Vec<_> = headers.keys().map(String::as_str).collect();
    assert_eq!(names, ["authorization", "host"]);

    let options = to_port(&sandbox, port, "/").method(Method::OPTIONS);
    let answer = server.ask(empty(options)).await;
    assert_eq!(answer.json()["path"], "/", "the server's own answer");

    check_echo(&sandbox, port).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn host_names_of_the_domain_reach_ports_through_a_tls_proxy() {
    let server = serve_with(|builder| builder.domain(DOMAIN)).await;
    let proxy = TlsProxy::start(&server).await;
    let sandbox = server.create_default().await;
    let (port, _command) = start(&sandbox).await;
    let host = host_of(&sandbox, port);
    let stream = proxy.connect(&host).await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    for path in ["/one", "/two"] {
        sender.ready().await.unwrap();
        let request = Request::get(path).header("host", &host);
        let answer = timeout(DEADLINE, sender.send_request(empty(request))).await;
        let answer = TestResponse::of(answer.expect("an answer").unwrap()).await;
        assert_eq!(answer.json()["path"], path);
        assert_eq!(answer.json()["headers"]["host"], host.as_str());
    }

    let mut websocket = open_websocket(&proxy, &host).await;
    for text in ["hello", "again"] {
        let mask = [1, 2, 3, 4];
        let length = u8::try_from(text.len()).unwrap();
        let masked = text.bytes().zip(mask.iter().cycle()).map(|(a, b)| a ^ b);
        let frame: Vec<u8> = [0x81, 0x80 | length]
            .into_iter()
            .chain(mask)
            .chain(masked)
            .collect();
        websocket.write_all(&frame).await.unwrap();
        let mut echo = vec![0; 2 + text.len()];
        let read = timeout(DEADLINE, websocket.read_exact(&mut echo)).await;
        read.expect("an echo").unwrap();
        assert_eq!(echo, [&[0x81, length], text.as_bytes()].concat());
    }
    // It ends with the sandbox.
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    let mut rest = Vec::new();
    let ended = timeout(DEADLINE, websocket.read_to_end(&mut rest)).await;
    // Without a TLS close, it ends with an error.
    let _ = ended.expect("the connection ends");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restricted_ports_need_a_token_of_their_own() {
    let server = serve().await;
    let restricted = json!({ "templateID": "base", "network": { "allowPublicTraffic": false } });
    let sandbox = server.create(restricted).await;
    let (port, _command) = start(&sandbox).await;
    let token = traffic_token(&server, &sandbox).await;
    assert_ne!(token, sandbox.token);
    let status = async |port: u16, path: &str, header: Option<(&str, &str)>| {
        let mut request = to_port(&sandbox, port, path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        server.ask(empty(request)).await.status.as_u16()
    };
    // As at E2B, whose SDKs test for it.
    assert_eq!(status(port, "/", None).await, 403);
    assert_eq!(status(port, "/health", None).await, 403);
    assert_eq!(status(port, "/", Some((TRAFFIC, "other"))).await, 403);
    assert_eq!(
        status(port, "/", Some((TRAFFIC, &sandbox.token))).await,
        403
    );
    assert_eq!(status(port, "/", Some((TRAFFIC, &token))).await, 200);
    let access = ("x-access-token", sandbox.token.as_str());
    assert_eq!(status(port, "/", Some(access)).await, 200);
    // The traffic token opens no files and commands.
    assert_eq!(status(49983, "/envs", Some((TRAFFIC, &token))).await, 401);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_that_do_not_answer_are_explained() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let closed = server.ask(empty(to_port(&sandbox, 9, "/"))).await;
    assert_eq!(closed.status, StatusCode::BAD_GATEWAY);
    assert_eq!(
        closed.json(),
        json!({
            "sandboxId": sandbox.id, "port": 9, "code": 502,
            "message": "The sandbox is running but port is not open",
        })
    );
    let line = "exec perl -MIO::Socket::INET -e '$| = 1; $s = IO::Socket::INET->new(Listen => 1, \
                LocalAddr => \"127.0.0.1\"); print $s->sockport; $c = $s->accept; print $c \"SSH-2.0\\n\"; sleep 60'";
    let mut command = sandbox.start(line, &[]).await;
    let port = loop {
        let event = command.event().await.expect("the server starts");
        if let Some(port) = event["data"]["stdout"].as_str() {
            break String::from_utf8(STANDARD.decode(port).unwrap()).unwrap();
        }
    };
    let other = to_port(&sandbox, port.parse().unwrap(), "/");
    let other = server.ask(empty(other)).await;
    assert_eq!(other.status, StatusCode::BAD_GATEWAY);
    let message = message(&other);
    assert!(message.contains("did not answer in HTTP"), "{message}");
    server.stop().await;

    // Without a network of its own: by its policy, or because the machine has no namespaces.
    let shared = serve_with(|builder| builder.policy(Policy::unconfined())).await;
    let directory = shared_tempdir();
    let backend = LocalBackend::new().in_directory(directory.path());
    let backend = backend.without(Mechanism::Namespaces);
    let mut policy = Policy::workspace();
    policy.strictness = Strictness::BestEffort;
    let change = |_| Server::builder(Arc::new(backend)).policy(policy);
    let restricted = serve_in(directory, change).await;
    for server in [shared, restricted] {
        let sandbox = server.create_default().await;
        let answer = server.ask(empty(to_port(&sandbox, 9, "/"))).await;
        assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
        let message = self::message(&answer);
        assert!(
            message.contains("shares this machine's network, or has no network namespace"),
            "{message}"
        );
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_a_server_in_a_container() {
    let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
    let [Ok(host), Ok(image)] = names.map(std::env::var) else {
        return skip("no CANTLE_TEST_DOCKER_HOST; `cargo xtask test` starts an engine");
    };
    let backend = DockerBackend::from_image(image).with_host(host);
    let server = serve_in(shared_tempdir(), |_| Server::builder(Arc::new(backend))).await;
    let sandbox = server.create_default().await;
    let (port, _command) = start(&sandbox).await;
    let answer = server
        .ask(empty(to_port(&sandbox, port, "/inside?q=1")))
        .await;
    assert_eq!(answer.json()["path"], "/inside?q=1");
    check_echo(&sandbox, port).await;
    let closed = server.ask(empty(to_port(&sandbox, 9, "/"))).await;
    assert_eq!(
        message(&closed),
        "The sandbox is running but port is not open"
    );
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    server.stop().await;
}

fn message(answer: &TestResponse) -> String {
    let json: Value = answer.json();
    json["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_not_read_does_not_stop_others() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let (port, _command) = start(&sandbox).await;
    let body = Full::from(vec![b'x'; 32 << 20]);
    let post = to_port(&sandbox, port, "/echo").method(Method::POST);
    let mut unread = server.send(post.body(body).unwrap()).await;
    let answer = server.ask(empty(to_port(&sandbox, port, "/"))).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    // What was broken off is no complete response.
    let broken = async {
        while let Some(frame) = unread.frame().await {
            if frame.is_err() {
                return true;
            }
        }
        false
    };
    assert!(timeout(DEADLINE, broken).await.expect("the response ends"));
    server.stop().await;
}
