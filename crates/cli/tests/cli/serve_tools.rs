//! `cantle serve --tools`, with raw requests.

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;

use crate::support::{DEADLINE, TestEnv, own_address, send, wait_for_exit};

/// A running server.
pub(crate) struct Server {
    child: Child,
    address: String,
}

impl Server {
    async fn start(env: &TestEnv, listen: &str) -> Self {
        let args = ["--tools", "--listen", listen, "--key-file", "keys"];
        let args = args.into_iter().chain(["--principals", "principals"]);
        Self::start_with(env, args).await
    }

    pub(crate) async fn start_with<'a>(
        env: &TestEnv,
        args: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let args = ["serve"].into_iter().chain(args);
        let mut child = env.command(args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let line = timeout(DEADLINE, lines.next_line()).await.unwrap();
        let line = line.unwrap().unwrap();
        let address = line.strip_prefix("listening on ").unwrap();
        let address = address.split_once(": ").unwrap().0.to_owned();
        Self { child, address }
    }

    /// Returns the status and the body of an answer.
    pub(crate) async fn request(&self, head: &str, body: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(&self.address).await.unwrap();
        let request = format!(
            "{head}\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reading = timeout(DEADLINE, connection.read_to_string(&mut answer)).await;
        reading.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    async fn call(&self, key: &str, tool: &str, arguments: Value) -> Value {
        let head = format!("POST /execute HTTP/1.1\r\nauthorization: Bearer {key}");
        let call = json!({"tool_name": format!("code_executor.{tool}"), "arguments": arguments});
        let (status, body) = self.request(&head, &call.to_string()).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) async fn stop(self) {
        send(&self.child, Signal::TERM);
        let exited = wait_for_exit(self.child).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
    }
}

fn env() -> TestEnv {
    let env = TestEnv::new();
    env.write("keys", "service-token\n");
    env.write("principals", "alices-key alice user\n");
    env
}

#[tokio::test]
async fn files_and_their_addresses_survive_a_restart() {
    let env = env();
    // Nothing else takes it between the two servers.
    let address = own_address(8001);
    let server = Server::start(&env, &address).await;
    let code = json!({"code": "open('/tmp/chart.svg', 'w').write('<svg/>')"});
    let made = server.call("alices-key", "run_python", code).await;
    let url = made["result"]["files"][0]["url"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = url.strip_prefix(&format!("http://{address}")).unwrap();
    server.stop().await;

    let server = Server::start(&env, &address).await;
    let (status, content) = server.request(&format!("GET {path} HTTP/1.1"), "").await;
    assert_eq!((status, &*content), (200, "<svg/>"));
    let listed = server.call("alices-key", "list_files", json!({})).await;
    assert_eq!(listed["result"]["files"][0]["filename"], "chart.svg");
    // The service token has files of its own, and the level of a guest.
    let listed = server.call("service-token", "list_files", json!({})).await;
    assert_eq!(listed["result"], json!({"files": []}));
    server.stop().await;
    assert_eq!(env.list(".local/state/cantle/serve-workspaces"), [""; 0]);
}

#[tokio::test]
async fn code_reads_no_key_and_no_stored_file() {
    let env = env();
    let server = Server::start(&env, "127.0.0.1:0").await;
    let create = json!({"filename": "a.txt", "content": "stored-text"});
    server
        .call("service-token", "create_document", create)
        .await;
    let home = env.path("").display().to_string();
    assert_eq!(
        env.list(".local/state/cantle/serve"),
        ["lock", "sandboxes", "url-key"]
    );
    let code = format!(
        "import os\n\
         found = [os.path.join(d, f) for d, _, fs in os.walk({home:?}) for f in fs]\n\
         print([f for f in found if 'serve-workspaces' not in f])\n\
         print([k for k in os.environ if k.startswith(('CANTLE', 'AWS', 'PG'))])"
    );
    let python = server
        .call("alices-key", "run_python", json!({"code": code}))
        .await;
    assert_eq!(python["result"]["stdout"], "[]\n[]\n", "{python}");
    let names = "keys principals .local/state/cantle/serve/url-key .local/state/cantle/files/catalogue.sqlite";
    for name in names.split(' ') {
        let command = json!({"command": format!("cat {home}/{name}")});
        let shell = server.call("alices-key", "run_shell", command).await;
        assert_eq!(
            (&shell["success"], &shell["result"]["stdout"]),
            (&json!(false), &json!("")),
            "{name}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn settings_that_can_not_work_are_refused() {
    let env = env();
    for (args, code, message) in [
        (&["--files-url", "http://example.com"][..], 2, "--tools"),
        (
            &["--tools", "--store", "s3://bucket"],
            2,
            "a bucket needs a catalogue",
        ),
        (
            &["--tools", "--store", "ftp://bucket"],
            2,
            "`ftp://bucket` is not a store",
        ),
        (
            &["--store", "files"],
            2,
            "--store has no effect without --tools",
        ),
        (&["--principals", "keys"], 2, "`KEY ID [LEVEL]`"),
    ] {
        let listen = ["serve", "--listen", "127.0.0.1:0"];
        let exited = env.run(listen.iter().chain(args)).await;
        assert_eq!(exited.code, Some(code), "{exited:?}");
        assert!(exited.stderr.contains(message), "{exited:?}");
        assert!(!exited.stderr.contains("service-token"), "{exited:?}");
    }
}
