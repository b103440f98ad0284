//! Requests to `cantle serve`.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_core::policy::Policy;
use cantle_server::Server;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{block_on, variant};

/// Longest wait for the end of an answer: streams of running commands and watchers do not end by themselves.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// Method, path and media type of a request with a body.
const REQUESTS: &[(&str, &str, &str)] = &[
    ("POST", "/v2/sandboxes", "application/json"),
    ("GET", "/filesystem.Filesystem/Stat", ""),
    ("POST", "/filesystem.Filesystem/Stat", "application/json"),
    ("POST", "/filesystem.Filesystem/ListDir", "application/json"),
    ("POST", "/filesystem.Filesystem/Move", "application/json"),
    ("POST", "/filesystem.Filesystem/MakeDir", "application/json"),
    (
        "POST",
        "/filesystem.Filesystem/CreateWatcher",
        "application/json",
    ),
    (
        "POST",
        "/filesystem.Filesystem/WatchDir",
        "application/connect+json",
    ),
    ("POST", "/process.Process/Start", "application/connect+json"),
    (
        "POST",
        "/process.Process/Connect",
        "application/connect+json",
    ),
    (
        "POST",
        "/process.Process/StreamInput",
        "application/connect+json",
    ),
    ("POST", "/process.Process/SendInput", "application/json"),
    ("POST", "/process.Process/Update", "application/json"),
    ("POST", "/process.Process/SendSignal", "application/json"),
    ("POST", "/files?path=f", "application/octet-stream"),
    ("POST", "/files", "multipart/form-data; boundary=b"),
];

struct Served {
    address: SocketAddr,
    sandbox: String,
    token: String,
    _directory: TempDir,
}

/// A request to a sandbox; the first byte selects its kind, and the highest kinds are raw bytes.
pub(crate) fn requests(data: &[u8]) {
    thread_local! {
        static SERVED: OnceCell<Served> = const { OnceCell::new() };
    }
    let Some((kind, data)) = variant(data) else {
        return;
    };
    SERVED.with(|served| {
        let served = served.get_or_init(|| block_on(serve()));
        let request = match REQUESTS.get(kind) {
            Some((method, path, media)) => {
                let headers = format!("{}content-type: {media}\r\n", served.headers());
                message(method, path, &headers, data)
            }
            None => {
                // Without the last line, so that the input may continue the head.
                [
                    format!("GET /files HTTP/1.1\r\n{}", served.headers()).as_bytes(),
                    data,
                ]
                .concat()
            }
        };
        let answer = block_on(served.ask(&request, ANSWER_TIME));
        assert!(
            !answer.starts_with(b"HTTP/1.1 500"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    });
}

fn message(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

async fn serve() -> Served {
    let directory = tempfile::tempdir().unwrap();
    // Commands run as another user if this one is root.
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let backend = LocalBackend::new()
        .in_directory(directory.path())
        .workspace_at("/home/user");
    let mut policy = Policy::workspace();
    for limit in ["disk=16M", "inodes=1000", "processes=64", "wall_time=5"] {
        policy.limits.set(limit).unwrap();
    }
    let server = Server::builder(Arc::new(backend)).policy(policy);
    let server = server.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut served = Served {
        address: server.address(),
        sandbox: String::new(),
        token: String::new(),
        _directory: directory,
    };
    tokio::spawn(server.serve(CancellationToken::new()));
    let headers = format!(
        "host: {}\r\nx-api-key: key\r\ncontent-type: application/json\r\nconnection: close\r\n",
        served.address
    );
    let request = message(
        "POST",
        "/v2/sandboxes",
        &headers,
        br#"{"templateID":"base"}"#,
    );
    let answer = served.ask(&request, Duration::from_mins(1)).await;
    let at = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    let made: Value = serde_json::from_slice(&answer[at + 4..]).unwrap();
    made["sandboxID"]
        .as_str()
        .unwrap()
        .clone_into(&mut served.sandbox);
    made["envdAccessToken"]
        .as_str()
        .unwrap()
        .clone_into(&mut served.token);
    served
}

impl Served {
    fn headers(&self) -> String {
        format!(
            "host: {}\r\nx-api-key: key\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 49983\r\nx-access-token: {}\r\n\
             connect-protocol-version: 1\r\nconnection: close\r\n",
            self.address, self.sandbox, self.token
        )
    }

    async fn ask(&self, request: &[u8], time: Duration) -> Vec<u8> {
        let mut answer = Vec::new();
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let exchange = async {
            // The server may answer and close before it has read everything.
            let _ = stream.write_all(request).await;
            let _ = (&mut stream).take(1 << 20).read_to_end(&mut answer).await;
        };
        let _ = timeout(time, exchange).await;
        answer
    }
}
