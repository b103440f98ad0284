//! How sandboxes end, and what is left of them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, SandboxContext, SandboxErrorKind, SandboxExt as _, SandboxHandle, SandboxPath,
    SpawnRequest, Survival, WriteOptions,
};
use futures_util::future::join_all;

use crate::own_engine::OwnEngine;
use crate::support::{PATIENCE, Peer, context, eventually, open, stdout};

/// Which part of its life an owner is killed in. It is this test program once more.
const OWNER: &str = "CANTLE_TEST_DOCKER_OWNER";

fn path(path: &str) -> SandboxPath {
    SandboxPath::new(path).unwrap()
}

/// A process that opens a sandbox for a run, and what it says.
struct Owner {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Owner {
    fn start(run: RunId, what: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["life::an_owner", "--exact", "--nocapture"])
            .env(OWNER, format!("{run} {what}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Waits for a line that starts like this, and returns the rest.
    fn says(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the owner ended without `{word}`");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// No test of its own: what an [`Owner`] does.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner() {
    let Ok(order) = std::env::var(OWNER) else {
        return;
    };
    let (run, what) = order.split_once(' ').unwrap();
    let peer = Peer::find().unwrap();
    let mut cx = SandboxContext::new(run.parse().unwrap(), Policy::unconfined());
    if what != "passing" {
        cx = cx.durable();
    }
    let sandbox = peer.backend().open(cx).await.unwrap();
    sandbox
        .write_bytes(&path("file"), "text".into())
        .await
        .unwrap();
    let request = SpawnRequest::shell("setsid sleep 1000 & sleep 1000");
    let _process = sandbox.spawn(request).await.unwrap();
    let handle = match what {
        "kept" => serde_json::to_string(&sandbox.persist().await.unwrap()).unwrap(),
        _ => String::new(),
    };
    // On standard error there is a reader no more; the test's own output goes there.
    println!("\nopened {handle}");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_an_owner_that_is_killed() {
    let Some(peer) = Peer::find() else { return };
    let run = RunId::new();
    let mut owner = Owner::start(run, "passing");
    owner.says("opened");
    assert_eq!(peer.of_run(run).len(), 1);
    owner.kill();
    eventually("the end of its container", || peer.of_run(run).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_owner_kept_for_nobody_is_reclaimed() {
    let Some(peer) = Peer::find() else { return };
    let backend = peer.backend();
    let run = RunId::new();
    let mut owner = Owner::start(run, "durable");
    owner.says("opened");
    assert_eq!(peer.of_run(run).len(), 1);
    let reclaimed = backend.reclaim().await.unwrap();
    assert_eq!(reclaimed.failed, []);
    assert_eq!(
        peer.of_run(run).len(),
        1,
        "a living owner's container was removed"
    );
    owner.kill();
    assert_eq!(peer.of_run(run).len(), 1);
    backend.reclaim().await.unwrap();
    assert_eq!(peer.of_run(run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_sandbox_outlives_its_owner_and_is_found_again() {
    let Some(peer) = Peer::find() else { return };
    let backend = peer.backend();
    let run = RunId::new();
    let mut owner = Owner::start(run, "kept");
    let handle: SandboxHandle = serde_json::from_str(&owner.says("opened")).unwrap();

    // While it is in use nobody else gets it.
    let refused = backend
        .reattach(&handle, context().durable())
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::Unavailable);
    assert!(refused.to_string().contains("in use"), "{refused}");

    owner.kill();
    backend.reclaim().await.unwrap();
    let again = backend
        .reattach(&handle, context().durable())
        .await
        .unwrap();
    assert_eq!(again.info().survival, Survival::Workspace);
    assert_eq!(stdout(&*again, "cat file").await, "text");
    drop(again);
    // Dropped, it is still there.
    let again = backend
        .reattach(&handle, context().durable())
        .await
        .unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    let gone = backend.reattach(&handle, context()).await.unwrap_err();
    assert_eq!(gone.kind(), SandboxErrorKind::Gone);
    assert_eq!(peer.of_run(run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_who_want_a_kept_sandbox_gets_it() {
    let Some(peer) = Peer::find() else { return };
    let backend = peer.backend();
    let sandbox = backend.open(context().durable()).await.unwrap();
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let other = peer.backend();
    let both = join_all([
        backend.reattach(&handle, context().durable()),
        other.reattach(&handle, context().durable()),
    ]);
    let (got, refused): (Vec<_>, Vec<_>) = both.await.into_iter().partition(Result::is_ok);
    assert_eq!((got.len(), refused.len()), (1, 1), "{refused:?}");
    for sandbox in got {
        let sandbox = sandbox.unwrap();
        assert_eq!(stdout(&*sandbox, "echo well").await, "well");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_sandbox_that_is_dropped_is_removed() {
    let Some(peer) = Peer::find() else { return };
    let cx = context().durable();
    let run = cx.run;
    let sandbox = peer.backend().open(cx).await.unwrap();
    assert_eq!(peer.of_run(run).len(), 1);
    drop(sandbox);
    assert_eq!(peer.of_run(run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_ours_is_not_touched() {
    let Some(peer) = Peer::find() else { return };
    let dead = "00000000000000000000000000000000.1.1.1";
    let create = |labels: [&str; 2], name: &str| {
        let [host, owner] = labels;
        peer.docker([
            "create",
            "--name",
            name,
            "--network",
            "none",
            "--label",
            host,
            "--label",
            owner,
            "--label",
            "cantle.sandbox=x",
            &peer.busybox,
            "true",
        ])
    };
    let id = cantle_core::ids::fresh_id();
    let owner = format!("cantle.owner={dead}");
    let others = create(["cantle.host=another", &owner], &format!("cantle-{id}"));
    let unlabelled = peer.docker(["create", "--network", "none", &peer.busybox, "true"]);
    let reclaimed = peer.backend().reclaim().await.unwrap();
    assert!(
        !reclaimed.removed.contains(&format!("cantle-{id}")),
        "{reclaimed:?}"
    );
    for container in [others, unlabelled] {
        peer.docker(["inspect", "--format", "{{.Id}}", &container]);
        peer.docker(["rm", "--force", &container]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_killed_from_outside_is_gone_at_once() {
    let Some(peer) = Peer::find() else { return };
    for backend in [peer.backend(), peer.backend().without_supervisor()] {
        let sandbox = open(&backend).await;
        let mut process = sandbox
            .spawn(SpawnRequest::shell("sleep 1000"))
            .await
            .unwrap();
        let began = Instant::now();
        peer.docker(["kill", &peer.container(&*sandbox)]);
        let error = process.wait().await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone);
        // The command would have taken a thousand.
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        let error = sandbox
            .spawn(SpawnRequest::shell("true"))
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone);
        let error = sandbox.stat(&path("x")).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone);
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_open_at_once_and_none_is_left() {
    let Some(peer) = Peer::find() else { return };
    // Two backends, as two processes have: both want to put the program on the engine.
    let backends: [DockerBackend; 2] = [peer.backend(), peer.backend()];
    let run = RunId::new();
    let one = async |number: usize| {
        let cx = SandboxContext::new(run, Policy::unconfined());
        let sandbox = backends[number % 2].open(cx).await.unwrap();
        assert_eq!(
            stdout(&*sandbox, &format!("echo {number}")).await,
            number.to_string()
        );
        sandbox.close().await.unwrap();
    };
    join_all((0..8).map(one)).await;
    assert_eq!(peer.of_run(run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_somebody_removed_is_filled_again() {
    let Some(peer) = Peer::find() else { return };
    // Nobody else uses its volume.
    let Some(engine) = OwnEngine::start(&peer) else {
        return;
    };
    let peer = &engine.peer;
    let backend = peer.backend();
    let sandbox = open(&backend).await;
    let format = "{{range .Mounts}}{{if eq .Destination \"/.cantle\"}}{{.Name}}{{end}}{{end}}";
    let volume = peer.docker(["inspect", "--format", format, &peer.container(&*sandbox)]);
    assert!(volume.starts_with("cantle-supervisor-"), "{volume}");
    sandbox.close().await.unwrap();
    peer.docker(["volume", "rm", &volume]);
    let sandbox = open(&backend).await;
    assert_eq!(stdout(&*sandbox, "echo well").await, "well");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_comes_whole_or_not_at_all() {
    let Some(peer) = Peer::find() else { return };
    let sandbox = open(&peer.backend()).await;
    let large: bytes::Bytes = (0..9_000_001_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let name = path("dir/large ü");
    sandbox.write_bytes(&name, large.clone()).await.unwrap();
    assert_eq!(sandbox.read_bytes(&name, 1 << 30).await.unwrap(), large);
    assert_eq!(
        stdout(&*sandbox, "stat -c '%u %a %s' dir/*").await,
        "1000 644 9000001"
    );

    // What commands may not read or write, the engine doesn't either.
    stdout(&*sandbox, "chmod 0 dir/*; mkdir closed; chmod 500 closed").await;
    let read = sandbox.read_bytes(&name, 1 << 30).await.unwrap_err();
    assert_eq!(read.kind(), SandboxErrorKind::PermissionDenied);
    let written = sandbox
        .write_bytes(&path("closed/large"), large.clone())
        .await
        .unwrap_err();
    assert_eq!(written.kind(), SandboxErrorKind::PermissionDenied);

    // A stream of another length leaves what was there, and nothing else.
    for length in [8_999_999, 9_000_002] {
        let options = WriteOptions::default().with_size(length);
        let data = Box::pin(futures_util::stream::iter([Ok(large.clone())]));
        let written = sandbox
            .write(&path("dir/other"), options, data)
            .await
            .unwrap_err();
        assert_eq!(written.kind(), SandboxErrorKind::InvalidInput);
    }
    let options = WriteOptions::default().with_size(9_000_001);
    let endless = Box::pin(futures_util::stream::pending());
    let other = path("dir/other");
    let given_up = sandbox.write(&other, options, endless);
    assert!(
        tokio::time::timeout(Duration::from_millis(500), given_up)
            .await
            .is_err()
    );
    let deadline = Instant::now() + PATIENCE;
    while stdout(&*sandbox, "ls -A dir | wc -l").await != "1" {
        assert!(
            Instant::now() < deadline,
            "something is left of a file that was given up"
        );
    }
    sandbox.close().await.unwrap();
}
