//! Sources of images, and errors when one is unavailable.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantle_backends_docker::{DockerBackend, Reclaimed, build_digest};
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{Backend as _, EnforcedBy, SandboxErrorKind};
use cantle_core::tool::Progress;
use futures_util::future::join_all;

use crate::support::{TestEngine, context, context_with, open, run, stdout};

fn dockerfile_backend(engine: &TestEngine, directory: &Path, lines: &str) -> DockerBackend {
    let dockerfile = directory.join("Dockerfile");
    fs::write(&dockerfile, lines).unwrap();
    DockerBackend::from_dockerfile(dockerfile, directory, [("WORD", "hello")])
        .with_host(&engine.host)
        .with_build_network("none")
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_build_contexts_are_not_built() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let lines = format!("FROM {}\n", engine.busybox);
    let backend = dockerfile_backend(&engine, directory.path(), &lines);
    let dockerfile = directory.path().join("Dockerfile");
    let digest = build_digest(&dockerfile, directory.path(), |_, _| {}).unwrap();
    let backend = backend.with_build_digest(&digest);
    open(&backend).await.close().await.unwrap();

    let changed = dockerfile_backend(&engine, directory.path(), &format!("{lines}ENV A=1\n"));
    let changed = changed.with_build_digest(digest);
    let error = changed.open(context()).await.err().unwrap();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.to_string().contains("has changed since"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_build_contexts_are_built_once() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let token = cantle_core::ids::unique_id();
    fs::write(directory.path().join("data"), &token).unwrap();
    fs::write(directory.path().join("secret"), "stays at home").unwrap();
    fs::write(directory.path().join(".dockerignore"), "secret\n").unwrap();
    let lines = format!(
        "FROM {}\nARG WORD\nCOPY . /data/\nRUN echo $WORD > /data/word\nENV ORIGIN=image\n",
        engine.busybox
    );
    let backend = dockerfile_backend(&engine, directory.path(), &lines);
    let four = join_all(
        [backend.clone(), backend.clone(), backend.clone(), backend].map(async |backend| {
            let sandbox = open(&backend).await;
            let image = engine.docker([
                "inspect",
                "--format",
                "{{.Image}}",
                &engine.container(&*sandbox),
            ]);
            let output = stdout(
                &*sandbox,
                "cat /data/data; echo; cat /data/word; echo $ORIGIN; ls /data",
            )
            .await;
            sandbox.close().await.unwrap();
            (image, output)
        }),
    );
    let four = four.await;
    let (image, output) = four.first().unwrap();
    assert_eq!(
        *output,
        format!("{token}\nhello\nimage\nDockerfile\ndata\nword")
    );
    assert!(
        four.iter()
            .all(|other| other == &(image.clone(), output.clone())),
        "{four:?}"
    );

    // Equal files in another directory produce the same image, different files another one.
    let copy = tempfile::tempdir().unwrap();
    for name in ["data", ".dockerignore"] {
        fs::copy(directory.path().join(name), copy.path().join(name)).unwrap();
    }
    let again = open(&dockerfile_backend(&engine, copy.path(), &lines)).await;
    let same = engine.docker([
        "inspect",
        "--format",
        "{{.Image}}",
        &engine.container(&*again),
    ]);
    assert_eq!(same, *image);
    again.close().await.unwrap();
    fs::write(copy.path().join("data"), "other").unwrap();
    let other = open(&dockerfile_backend(&engine, copy.path(), &lines)).await;
    let changed = engine.docker([
        "inspect",
        "--format",
        "{{.Image}}",
        &engine.container(&*other),
    ]);
    assert_ne!(changed, *image);
    other.close().await.unwrap();
    for image in [&changed, image] {
        engine.docker(["rmi", "--force", image]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_build_reports_its_output() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let lines = format!(
        "FROM {}\nRUN echo on the way; nosuchprogram\n",
        engine.busybox
    );
    let error = dockerfile_backend(&engine, directory.path(), &lines)
        .open(context())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    let text = error.to_string();
    assert!(
        text.contains("on the way") && text.contains("nosuchprogram"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_image_is_reported_with_advice() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    // Nothing listens on port 1.
    for name in ["localhost:1/no/such:image", "Not An Image"] {
        let backend = DockerBackend::from_image(name).with_host(&engine.host);
        let error = backend.open(context()).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.advice().is_some(), "{error}");
    }
}

#[tokio::test]
async fn unreachable_engine_is_reported_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let missing = format!("unix://{}/docker.sock", directory.path().display());
    // Reserved while held, but not listening.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = format!("tcp://{}", socket.local_addr().unwrap());
    for (host, why) in [(missing, "there is no socket"), (closed, "nothing listens")] {
        let backend = DockerBackend::from_image("x").with_host(&host);
        let error = backend.open(context()).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.advice().is_some());
    }
}

#[tokio::test]
async fn missing_runtime_is_reported() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend().with_runtime("nosuchruntime");
    let error = backend.open(context()).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.to_string().contains("nosuchruntime"), "{error}");
}

#[tokio::test]
async fn probe_reports_the_engine() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let report = engine.backend().probe().await.unwrap();
    assert_eq!(report.address, engine.host);
    assert!(report.platform.starts_with("linux/"), "{report:?}");
    assert!(!report.version.is_empty() && !report.api_version.is_empty());
}

/// Collects the progress output of opening a sandbox.
#[derive(Debug, Default)]
struct ProgressLog(Mutex<Vec<String>>);

impl Progress for ProgressLog {
    fn output(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn build_progress_is_reported_unless_the_image_exists() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let token = cantle_core::ids::unique_id();
    let lines = format!("FROM {}\nENV TOKEN={token}\n", engine.busybox);
    let opening = async || {
        // Another backend with the same Dockerfile, as in another process.
        let backend = dockerfile_backend(&engine, directory.path(), &lines);
        let progress = Arc::new(ProgressLog::default());
        let watched = context().with_progress(progress.clone());
        backend.open(watched).await.unwrap().close().await.unwrap();
        std::mem::take(&mut *progress.0.lock().unwrap())
    };
    let dockerfile = directory.path().join("Dockerfile");
    let building = format!("building {}", dockerfile.display());
    let lines = opening().await;
    assert_eq!(lines.first(), Some(&building), "{lines:?}");
    let is_last_step = |line: &String| {
        line.starts_with(&building) && line.ends_with(&format!("ENV TOKEN={token}"))
    };
    assert!(lines.iter().any(is_last_step), "{lines:?}");
    assert_eq!(opening().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_an_image_are_read_only_and_limited_as_the_rest() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let lines = format!(
        "FROM {}\nRUN mkdir /data && echo text > /data/file && chmod 777 /data\n\
         VOLUME [\"/data/\", \"/new\", \"/tmp\", \"/workspace\", \"/workspace/cache\"]\n",
        engine.busybox
    );
    let backend = dockerfile_backend(&engine, directory.path(), &lines);
    // Without limits they are like the rest of the image.
    let sandbox = open(&backend).await;
    stdout(&*sandbox, "echo changed > /data/new").await;
    sandbox.close().await.unwrap();

    let mut policy = Policy::workspace();
    policy.limits.disk_bytes = Some(16 << 20);
    let limited = backend.open(context_with(policy.clone())).await.unwrap();
    let by = |field| {
        limited
            .info()
            .enforcement
            .iter()
            .find(|it| it.field == field)
            .unwrap()
            .by
    };
    assert_eq!(by(PolicyField::Disk), EnforcedBy::Kernel);
    let read_only = backend.clone().with_read_only_root();
    let read_only = open(&read_only).await;
    for sandbox in [limited, read_only] {
        assert_eq!(
            stdout(&*sandbox, "ls /data; echo x > file; cat file").await,
            "x"
        );
        let mounts = stdout(
            &*sandbox,
            "grep -E ' (/data|/new|/workspace/cache) ' /proc/mounts",
        )
        .await;
        assert_eq!(mounts.lines().count(), 3, "{mounts}");
        let writable = mounts.lines().find(|line| !line.contains(" ro,"));
        assert_eq!(writable, None);
        for path in ["/data", "/new", "/workspace/cache"] {
            let written = run(&*sandbox, &format!("echo x > {path}/x")).await;
            assert!(!written.exit.status.success(), "{path} was written");
        }
        let workspace = stdout(&*sandbox, "grep -E ' (/tmp|/workspace) ' /proc/mounts").await;
        assert!(
            workspace.lines().all(|line| line.starts_with("tmpfs ")),
            "{workspace}"
        );
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn images_with_a_purpose_are_removed_if_they_are_old_and_in_no_container() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let purpose = directory.path().file_name().unwrap().to_string_lossy();
    let lines = format!("FROM {}\nLABEL cantle.purpose={purpose}\n", engine.busybox);
    let backend = dockerfile_backend(&engine, directory.path(), &lines);
    let sandbox = open(&backend).await;
    let in_use = backend.remove_images(&purpose, Duration::ZERO).await;
    assert_eq!(in_use.unwrap(), Reclaimed::default());
    sandbox.close().await.unwrap();
    let recent = backend
        .remove_images(&purpose, Duration::from_secs(3600))
        .await;
    assert_eq!(recent.unwrap(), Reclaimed::default());
    let removed = backend
        .remove_images(&purpose, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(removed.failed, vec![]);
    let [name] = &removed.removed[..] else {
        panic!("{removed:?}");
    };
    assert!(name.contains("cantle-build:"), "{name}");
}
