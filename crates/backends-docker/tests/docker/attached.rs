//! Sandboxes in a running container.

use cantle_backends_docker::DockerBackend;
use cantle_core::policy::{Network, Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, Background, SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest,
};

use crate::support::{TestEngine, context_with, eventually, open, stdout};

/// A container that is removed on drop.
struct UserContainer<'p> {
    engine: &'p TestEngine,
    id: String,
}

impl<'p> UserContainer<'p> {
    fn start<const N: usize>(engine: &'p TestEngine, options: [&str; N]) -> Self {
        let mut arguments = vec!["run", "--detach", "--network", "none"];
        arguments.extend(options);
        arguments.extend([&*engine.image, "sleep", "1000"]);
        let output = std::process::Command::new("docker")
            .args(["--host", &engine.host])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Self { engine, id }
    }

    fn backend(&self) -> DockerBackend {
        DockerBackend::attach(&self.id).with_host(&self.engine.host)
    }

    /// Lists its processes.
    fn processes(&self) -> String {
        self.engine.docker(["top", &self.id, "-o", "pid,args"])
    }

    /// Lists its root directory.
    fn root(&self) -> String {
        self.engine.docker(["exec", &self.id, "ls", "-a", "/"])
    }
}

impl Drop for UserContainer<'_> {
    fn drop(&mut self) {
        self.engine.docker(["rm", "--force", &self.id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_container_is_used_and_left_unchanged() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(&engine, ["--workdir", "/work", "--env", "OWNER=user"]);
    let root = container.root();
    let sandbox = open(&container.backend()).await;
    assert_eq!(sandbox.info().working_directory.to_string(), "/work");
    assert_eq!(
        stdout(&*sandbox, "pwd; id -u; echo $OWNER").await,
        "/work\n0\nuser"
    );
    let file = SandboxPath::new("file").unwrap();
    sandbox.write_bytes(&file, "text".into()).await.unwrap();
    assert_eq!(
        engine.docker(["exec", &container.id, "cat", "/work/file"]),
        "text"
    );
    let request = SpawnRequest::shell("setsid sleep 2000 & true").with_background(Background::Keep);
    sandbox.run(request).await.unwrap();
    eventually("the background process", || {
        container.processes().contains("sleep 2000")
    });
    sandbox.close().await.unwrap();
    let processes = container.processes();
    assert!(processes.contains("sleep 1000"), "{processes}");
    assert!(!processes.contains("sleep 2000"), "{processes}");
    // The engine may reap the process later.
    eventually("the supervisor's end", || {
        !container.processes().contains("cantle")
    });
    assert_eq!(container.root(), root);
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_ends_only_processes_of_the_sandbox() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(&engine, []);
    let sandbox = open(&container.backend()).await;
    let process = sandbox
        .spawn(SpawnRequest::shell("sleep 3000"))
        .await
        .unwrap();
    eventually("the command", || {
        container.processes().contains("sleep 3000")
    });
    drop((process, sandbox));
    eventually("its end", || !container.processes().contains("sleep 3000"));
    assert!(container.processes().contains("sleep 1000"));
    container.backend().reclaim().await.unwrap();
    assert!(container.processes().contains("sleep 1000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_execs_if_the_supervisor_cannot_be_installed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(
        &engine,
        ["--read-only", "--tmpfs", "/tmp", "--workdir", "/tmp"],
    );
    let sandbox = open(&container.backend()).await;
    let mechanisms = sandbox.info().mechanisms.join("; ");
    assert!(mechanisms.contains("without supervisor"), "{mechanisms}");
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
async fn policy_is_enforced_only_as_the_container_is_configured() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(&engine, ["--memory", "64m"]);
    let mut policy = Policy::unconfined();
    policy.network = Some(Network::Off);
    policy.limits.memory_bytes = Some(64 << 20);
    let sandbox = container
        .backend()
        .open(context_with(policy.clone()))
        .await
        .unwrap();
    sandbox.close().await.unwrap();
    policy.limits.memory_bytes = Some(32 << 20);
    policy.limits.processes = Some(10);
    let error = container
        .backend()
        .open(context_with(policy))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unenforceable);
    assert_eq!(
        error.unenforced(),
        [PolicyField::Memory, PolicyField::Processes]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_stopped_containers_are_reported() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let missing = DockerBackend::attach("no-such-container").with_host(&engine.host);
    let error = missing
        .open(context_with(Policy::unconfined()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.to_string().contains("no-such-container"), "{error}");
    let container = UserContainer::start(&engine, []);
    engine.docker(["kill", &container.id]);
    let error = container
        .backend()
        .open(context_with(Policy::unconfined()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("isn't running"), "{error}");
}
