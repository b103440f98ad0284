//! Sandboxes in a running container.

use cantle_backends_docker::DockerBackend;
use cantle_core::policy::{Network, Policy, PolicyField, ReadRoots, Strictness};
use cantle_core::sandbox::{
    Backend as _, Background, EnforcedBy, SandboxError, SandboxErrorKind, SandboxExt as _,
    SandboxPath, SpawnRequest,
};

use crate::support::{TestEngine, context_with, eventually, open, stdout};

/// A container that is removed on drop.
struct UserContainer<'p> {
    engine: &'p TestEngine,
    id: String,
}

impl<'p> UserContainer<'p> {
    fn start<const N: usize>(engine: &'p TestEngine, options: [&str; N]) -> Self {
        Self::start_with(engine, &options)
    }

    fn start_with(engine: &'p TestEngine, options: &[&str]) -> Self {
        Self::start_in(engine, "none", options)
    }

    fn start_in(engine: &'p TestEngine, network: &str, options: &[&str]) -> Self {
        let mut arguments = vec!["run", "--detach", "--network", network];
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
async fn supervisor_leaves_no_file_in_a_container_of_an_ordinary_user() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(&engine, ["--user", "1000", "--workdir", "/tmp"]);
    let root = container.root();
    let sandbox = open(&container.backend()).await;
    let mechanisms = sandbox.info().mechanisms.join("; ");
    assert!(!mechanisms.contains("without supervisor"), "{mechanisms}");
    assert_eq!(stdout(&*sandbox, "id -u").await, "1000");
    assert_eq!(container.root(), root);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_opening_leaves_no_file() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(&engine, []);
    let root = container.root();
    let backend = container.backend();
    let opening = backend.open(context_with(Policy::unconfined()));
    let installed = async {
        while !container.root().contains(".cantle-") {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = installed => {}
        opened = opening => drop(opened.unwrap()),
    }
    eventually("the removal of the supervisor's file", || {
        container.root() == root
    });
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
    let request = SpawnRequest::shell("sleep 3000");
    let _process = sandbox.spawn(request).await.unwrap();
    eventually("the command", || {
        container.processes().contains("sleep 3000")
    });
    sandbox.close().await.unwrap();
    let processes = container.processes();
    assert!(processes.contains("sleep 1000"), "{processes}");
    assert!(!processes.contains("sleep 3000"), "{processes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn working_directory_can_be_the_root_without_a_supervisor() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(&engine, ["--workdir", "/"]);
    let sandbox = open(&container.backend().without_supervisor()).await;
    let file = SandboxPath::new("file").unwrap();
    sandbox.write_bytes(&file, "text".into()).await.unwrap();
    assert_eq!(sandbox.read_bytes(&file, 100).await.unwrap(), "text");
    assert_eq!(stdout(&*sandbox, "cat /file").await, "text");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn supervisor_that_cannot_be_started_leaves_no_file() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let profile = tempfile::NamedTempFile::new().unwrap();
    // The supervisor reads its setup into a memory file.
    let rules = r#"{ "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["memfd_create"], "action": "SCMP_ACT_ERRNO" }] }"#;
    std::fs::write(profile.path(), rules).unwrap();
    let seccomp = format!("seccomp={}", profile.path().display());
    let container = UserContainer::start(&engine, ["--security-opt", &seccomp]);
    let root = container.root();
    let sandbox = open(&container.backend()).await;
    let mechanisms = sandbox.info().mechanisms.join("; ");
    assert!(mechanisms.contains("without supervisor"), "{mechanisms}");
    assert_eq!(container.root(), root);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_can_be_allowed_in_a_container_without_network() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let container = UserContainer::start(&engine, []);
    let mut policy = Policy::unconfined();
    policy.network = Some(Network::Hosts(vec!["allowed.example.com".parse().unwrap()]));
    policy.strictness = Strictness::Strict;
    let sandbox = container
        .backend()
        .open(context_with(policy))
        .await
        .unwrap();
    let code = "import os, urllib.request as it\ntry:\n    it.urlopen(\"http://other.example.com/\")\n\
        except OSError as error:\n    print(error.code, os.environ[\"HTTPS_PROXY\"])";
    assert_eq!(
        stdout(&*sandbox, &format!("python3 -c '{code}'")).await,
        "403 http://127.0.0.1:3128"
    );
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
async fn ports_of_the_machine_are_not_connected_to() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let host = UserContainer::start_in(&engine, "host", &[]);
    let network = format!("container:{}", host.id);
    let other = UserContainer::start_in(&engine, &network, &[]);
    for container in [&host, &other] {
        let sandbox = open(&container.backend()).await;
        let error = sandbox.connect(80).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Unsupported, "{error}");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_an_unknown_network_are_not_connected_to() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let owner = UserContainer::start(&engine, []);
    let network = format!("container:{}", owner.id);
    let container = UserContainer::start_in(&engine, &network, &[]);
    let id = owner.id.clone();
    drop(owner);
    let sandbox = open(&container.backend()).await;
    let error = sandbox.connect(80).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(&id), "{error}");
    sandbox.close().await.unwrap();
}

/// A volume that is removed on drop.
struct UserVolume<'p> {
    engine: &'p TestEngine,
    name: String,
}

impl<'p> UserVolume<'p> {
    fn create(engine: &'p TestEngine, options: &[&str]) -> Self {
        let name = format!("cantle-test-{}", cantle_core::ids::unique_id());
        let mut arguments = vec!["volume", "create"];
        arguments.extend(options);
        arguments.push(&name);
        let mut create = std::process::Command::new("docker");
        create.args(["--host", &engine.host]).args(arguments);
        assert!(create.output().unwrap().status.success());
        Self { engine, name }
    }
}

impl Drop for UserVolume<'_> {
    fn drop(&mut self) {
        self.engine.docker(["volume", "rm", &self.name]);
    }
}

/// Opens a container with this strict policy and with a lenient one; returns the error of the first, and the
/// report and the mechanisms of the second.
async fn strict_and_lenient(
    container: &UserContainer<'_>,
    mut policy: Policy,
) -> (SandboxError, Vec<(PolicyField, EnforcedBy)>, String) {
    policy.strictness = Strictness::Strict;
    let strict = container.backend().open(context_with(policy.clone())).await;
    policy.strictness = Strictness::BestEffort;
    let lenient = container
        .backend()
        .open(context_with(policy))
        .await
        .unwrap();
    let info = lenient.info();
    let report = info
        .enforcement
        .iter()
        .map(|it| (it.field, it.by))
        .collect();
    let mechanisms = info.mechanisms.join("; ");
    lenient.close().await.unwrap();
    (strict.map(drop).unwrap_err(), report, mechanisms)
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_of_a_host_directory_is_reported_and_refused() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let options = [
        "--opt",
        "type=none",
        "--opt",
        "o=bind",
        "--opt",
        "device=/etc",
    ];
    let host = UserVolume::create(&engine, &options);
    let plain = UserVolume::create(&engine, &[]);
    let mut policy = Policy::unconfined();
    policy.read_roots = Some(ReadRoots::default());
    policy.network = Some(Network::Off);
    let container = UserContainer::start(&engine, ["--volume", &format!("{}:/data", plain.name)]);
    let sandbox = container
        .backend()
        .open(context_with(policy.clone()))
        .await
        .unwrap();
    sandbox.close().await.unwrap();
    drop(container);

    let container = UserContainer::start(&engine, ["--volume", &format!("{}:/host", host.name)]);
    let (error, report, mechanisms) = strict_and_lenient(&container, policy).await;
    assert_eq!(error.unenforced(), [PolicyField::ReadRoots]);
    let advice = error.advice().unwrap();
    assert!(advice.contains("of `/etc` at `/host`"), "{advice}");
    let expected = [
        (PolicyField::ReadRoots, EnforcedBy::NotEnforced),
        (PolicyField::Network, EnforcedBy::Kernel),
    ];
    assert_eq!(report, expected);
    assert!(mechanisms.contains("of `/etc` at `/host`"), "{mechanisms}");
}

#[tokio::test(flavor = "multi_thread")]
async fn weakened_containers_are_reported_and_refused() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let mut policy = Policy::unconfined();
    policy.read_roots = Some(ReadRoots::default());
    policy.network = Some(Network::Off);
    // The machine may lack what others need.
    let cases: [(&[&str], &str); 6] = [
        (&["--cap-add", "SYS_PTRACE"], "capability SYS_PTRACE"),
        (&["--device", "/dev/null:/dev/other"], "device `/dev/null`"),
        (&["--pid", "host"], "process namespace of `host`"),
        (&["--ipc", "host"], "IPC namespace of `host`"),
        (
            &["--security-opt", "seccomp=unconfined"],
            "security option `seccomp=unconfined`",
        ),
        (
            &["--security-opt", "systempaths=unconfined"],
            "no masked paths",
        ),
    ];
    for (options, weakness) in cases {
        let container = UserContainer::start_with(&engine, options);
        let (error, report, mechanisms) = strict_and_lenient(&container, policy.clone()).await;
        let fields = [PolicyField::ReadRoots, PolicyField::Network];
        assert_eq!(error.unenforced(), fields, "{options:?}");
        let advice = error.advice().unwrap();
        assert!(advice.contains(weakness), "{advice}");
        assert_eq!(report, fields.map(|field| (field, EnforcedBy::NotEnforced)));
        assert!(mechanisms.contains(weakness), "{mechanisms}");
    }
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
