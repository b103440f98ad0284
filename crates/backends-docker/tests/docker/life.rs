//! Ends of sandboxes, and cleanup.

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
use crate::support::{DEADLINE, TestEngine, context, eventually, open, stdout};

/// Selects the [`Owner`] role in a subprocess of this test program: run and kind of sandbox.
const OWNER: &str = "CANTLE_TEST_DOCKER_OWNER";

fn path(path: &str) -> SandboxPath {
    SandboxPath::new(path).unwrap()
}

/// A subprocess that opens a sandbox, and its output.
struct Owner {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Owner {
    fn start(run: RunId, kind: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["life::owner_main", "--exact", "--nocapture"])
            .env(OWNER, format!("{run} {kind}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Waits for a line with this word, and returns the rest of the line.
    fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 {
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

/// Not a test: the main function of an [`Owner`].
#[tokio::test(flavor = "multi_thread")]
async fn owner_main() {
    let Ok(order) = std::env::var(OWNER) else {
        return;
    };
    let (run, kind) = order.split_once(' ').unwrap();
    let engine = TestEngine::from_env().unwrap();
    let mut cx = SandboxContext::new(run.parse().unwrap(), Policy::unconfined());
    if kind != "ephemeral" {
        cx = cx.durable();
    }
    let sandbox = engine.backend().open(cx).await.unwrap();
    sandbox
        .write_bytes(&path("file"), "text".into())
        .await
        .unwrap();
    let request = SpawnRequest::shell("setsid sleep 1000 & sleep 1000");
    let _process = sandbox.spawn(request).await.unwrap();
    let handle = match kind {
        "kept" => serde_json::to_string(&sandbox.persist().await.unwrap()).unwrap(),
        _ => String::new(),
    };
    // Stdout also carries the output of the test harness.
    println!("\nopened {handle}");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn container_of_a_killed_owner_is_removed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let run = RunId::new();
    let mut owner = Owner::start(run, "ephemeral");
    owner.wait_for("opened");
    assert_eq!(engine.containers_of(run).len(), 1);
    owner.kill();
    eventually("the removal of its container", || {
        engine.containers_of(run).is_empty()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn durable_container_of_a_killed_owner_is_reclaimed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend();
    let run = RunId::new();
    let mut owner = Owner::start(run, "durable");
    owner.wait_for("opened");
    assert_eq!(engine.containers_of(run).len(), 1);
    let reclaimed = backend.reclaim().await.unwrap();
    assert_eq!(reclaimed.failed, []);
    assert_eq!(
        engine.containers_of(run).len(),
        1,
        "a living owner's container was removed"
    );
    owner.kill();
    assert_eq!(engine.containers_of(run).len(), 1);
    backend.reclaim().await.unwrap();
    assert_eq!(engine.containers_of(run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn container_whose_closing_was_abandoned_is_reclaimed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend();
    let sandbox = backend.open(context().durable()).await.unwrap();
    let container = engine.container(&*sandbox);
    // Polls it once.
    let closed = tokio::time::timeout(Duration::ZERO, sandbox.close()).await;
    assert!(closed.is_err());
    drop(sandbox);
    assert!(engine.has_container(&container));
    backend.reclaim().await.unwrap();
    assert!(!engine.has_container(&container));
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_sandbox_outlives_its_owner_and_is_reattached() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend();
    let run = RunId::new();
    let mut owner = Owner::start(run, "kept");
    let handle: SandboxHandle = serde_json::from_str(&owner.wait_for("opened")).unwrap();

    // It can't be reattached while it is in use.
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
    // Dropping it does not remove it.
    let again = backend
        .reattach(&handle, context().durable())
        .await
        .unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    let gone = backend.reattach(&handle, context()).await.unwrap_err();
    assert_eq!(gone.kind(), SandboxErrorKind::Gone);
    assert_eq!(engine.containers_of(run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_reattach_succeeds_once() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend();
    let sandbox = backend.open(context().durable()).await.unwrap();
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let other = engine.backend();
    let both = join_all([
        backend.reattach(&handle, context().durable()),
        other.reattach(&handle, context().durable()),
    ]);
    let (attached, refused): (Vec<_>, Vec<_>) = both.await.into_iter().partition(Result::is_ok);
    assert_eq!((attached.len(), refused.len()), (1, 1), "{refused:?}");
    for sandbox in attached {
        let sandbox = sandbox.unwrap();
        assert_eq!(stdout(&*sandbox, "echo ok").await, "ok");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_durable_sandbox_is_removed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let cx = context().durable();
    let run = cx.run;
    let sandbox = engine.backend().open(cx).await.unwrap();
    assert_eq!(engine.containers_of(run).len(), 1);
    drop(sandbox);
    eventually("the removal of its container", || {
        engine.containers_of(run).is_empty()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_open_leaves_no_container() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let cx = context().durable();
    let run = cx.run;
    let backend = engine.backend();
    let opening = tokio::spawn(async move { backend.open(cx).await });
    eventually("its container", || !engine.containers_of(run).is_empty());
    opening.abort();
    // It may be complete already.
    drop(opening);
    eventually("the removal of its container", || {
        engine.containers_of(run).is_empty()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn reclaim_ignores_containers_of_others() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let dead = "00000000000000000000000000000000.1.1.1";
    let create = |labels: [&str; 2], name: &str| {
        let [host, owner] = labels;
        engine.docker([
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
            &engine.busybox,
            "true",
        ])
    };
    let id = cantle_core::ids::unique_id();
    let owner = format!("cantle.owner={dead}");
    let others = create(["cantle.host=another", &owner], &format!("cantle-{id}"));
    let unlabelled = engine.docker(["create", "--network", "none", &engine.busybox, "true"]);
    let reclaimed = engine.backend().reclaim().await.unwrap();
    assert!(
        !reclaimed.removed.contains(&format!("cantle-{id}")),
        "{reclaimed:?}"
    );
    for container in [others, unlabelled] {
        engine.docker(["inspect", "--format", "{{.Id}}", &container]);
        engine.docker(["rm", "--force", &container]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn externally_killed_container_is_gone_immediately() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    for backend in [engine.backend(), engine.backend().without_supervisor()] {
        let sandbox = open(&backend).await;
        let mut process = sandbox
            .spawn(SpawnRequest::shell("sleep 1000"))
            .await
            .unwrap();
        let began = Instant::now();
        engine.docker(["kill", &engine.container(&*sandbox)]);
        let error = process.wait().await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Gone);
        // The command would have taken 1000 s.
        assert!(began.elapsed() < DEADLINE, "{:?}", began.elapsed());
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
async fn eight_concurrent_sandboxes_leave_no_container() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    // Two backends, as in two processes: both install the supervisor.
    let backends: [DockerBackend; 2] = [engine.backend(), engine.backend()];
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
    assert_eq!(engine.containers_of(run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_volume_is_recreated() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    // An engine of its own, so that no other test uses the volume.
    let Some(own) = OwnEngine::start(&engine) else {
        return;
    };
    let engine = &own.engine;
    let backend = engine.backend();
    let sandbox = open(&backend).await;
    let format = "{{range .Mounts}}{{if eq .Destination \"/.cantle\"}}{{.Name}}{{end}}{{end}}";
    let volume = engine.docker(["inspect", "--format", format, &engine.container(&*sandbox)]);
    assert!(volume.starts_with("cantle-supervisor-"), "{volume}");
    sandbox.close().await.unwrap();
    engine.docker(["volume", "rm", &volume]);
    let sandbox = open(&backend).await;
    assert_eq!(stdout(&*sandbox, "echo ok").await, "ok");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_image_and_no_volume_replaces_the_supervisor() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    // An engine of its own, so that no other test uses the volume.
    let Some(own) = OwnEngine::start(&engine) else {
        return;
    };
    let engine = &own.engine;
    let directory = tempfile::tempdir().unwrap();
    let dockerfile = directory.path().join("Dockerfile");
    for name in ["supervisor", "ready"] {
        std::fs::write(directory.path().join(name), "#!/bin/sh\nsleep 1000\n").unwrap();
    }
    let lines = format!("FROM {}\nCOPY supervisor ready /.cantle/\n", engine.image);
    std::fs::write(&dockerfile, lines).unwrap();
    let no_arguments: [(String, String); 0] = [];
    let hostile = DockerBackend::from_dockerfile(dockerfile, directory.path(), no_arguments)
        .with_host(&engine.host)
        .with_build_network("none");
    let works = async |backend: &DockerBackend| {
        let sandbox = open(backend).await;
        assert_eq!(
            stdout(&*sandbox, "echo ok; ls /.cantle").await,
            "ok\nsupervisor"
        );
        let format = "{{range .Mounts}}{{if eq .Destination \"/.cantle\"}}{{.Name}}{{end}}{{end}}";
        let volume = engine.docker(["inspect", "--format", format, &engine.container(&*sandbox)]);
        sandbox.close().await.unwrap();
        volume
    };
    let volume = works(&hostile).await;
    // As if an older version had let an image fill it.
    let mount = format!("{volume}:/volume");
    let line = "rm /volume/supervisor; ln -s /bin/cat /volume/supervisor";
    engine.docker([
        "run",
        "--rm",
        "--volume",
        &mount,
        &engine.image,
        "sh",
        "-c",
        line,
    ]);
    works(&engine.backend()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_file_is_written_completely_or_not_at_all() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend()).await;
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

    // The engine respects the permissions of the command's user.
    stdout(&*sandbox, "chmod 0 dir/*; mkdir closed; chmod 500 closed").await;
    let read = sandbox.read_bytes(&name, 1 << 30).await.unwrap_err();
    assert_eq!(read.kind(), SandboxErrorKind::PermissionDenied);
    let written = sandbox
        .write_bytes(&path("closed/large"), large.clone())
        .await
        .unwrap_err();
    assert_eq!(written.kind(), SandboxErrorKind::PermissionDenied);

    // A stream of another length leaves the directory unchanged.
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
    let aborted = sandbox.write(&other, options, endless);
    assert!(
        tokio::time::timeout(Duration::from_millis(500), aborted)
            .await
            .is_err()
    );
    let deadline = Instant::now() + DEADLINE;
    while stdout(&*sandbox, "ls -A dir | wc -l").await != "1" {
        assert!(Instant::now() < deadline, "an aborted write left a file");
    }
    sandbox.close().await.unwrap();
}
