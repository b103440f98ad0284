//! The static binary where there is nothing to load: in an empty root directory and in one with
//! BusyBox, as an ordinary user. `cargo xtask test` builds it and says where it is; entering another
//! root directory takes root.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

#[path = "support/mod.rs"]
#[expect(dead_code, reason = "this program uses a part of it")]
mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use self::support::{Ended, ended, peer};

/// Copies a program, by another process: what this one writes can't be run while somebody whom another
/// test has just forked still has it open.
fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// A root directory of its own, with the static `cantle` in it.
struct Root(TempDir);

impl Root {
    /// With nothing else. `None`, said aloud, where it can't be had.
    fn empty() -> Option<Self> {
        let [program] = peer("static", ["CANTLE_TEST_STATIC_BIN"])?;
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can enter another root directory");
            return None;
        }
        let root = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(root.0.path(), Permissions::from_mode(0o755)).unwrap();
        copy(Path::new(&program), &root.0.path().join("cantle"));
        Some(root)
    }

    /// With BusyBox, `/proc`, `/dev/null` and places for files, as small images have them.
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
        // Where the real one is put over it.
        fs::write(root.path().join("dev/null"), "").unwrap();
        let bin = root.path().join("bin");
        copy(Path::new(&busybox), &bin.join("busybox"));
        for applet in ["sh", "cat", "tr"] {
            symlink("busybox", bin.join(applet)).unwrap();
        }
        Some(root)
    }

    /// Makes BusyBox's shell answer to the name bash.
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

    /// Runs `cantle` in there as an ordinary user.
    async fn run(&self, args: &[&str]) -> Ended {
        let mut command = Command::new("unshare");
        // Mounts in a namespace of their own are gone with its last process.
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
        ended(command.spawn().unwrap()).await
    }
}

#[tokio::test]
async fn in_an_empty_root_it_says_its_version() {
    let Some(root) = Root::empty() else { return };
    let expected = Ended {
        code: Some(0),
        stdout: format!("cantle {}\n", env!("CARGO_PKG_VERSION")),
        stderr: String::new(),
    };
    assert_eq!(root.run(&["--version"]).await, expected);
}

#[tokio::test]
async fn in_an_empty_root_it_says_what_is_missing() {
    let Some(root) = Root::empty() else { return };
    let ended = root
        .run(&["run", "Hello", "--model", "m", "--provider", "local"])
        .await;
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert!(ended.stderr.contains("bash"), "{}", ended.stderr);
    // Home can't be written: that is said, and what can be done is done.
    let said = "The run is not kept for resuming: the state directory /home/.local/state/cantle";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let ended = root.run(&["exec", "--", "/cantle", "--version"]).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(125), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("cantle: "), "{}", ended.stderr);
}

#[tokio::test]
async fn without_bash_a_program_is_run_and_a_task_is_not() {
    let Some(root) = Root::busybox() else { return };
    let ended = root
        .run(&[
            "exec",
            "--",
            "sh",
            "-c",
            "echo \"$((6 * 7)) $PWD\" | tr 4 x; exit 3",
        ])
        .await;
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stdout.starts_with("x2 /tmp/"), "{ended:?}");
    let ended = root
        .run(&["run", "Hello", "--model", "m", "--provider", "local"])
        .await;
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert!(
        ended.stderr.contains("there is no bash"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn a_task_is_done_over_http() {
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
    let ended = root.run(&args).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "Done.\n"),
        "{ended:?}"
    );
    assert!(root.path().join("home/out/cantle-result.json").exists());
    assert!(fs::metadata(root.path().join("home/out/bs")).unwrap().len() > 0);
}
