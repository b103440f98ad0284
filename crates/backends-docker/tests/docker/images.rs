//! Where images come from, and what is said where they don't.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use cantle_backends_docker::DockerBackend;
use cantle_core::sandbox::{Backend as _, SandboxErrorKind};
use cantle_core::tool::Progress;
use futures_util::future::join_all;

use crate::support::{Peer, context, open, stdout};

fn recipe(peer: &Peer, directory: &Path, lines: &str) -> DockerBackend {
    let dockerfile = directory.join("Dockerfile");
    fs::write(&dockerfile, lines).unwrap();
    DockerBackend::from_dockerfile(dockerfile, directory, [("WORD", "hello")])
        .with_host(&peer.host)
        .with_build_network("none")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dockerfile_is_built_once_for_the_same_content() {
    let Some(peer) = Peer::find() else { return };
    let directory = tempfile::tempdir().unwrap();
    let token = cantle_core::ids::fresh_id();
    fs::write(directory.path().join("data"), &token).unwrap();
    fs::write(directory.path().join("secret"), "stays at home").unwrap();
    fs::write(directory.path().join(".dockerignore"), "secret\n").unwrap();
    let lines = format!(
        "FROM {}\nARG WORD\nCOPY . /data/\nRUN echo $WORD > /data/word\nENV OF=image\n",
        peer.busybox
    );
    let backend = recipe(&peer, directory.path(), &lines);
    let four = join_all(
        [backend.clone(), backend.clone(), backend.clone(), backend].map(async |backend| {
            let sandbox = open(&backend).await;
            let image = peer.docker([
                "inspect",
                "--format",
                "{{.Image}}",
                &peer.container(&*sandbox),
            ]);
            let seen = stdout(
                &*sandbox,
                "cat /data/data; echo; cat /data/word; echo $OF; ls /data",
            )
            .await;
            sandbox.close().await.unwrap();
            (image, seen)
        }),
    );
    let four = four.await;
    let (image, seen) = four.first().unwrap();
    assert_eq!(
        *seen,
        format!("{token}\nhello\nimage\nDockerfile\ndata\nword")
    );
    assert!(
        four.iter()
            .all(|other| other == &(image.clone(), seen.clone())),
        "{four:?}"
    );

    // The same files elsewhere make the same image, other ones another.
    let elsewhere = tempfile::tempdir().unwrap();
    for name in ["data", ".dockerignore"] {
        fs::copy(directory.path().join(name), elsewhere.path().join(name)).unwrap();
    }
    let again = open(&recipe(&peer, elsewhere.path(), &lines)).await;
    let same = peer.docker([
        "inspect",
        "--format",
        "{{.Image}}",
        &peer.container(&*again),
    ]);
    assert_eq!(same, *image);
    again.close().await.unwrap();
    fs::write(elsewhere.path().join("data"), "other").unwrap();
    let other = open(&recipe(&peer, elsewhere.path(), &lines)).await;
    let changed = peer.docker([
        "inspect",
        "--format",
        "{{.Image}}",
        &peer.container(&*other),
    ]);
    assert_ne!(changed, *image);
    other.close().await.unwrap();
    for image in [&changed, image] {
        peer.docker(["rmi", "--force", image]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_says_what_its_program_said() {
    let Some(peer) = Peer::find() else { return };
    let directory = tempfile::tempdir().unwrap();
    let lines = format!(
        "FROM {}\nRUN echo on the way; nosuchprogram\n",
        peer.busybox
    );
    let error = recipe(&peer, directory.path(), &lines)
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
async fn an_image_that_cant_be_had_is_said_so_with_advice() {
    let Some(peer) = Peer::find() else { return };
    // Nobody listens on port 1.
    for name in ["localhost:1/no/such:image", "Not An Image"] {
        let backend = DockerBackend::from_image(name).with_host(&peer.host);
        let error = backend.open(context()).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.advice().is_some(), "{error}");
    }
}

#[tokio::test]
async fn an_engine_that_isnt_there_is_said_so_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = format!("unix://{}/docker.sock", directory.path().display());
    // Ours as long as it is held, and nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = format!("tcp://{}", socket.local_addr().unwrap());
    for (host, why) in [(nowhere, "there is no socket"), (closed, "nobody listens")] {
        let backend = DockerBackend::from_image("x").with_host(&host);
        let error = backend.open(context()).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.advice().is_some());
    }
}

#[tokio::test]
async fn a_runtime_that_isnt_there_is_said_so() {
    let Some(peer) = Peer::find() else { return };
    let backend = peer.backend().with_runtime("nosuchruntime");
    let error = backend.open(context()).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.to_string().contains("nosuchruntime"), "{error}");
}

#[tokio::test]
async fn the_engine_says_what_it_is() {
    let Some(peer) = Peer::find() else { return };
    let report = peer.backend().probe().await.unwrap();
    assert_eq!(report.address, peer.host);
    assert!(report.platform.starts_with("linux/"), "{report:?}");
    assert!(!report.version.is_empty() && !report.api_version.is_empty());
}

/// Keeps what is said while a sandbox opens.
#[derive(Debug, Default)]
struct Said(Mutex<Vec<String>>);

impl Progress for Said {
    fn output(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_opens_is_told_how_far_a_build_is_and_nothing_where_none_is_needed() {
    let Some(peer) = Peer::find() else { return };
    let directory = tempfile::tempdir().unwrap();
    let token = cantle_core::ids::fresh_id();
    let lines = format!("FROM {}\nENV TOKEN={token}\n", peer.busybox);
    let opening = async || {
        // Another backend of the same recipe, as another process has it.
        let backend = recipe(&peer, directory.path(), &lines);
        let said = Arc::new(Said::default());
        let watched = context().with_progress(said.clone());
        backend.open(watched).await.unwrap().close().await.unwrap();
        std::mem::take(&mut *said.0.lock().unwrap())
    };
    let what = directory.path().join("Dockerfile");
    let building = format!("building {}", what.display());
    let said = opening().await;
    assert_eq!(said.first(), Some(&building), "{said:?}");
    let is_last_step = |line: &String| {
        line.starts_with(&building) && line.ends_with(&format!("ENV TOKEN={token}"))
    };
    assert!(said.iter().any(is_last_step), "{said:?}");
    assert_eq!(opening().await, [""; 0]);
}
