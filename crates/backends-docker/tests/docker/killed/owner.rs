//! A subprocess that owns a sandbox and is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxHandle};
use tempfile::TempDir;

use super::phase::{Phase, begin};
use super::{ATTACHED, DURABLE, OPENING, PLAIN, REATTACHED};
use crate::support::TestEngine;

/// Selects the [`Owner`] role in a subprocess of this test program: run, kind of sandbox and phase.
const OWNER: &str = "CANTLE_TEST_DOCKER_KILLED";

/// A subprocess with a sandbox, killed on drop.
pub(super) struct Owner {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(super) run: RunId,
    pub(super) directory: TempDir,
}

impl Owner {
    pub(super) fn start(engine: &TestEngine, kind: &str, phase: &str) -> Self {
        let run = RunId::new();
        let directory = tempfile::tempdir().unwrap();
        let order = [&run.to_string(), kind, phase].join("\n");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["killed::owner::owner_main", "--exact", "--nocapture"])
            .env(OWNER, order)
            .env("CANTLE_TEST_DOCKER_HOST", &engine.host)
            .env("TMPDIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdout,
            run,
            directory,
        }
    }

    /// Waits for a line with this word.
    pub(super) fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            let length = self.stdout.read_line(&mut line).unwrap();
            assert!(length > 0, "the owner ended without `{word}`");
        }
    }

    pub(super) fn kill(&mut self) {
        // `Child` does not signal a process that was reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lists the files in its temporary directory.
    pub(super) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
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

/// Not a test: the main function of an [`Owner`].
#[tokio::test(flavor = "multi_thread")]
async fn owner_main() {
    let Ok(order) = std::env::var(OWNER) else {
        return;
    };
    let [run, kind, phase] = *order.split('\n').collect::<Vec<_>>() else {
        panic!("{order}")
    };
    let run = run.parse().unwrap();
    let engine = TestEngine::from_env().unwrap();
    let mut cx = SandboxContext::new(run, Policy::unconfined());
    println!("\nopening");
    let opened = if let Some(container) = kind.strip_prefix(ATTACHED) {
        let backend = DockerBackend::attach(container).with_host(&engine.host);
        backend.open(cx).await
    } else if let Some(handle) = kind.strip_prefix(REATTACHED) {
        let handle: SandboxHandle = serde_json::from_str(handle).unwrap();
        engine.backend().reattach(&handle, cx.durable()).await
    } else {
        if kind == DURABLE {
            cx = cx.durable();
        }
        let backend = match kind {
            PLAIN => engine.backend().without_supervisor(),
            _ => engine.backend(),
        };
        backend.open(cx).await
    };
    let sandbox = opened.unwrap();
    if phase != OPENING {
        let outputs = std::env::temp_dir().join("outputs");
        let begun = begin(&sandbox, Phase::named(phase), run, &outputs).await;
        println!("\nbegun");
        let _ = begun.await;
    }
    std::future::pending::<()>().await;
}
