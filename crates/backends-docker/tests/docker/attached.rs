//! Sandboxes in a container that somebody else runs.

use cantle_backends_docker::DockerBackend;
use cantle_core::policy::{Network, Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, Background, SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest,
};

use crate::support::{Peer, eventually, open, stdout, under};

/// Somebody's container, removed in the end.
struct Theirs<'p> {
    peer: &'p Peer,
    id: String,
}

impl<'p> Theirs<'p> {
    fn start<const N: usize>(peer: &'p Peer, options: [&str; N]) -> Self {
        let mut arguments = vec!["run", "--detach", "--network", "none"];
        arguments.extend(options);
        arguments.extend([&*peer.image, "sleep", "1000"]);
        let output = std::process::Command::new("docker")
            .args(["--host", &peer.host])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Self { peer, id }
    }

    fn backend(&self) -> DockerBackend {
        DockerBackend::attach(&self.id).with_host(&self.peer.host)
    }

    /// What runs in it, and what lies in its root.
    fn processes(&self) -> String {
        self.peer.docker(["top", &self.id, "-o", "pid,args"])
    }

    fn root(&self) -> String {
        self.peer.docker(["exec", &self.id, "ls", "-a", "/"])
    }
}

impl Drop for Theirs<'_> {
    fn drop(&mut self) {
        self.peer.docker(["rm", "--force", &self.id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_runs_is_used_and_left_as_it_was() {
    let Some(peer) = Peer::find() else { return };
    let theirs = Theirs::start(&peer, ["--workdir", "/work", "--env", "OF=theirs"]);
    let root = theirs.root();
    let sandbox = open(&theirs.backend()).await;
    assert_eq!(sandbox.info().working_directory.to_string(), "/work");
    assert_eq!(
        stdout(&*sandbox, "pwd; id -u; echo $OF").await,
        "/work\n0\ntheirs"
    );
    let file = SandboxPath::new("file").unwrap();
    sandbox.write_bytes(&file, "text".into()).await.unwrap();
    assert_eq!(
        peer.docker(["exec", &theirs.id, "cat", "/work/file"]),
        "text"
    );
    let request = SpawnRequest::shell("setsid sleep 2000 & true").with_background(Background::Keep);
    sandbox.run(request).await.unwrap();
    eventually("what is kept", || theirs.processes().contains("sleep 2000"));
    sandbox.close().await.unwrap();
    let processes = theirs.processes();
    assert!(processes.contains("sleep 1000"), "{processes}");
    assert!(!processes.contains("sleep 2000"), "{processes}");
    // It has ended; that its engine has waited for it is another matter.
    eventually("the supervisor's end", || {
        !theirs.processes().contains("cantle")
    });
    assert_eq!(theirs.root(), root);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_it_ends_what_was_started_and_no_more() {
    let Some(peer) = Peer::find() else { return };
    let theirs = Theirs::start(&peer, []);
    let sandbox = open(&theirs.backend()).await;
    let process = sandbox
        .spawn(SpawnRequest::shell("sleep 3000"))
        .await
        .unwrap();
    eventually("the command", || theirs.processes().contains("sleep 3000"));
    drop((process, sandbox));
    eventually("its end", || !theirs.processes().contains("sleep 3000"));
    assert!(theirs.processes().contains("sleep 1000"));
    theirs.backend().reclaim().await.unwrap();
    assert!(theirs.processes().contains("sleep 1000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_supervisor_cant_be_put_commands_are_execs() {
    let Some(peer) = Peer::find() else { return };
    let theirs = Theirs::start(
        &peer,
        ["--read-only", "--tmpfs", "/tmp", "--workdir", "/tmp"],
    );
    let sandbox = open(&theirs.backend()).await;
    let walls = sandbox.info().walls.join("; ");
    assert!(walls.contains("without supervisor"), "{walls}");
    assert_eq!(
        stdout(&*sandbox, "echo text > file; cat file").await,
        "text"
    );
    let file = SandboxPath::new("other").unwrap();
    sandbox.write_bytes(&file, "other".into()).await.unwrap();
    assert_eq!(stdout(&*sandbox, "cat other").await, "other");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_holds_as_far_as_the_container_was_made_so() {
    let Some(peer) = Peer::find() else { return };
    let theirs = Theirs::start(&peer, ["--memory", "64m"]);
    let mut policy = Policy::unconfined();
    policy.network = Some(Network::Off);
    policy.limits.memory_bytes = Some(64 << 20);
    let sandbox = theirs.backend().open(under(policy.clone())).await.unwrap();
    sandbox.close().await.unwrap();
    policy.limits.memory_bytes = Some(32 << 20);
    policy.limits.processes = Some(10);
    let error = theirs.backend().open(under(policy)).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unenforceable);
    assert_eq!(
        error.unenforced(),
        [PolicyField::Memory, PolicyField::Processes]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_not_there_or_stopped_is_said_so() {
    let Some(peer) = Peer::find() else { return };
    let nowhere = DockerBackend::attach("no-such-container").with_host(&peer.host);
    let error = nowhere.open(under(Policy::unconfined())).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.to_string().contains("no-such-container"), "{error}");
    let theirs = Theirs::start(&peer, []);
    peer.docker(["kill", &theirs.id]);
    let error = theirs
        .backend()
        .open(under(Policy::unconfined()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("doesn't run"), "{error}");
}
