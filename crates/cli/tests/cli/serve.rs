//! `cantle serve`, with `cantle exec --backend remote` as its client.

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::support::{DEADLINE, Mark, Place, ended, peer};

/// A program that runs, and what it says line by line.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn says(&mut self) -> String {
        let line = timeout(DEADLINE, self.lines.next_line()).await;
        line.unwrap().unwrap().unwrap()
    }

    /// With SIGKILL.
    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Starts a server in a place, and gives its clients a place of their own that knows it.
async fn serve(place: &Place, backend: &str) -> (Running, Place) {
    let args = ["serve", "--listen", "127.0.0.1:0", "--backend", backend];
    let mut server = Running::start(place.command(args));
    let line = server.says().await;
    let (_, variables) = line.split_once(": ").unwrap();
    let mut client = Place::new();
    for variable in variables.split(' ') {
        let (name, value) = variable.split_once('=').unwrap();
        client = client.set(name, value);
    }
    (server, client)
}

/// What a client runs: it says the name of its machine, which is a container's id, and stays.
fn staying(mark: &Mark) -> [String; 7] {
    let line = format!("cat /etc/hostname || echo none; bash -c 'sleep 1000; true' {mark}; true");
    ["exec", "--backend", "remote", "--", "sh", "-c", &line].map(str::to_owned)
}

/// Waits until the engine has no such container.
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
async fn a_client_whose_server_is_killed_is_told_and_nothing_is_left() {
    let place = Place::new();
    let (server, client) = serve(&place, "local").await;
    let mark = Mark::new(&place);
    let mut command = Running::start(client.command(staying(&mark)));
    command.says().await;
    mark.appeared().await;
    server.kill().await;
    let ended = ended(command.child).await;
    assert_eq!(ended.code, Some(125), "{ended:?}");
    mark.gone().await;
    // The next one removes what is on the disk.
    let left = || place.list(".local/state/cantle/serve-workspaces");
    assert_ne!(left(), [""; 0]);
    let (_server, _) = serve(&place, "local").await;
    assert_eq!(left(), [""; 0]);
}

#[tokio::test]
async fn containers_end_with_their_server_and_with_the_command_they_were_made_for() {
    let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
    let Some([host, image]) = peer("docker", names) else {
        return;
    };
    let place = Place::new().set("DOCKER_HOST", &host);
    let backend = format!("docker:{image}");
    let mark = Mark::new(&place);

    let (server, client) = serve(&place, &backend).await;
    let mut command = Running::start(client.command(staying(&mark)));
    let container = command.says().await;
    server.kill().await;
    let ended = ended(command.child).await;
    assert_eq!(ended.code, Some(125), "{ended:?}");
    mark.gone().await;
    is_gone(&host, &container).await;

    let args = staying(&mark).map(|word| match &*word {
        "remote" => backend.clone(),
        _ => word,
    });
    let mut command = Running::start(place.command(args));
    let container = command.says().await;
    command.kill().await;
    mark.gone().await;
    is_gone(&host, &container).await;
}
