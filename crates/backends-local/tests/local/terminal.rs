//! Commands with a terminal.

use bytes::Bytes;
use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ExitStatus, Process, PtySize, Sandbox, SandboxContext, SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;

use crate::support::{read_until, soon};

const SIZE: PtySize = PtySize {
    rows: 33,
    columns: 101,
};

/// Sandboxes with a terminal of their own, and with one of the host's.
async fn sandboxes() -> Vec<std::sync::Arc<dyn Sandbox>> {
    let cx = |policy| SandboxContext::new(RunId::new(), policy);
    let backend = LocalBackend::new();
    let rules = backend.clone().without(Mechanism::Namespaces);
    vec![
        backend.open(cx(Policy::workspace())).await.unwrap(),
        rules.open(cx(Policy::workspace())).await.unwrap(),
        backend.open(cx(Policy::unconfined())).await.unwrap(),
    ]
}

async fn start(sandbox: &dyn Sandbox, line: &str) -> Box<dyn Process> {
    let request = SpawnRequest::shell(line)
        .with_stdin(Stdin::Piped)
        .with_pty(SIZE);
    sandbox.spawn(request).await.unwrap()
}

/// Returns the terminal's output up to the end.
async fn shown(process: &mut dyn Process) -> String {
    let mut output = process.take_output().unwrap();
    let mut shown = Vec::new();
    while let Some(chunk) = soon(output.next()).await {
        shown.extend_from_slice(&chunk.unwrap().bytes);
    }
    String::from_utf8(shown).unwrap()
}

#[tokio::test]
async fn command_has_its_own_terminal() {
    for sandbox in sandboxes().await {
        let line = "tty > /dev/null && stty size && echo err >&2 && echo here > /dev/tty";
        let mut process = start(&*sandbox, line).await;
        let shown = shown(&mut *process).await;
        assert_eq!(shown, "33 101\r\nerr\r\nhere\r\n", "{:?}", sandbox.info());
        let exit = soon(process.wait()).await.unwrap();
        assert_eq!(exit.status, ExitStatus::Code(0));
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn input_reaches_the_terminal_and_control_c_interrupts() {
    for sandbox in sandboxes().await {
        let line = "trap 'echo interrupted' INT; echo ready; read line; echo \"got $line\"; \
                    cat; echo ended";
        let mut process = start(&*sandbox, line).await;
        let mut stdin = process.take_stdin().unwrap();
        let mut output = process.take_output().unwrap();
        let mut shown = String::new();
        // Each answer is awaited, because an interrupt discards pending input.
        let steps = [
            ("ready", "hello\n"),
            ("got hello", "again\n"),
            // Echoed by the terminal, then printed by `cat`.
            ("again\r\nagain", "\x03"),
        ];
        for (after, keys) in steps {
            while !shown.contains(after) {
                let chunk = soon(output.next()).await.unwrap().unwrap();
                shown += &String::from_utf8_lossy(&chunk.bytes);
            }
            stdin.write(Bytes::from(keys)).await.unwrap();
        }
        while let Some(chunk) = soon(output.next()).await {
            shown += &String::from_utf8_lossy(&chunk.unwrap().bytes);
        }
        assert!(shown.contains("interrupted\r\nended\r\n"), "{shown}");
        assert_eq!(
            soon(process.wait()).await.unwrap().status,
            ExitStatus::Code(0)
        );
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn resize_is_delivered() {
    for sandbox in sandboxes().await {
        let line = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.02; done";
        let mut process = start(&*sandbox, line).await;
        let mut output = process.take_output().unwrap();
        let mut shown = read_until(&mut output, "ready\r\n").await.into_bytes();
        let size = PtySize {
            rows: 12,
            columns: 40,
        };
        process.resize(size).await.unwrap();
        while let Some(chunk) = soon(output.next()).await {
            shown.extend_from_slice(&chunk.unwrap().bytes);
        }
        assert_eq!(String::from_utf8(shown).unwrap(), "ready\r\n12 40\r\n");
        soon(process.wait()).await.unwrap();
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn shell_has_job_control() {
    for sandbox in sandboxes().await {
        let request = SpawnRequest::argv(["bash", "--norc", "-i"])
            .with_stdin(Stdin::Piped)
            .with_env("PS1", "> ")
            .with_pty(SIZE);
        let mut process = sandbox.spawn(request).await.unwrap();
        let mut stdin = process.take_stdin().unwrap();
        let keys = "sleep 600 & jobs\nkill %1; wait\nfg\nexit 7\n";
        stdin.write(Bytes::from(keys)).await.unwrap();
        let shown = shown(&mut *process).await;
        assert!(!shown.contains("no job control"), "{shown}");
        assert!(shown.contains("Running"), "{shown}");
        // Reported for the job or, if `wait` has noticed its end already, by `fg`.
        let ended = ["Terminated", "no such job"];
        assert!(ended.iter().any(|said| shown.contains(said)), "{shown}");
        let exit = soon(process.wait()).await.unwrap();
        assert_eq!(exit.status, ExitStatus::Code(7));
        sandbox.close().await.unwrap();
    }
}
