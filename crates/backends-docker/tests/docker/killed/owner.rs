//! A process that has a sandbox, and will be killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxHandle};
use tempfile::TempDir;

use super::phase::{Phase, begin};
use super::{ATTACHED, DURABLE, OPENING, PLAIN, REATTACHED};
use crate::support::Peer;

/// Says to this program that it is the one that will be killed: the run, what sandbox it has, in which
/// phase it is killed, and where it may leave something.
const OWNER: &str = "CANTLE_TEST_DOCKER_KILLED";

/// Another process, which has a sandbox. Dropped, it is killed.
pub(super) struct Owner {
    child: Child,
    said: BufReader<ChildStdout>,
    pub(super) run: RunId,
    pub(super) place: TempDir,
}

impl Owner {
    pub(super) fn start(peer: &Peer, kind: &str, phase: &str) -> Self {
        let run = RunId::new();
        let place = tempfile::tempdir().unwrap();
        let order = [&run.to_string(), kind, phase].join("\n");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["killed::owner::an_owner", "--exact", "--nocapture"])
            .env(OWNER, order)
            .env("CANTLE_TEST_DOCKER_HOST", &peer.host)
            .env("TMPDIR", place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            said,
            run,
            place,
        }
    }

    /// Waits until it says this.
    pub(super) fn says(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            let length = self.said.read_line(&mut line).unwrap();
            assert!(length > 0, "the owner ended without `{word}`");
        }
    }

    pub(super) fn kill(&mut self) {
        // Only once: its number may be somebody else's afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it has left in its temporary directory.
    pub(super) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.place.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}

/// No test of its own: what an [`Owner`] does.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner() {
    let Ok(order) = std::env::var(OWNER) else {
        return;
    };
    let [run, kind, phase] = *order.split('\n').collect::<Vec<_>>() else {
        panic!("{order}")
    };
    let run = run.parse().unwrap();
    let peer = Peer::find().unwrap();
    let mut cx = SandboxContext::new(run, Policy::unconfined());
    println!("\nopening");
    let opened = if let Some(container) = kind.strip_prefix(ATTACHED) {
        let backend = DockerBackend::attach(container).with_host(&peer.host);
        backend.open(cx).await
    } else if let Some(handle) = kind.strip_prefix(REATTACHED) {
        let handle: SandboxHandle = serde_json::from_str(handle).unwrap();
        peer.backend().reattach(&handle, cx.durable()).await
    } else {
        if kind == DURABLE {
            cx = cx.durable();
        }
        let backend = match kind {
            PLAIN => peer.backend().without_supervisor(),
            _ => peer.backend(),
        };
        backend.open(cx).await
    };
    let sandbox = opened.unwrap();
    if phase != OPENING {
        let directory = std::env::temp_dir().join("outputs");
        let begun = begin(&sandbox, Phase::named(phase), run, &directory).await;
        println!("\nbegun");
        let _ = begun.await;
    }
    std::future::pending::<()>().await;
}
