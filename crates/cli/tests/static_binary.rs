//! The static binary without libraries: in an empty root directory and in one with BusyBox, as an
//! ordinary user. `cargo xtask test` builds it and sets its path; `chroot` needs root.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "clippy exempts test functions only, not their helpers"
)]

#[path = "support/mod.rs"]
#[expect(dead_code, reason = "this test uses only some helpers")]
mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use self::support::{Exited, peer, static_program, wait_for_exit};

/// Copies a program with `cp`: a file that this process writes can't be executed while a child that another
/// test has just forked has it open.
fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// A root directory with the static `cantle`.
struct Root(TempDir);

impl Root {
    /// Creates one with nothing else; `None`, with a message, if that is not possible.
    fn empty() -> Option<Self> {
        let program = static_program()?;
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can enter another root directory");
            return None;
        }
        let root = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(root.0.path(), Permissions::from_mode(0o755)).unwrap();
        copy(Path::new(&program), &root.0.path().join("cantle"));
        Some(root)
    }

    /// Creates one with BusyBox, `/proc`, `/dev/null` and writable directories, like a small image.
    fn busybox() -> Option<Self> {
        let [busybox] = peer("busybox", ["CANTLE_TEST_BUSYBOX"])?;
        let root = Self::empty()?;
        for (directory, mode) in [
            ("bin", 0o755),
            ("dev", 0o755),
            ("proc", 0o755),
            ("tmp", 0o1777),
            ("home", 0o1777),
        ] {
            let directory = root.path().join(directory);
            fs::create_dir(&directory).unwrap();
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        }
        // The mount point of the real one.
        fs::write(root.path().join("dev/null"), "").unwrap();
        let bin = root.path().join("bin");
        copy(Path::new(&busybox), &bin.join("busybox"));
        for applet in ["sh", "cat", "tr"] {
            symlink("busybox", bin.join(applet)).unwrap();
        }
        Some(root)
    }

    /// Adds a `bash` that runs BusyBox's shell.
    fn with_bash(self) -> Self {
        let script = self.path().join("bash");
        fs::write(&script, "#!/bin/sh\nexec /bin/sh \"$@\"\n").unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        copy(&script, &self.path().join("bin/bash"));
        self
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs `cantle` in it as an ordinary user.
    async fn run(&self, args: &[&str]) -> Exited {
        let mut command = Command::new("unshare");
        // Mounts end with their namespace.
        let script = r#"
            if [ -d "$0/proc" ]; then
                mount -t proc proc "$0/proc" && mount --bind /dev/null "$0/dev/null" || exit 99
            fi
            exec chroot --userspec=65534:65534 --groups= "$0" /cantle "$@""#;
        command
            .args(["--mount", "--", "sh", "-c", script])
            .arg(self.path())
            .args(args)
            .env_clear()
            .envs([("PATH", "/bin:/usr/bin:/usr/sbin"), ("HOME", "/home")])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        wait_for_exit(command.spawn().unwrap()).await
    }
}

#[tokio::test]
async fn empty_root_prints_the_version() {
    let Some(root) = Root::empty() else { return };
    let expected = Exited {
        code: Some(0),
        stdout: format!("cantle {}\n", env!("CARGO_PKG_VERSION")),
        stderr: String::new(),
    };
    assert_eq!(root.run(&["--version"]).await, expected);
}

#[tokio::test]
async fn empty_root_reports_what_is_missing() {
    let Some(root) = Root::empty() else { return };
    let exited = root
        .run(&["run", "Hello", "--model", "m", "--provider", "local"])
        .await;
    assert_eq!(exited.code, Some(6), "{exited:?}");
    assert!(exited.stderr.contains("bash"), "{}", exited.stderr);
    // The home directory is not writable, so the run is not kept.
    let expected =
        "This run can't be resumed: failed to create the state directory /home/.local/state/cantle";
    assert!(exited.stderr.contains(expected), "{}", exited.stderr);
    let exited = root.run(&["exec", "--", "/cantle", "--version"]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(125), ""),
        "{exited:?}"
    );
    assert!(exited.stderr.starts_with("cantle: "), "{}", exited.stderr);
}

#[tokio::test]
async fn without_bash_exec_works_and_run_fails() {
    let Some(root) = Root::busybox() else { return };
    let exited = root
        .run(&[
            "exec",
            "--",
            "sh",
            "-c",
            "echo \"$((6 * 7)) $PWD\" | tr 4 x; exit 3",
        ])
        .await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    assert!(exited.stdout.starts_with("x2 /tmp/"), "{exited:?}");
    let exited = root
        .run(&["run", "Hello", "--model", "m", "--provider", "local"])
        .await;
    assert_eq!(exited.code, Some(6), "{exited:?}");
    assert!(
        exited.stderr.contains("there is no bash"),
        "{}",
        exited.stderr
    );
}

#[tokio::test]
async fn task_is_done_over_http() {
    let Some(root) = Root::busybox().map(Root::with_bash) else {
        return;
    };
    let command = ToolCall::new(
        "code_exec",
        json!({"cmd": "cat /bin/busybox | tr -dc B > bs; echo ok"}),
    );
    let finish = ToolCall::new("finish", json!({"reason": "Done.", "paths": ["bs"]}));
    let script = Script::new()
        .turn(Turn::tool(command))
        .turn(Turn::tool(finish));
    let server = ScriptedServer::start(script).await.unwrap();
    let url = server.url();
    let args = [
        "run",
        "Count",
        "--model",
        "m",
        "--base-url",
        &url,
        "--output-dir",
        "/home/out",
    ];
    let exited = root.run(&args).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "Done.\n"),
        "{exited:?}"
    );
    assert!(root.path().join("home/out/cantle-result.json").exists());
    assert!(fs::metadata(root.path().join("home/out/bs")).unwrap().len() > 0);
}
