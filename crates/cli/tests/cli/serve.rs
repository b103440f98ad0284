//! `cantle serve`, with `cantle exec --backend remote` as its client.

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::finish;
use crate::support::{DEADLINE, Mark, TestEnv, peer, wait_for_exit};

/// A running program and its output lines.
pub(crate) struct RunningProgram {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RunningProgram {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn next_line(&mut self) -> String {
        let line = timeout(DEADLINE, self.lines.next_line()).await;
        line.unwrap().unwrap().unwrap()
    }

    /// Sends SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Starts a server, and returns it with an environment for its clients.
pub(crate) async fn serve(env: &TestEnv, backend: &str) -> (RunningProgram, TestEnv) {
    serve_with(env, backend, &[]).await
}

/// Starts a server with more flags.
pub(crate) async fn serve_with(
    env: &TestEnv,
    backend: &str,
    flags: &[&str],
) -> (RunningProgram, TestEnv) {
    let args = ["serve", "--listen", "127.0.0.1:0", "--backend", backend];
    let mut server = RunningProgram::start(env.command(args.iter().chain(flags)));
    let line = server.next_line().await;
    let (_, variables) = line.split_once(": ").unwrap();
    let mut client = TestEnv::new();
    for variable in variables.split(' ') {
        let (name, value) = variable.split_once('=').unwrap();
        client = client.set(name, value);
    }
    (server, client)
}

#[tokio::test]
async fn an_address_in_use_is_explained() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let exited = TestEnv::new().run(["serve", "--listen", &address]).await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    assert!(exited.stderr.contains(&address), "{exited:?}");
    assert!(exited.stderr.contains("with --listen"), "{exited:?}");
}

#[tokio::test]
async fn a_state_directory_in_use_is_explained() {
    let env = TestEnv::new();
    let args = ["serve", "--listen", "127.0.0.1:0"];
    let mut server = RunningProgram::start(env.command(args));
    server.next_line().await;
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    assert!(exited.stderr.contains("in use"), "{exited:?}");
    assert!(exited.stderr.contains("CANTLE_STATE_DIR"), "{exited:?}");
    server.kill().await;
}

/// Returns the arguments of a client that prints its host name, which is a container's id, and keeps running.
fn long_running(mark: &Mark) -> [String; 7] {
    let line = format!("cat /etc/hostname || echo none; bash -c 'sleep 1000; true' {mark}; true");
    ["exec", "--backend", "remote", "--", "sh", "-c", &line].map(str::to_owned)
}

/// Waits until a container is removed.
async fn is_gone(host: &str, container: &str) {
    let filter = format!("id={container}");
    let args = [
        "--host", host, "ps", "--all", "--quiet", "--filter", &filter,
    ];
    let gone = async {
        loop {
            let listed = Command::new("docker").args(args).output().await.unwrap();
            assert!(listed.status.success(), "{listed:?}");
            if listed.stdout.is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    timeout(DEADLINE, gone).await.unwrap();
}

#[tokio::test]
async fn killed_server_fails_its_client_and_leaves_nothing() {
    let env = TestEnv::new();
    let (server, client) = serve(&env, "local").await;
    let mark = Mark::new(&env);
    let mut command = RunningProgram::start(client.command(long_running(&mark)));
    command.next_line().await;
    mark.appeared().await;
    server.kill().await;
    let exited = wait_for_exit(command.child).await;
    assert_eq!(exited.code, Some(125), "{exited:?}");
    mark.gone().await;
    // The next server removes the directories.
    let remaining = || env.list(".local/state/cantle/serve-workspaces");
    assert_ne!(remaining(), [""; 0]);
    let (_server, _) = serve(&env, "local").await;
    assert_eq!(remaining(), [""; 0]);
}

#[tokio::test]
async fn killed_server_or_client_leaves_no_container() {
    let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
    let Some([host, image]) = peer("docker", names) else {
        return;
    };
    let env = TestEnv::new().set("DOCKER_HOST", &host);
    let backend = format!("docker:{image}");
    let mark = Mark::new(&env);

    let (server, client) = serve(&env, &backend).await;
    let mut command = RunningProgram::start(client.command(long_running(&mark)));
    let container = command.next_line().await;
    server.kill().await;
    let exited = wait_for_exit(command.child).await;
    assert_eq!(exited.code, Some(125), "{exited:?}");
    mark.gone().await;
    is_gone(&host, &container).await;

    let args = long_running(&mark).map(|word| match &*word {
        "remote" => backend.clone(),
        _ => word,
    });
    let mut command = RunningProgram::start(env.command(args));
    let container = command.next_line().await;
    command.kill().await;
    mark.gone().await;
    is_gone(&host, &container).await;
}

#[tokio::test]
async fn python_keeps_its_variables_in_a_remote_sandbox() {
    let env = TestEnv::new();
    let (server, client) = serve(&env, "local").await;
    client.write("program.py", "import sys\nprint('out')\nsys.exit(3)\n");
    let exited = client
        .run([
            "python",
            "--backend",
            "remote",
            "--best-effort",
            "program.py",
        ])
        .await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(3), "out\n"),
        "{exited:?}"
    );

    let python = |code: &str| Turn::tool(ToolCall::new("python", json!({ "code": code })));
    let script = Script::new()
        .turn(python("x = 20"))
        .turn(python(
            "open('x.txt', 'w').write('x')\nprint('printed')\nx + 1",
        ))
        .turn(finish("done", &["x.txt"]));
    let model = ScriptedServer::start(script).await.unwrap();
    let client = client.with_server(&model.url());
    let args = [
        "run",
        "Add",
        "--tools",
        "python",
        "--backend",
        "remote",
        "--best-effort",
    ];
    let exited = client
        .run(args.iter().chain(&["--output-dir", "out"]))
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(client.read("out/x.txt"), "x");
    let messages = model.requests()[2].body()["messages"].to_string();
    assert!(
        messages.contains("<stdout>printed</stdout>\\n<result>21</result>"),
        "{messages}"
    );
    server.kill().await;
}
