//! Closing, dropping and losing a sandbox.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use cantle_core::sandbox::{
    Background, ByteRange, Sandbox, SandboxErrorKind, SandboxExt as _, SpawnRequest,
};

use crate::support::{
    Token, eventually, exists, new_runtime, on_host, open, path, ran_as_ordinary_user, run, soon,
    stdout, write,
};

fn root(sandbox: &dyn Sandbox) -> PathBuf {
    on_host(sandbox, "").parent().unwrap().to_owned()
}

#[tokio::test]
async fn close_kills_all_processes_and_removes_the_directory() {
    let sandbox = open().await;
    let token = Token::new();
    let mut process = sandbox
        .spawn(token.shell("trap '' TERM; setsid sleep 600 & (setsid sleep 600 &); sleep 600"))
        .await
        .unwrap();
    let leader = process.id().unwrap();
    let request = token
        .shell("setsid sleep 600 & true")
        .with_background(Background::Keep);
    sandbox.run(request).await.unwrap();
    token.at_least(4).await;
    let root = root(&*sandbox);
    soon(sandbox.close()).await.unwrap();
    assert_eq!(token.alive(), [0; 0]);
    assert!(!exists(leader));
    assert!(!root.exists());
    let error = soon(process.wait()).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Closed);
}

#[tokio::test]
async fn operations_after_close_fail_and_second_close_succeeds() {
    let sandbox = open().await;
    sandbox.close().await.unwrap();
    sandbox.close().await.unwrap();
    let spawned = sandbox.spawn(SpawnRequest::shell("true")).await;
    let file = path("f");
    for (what, error) in [
        ("spawn", spawned.err()),
        ("read", sandbox.read(&file, ByteRange::all()).await.err()),
        ("write", sandbox.write_bytes(&file, "x".into()).await.err()),
        ("stat", sandbox.stat(&file).await.err()),
        ("list", sandbox.list(&file).await.err()),
        ("mkdir", sandbox.mkdir(&file).await.err()),
        ("remove", sandbox.remove(&file).await.err()),
        ("rename", sandbox.rename(&file, &path("g")).await.err()),
    ] {
        assert_eq!(error.unwrap().kind(), SandboxErrorKind::Closed, "{what}");
    }
}

#[tokio::test]
async fn drop_kills_all_processes_and_removes_the_directory() {
    let sandbox = open().await;
    let token = Token::new();
    let process = sandbox
        .spawn(token.shell("(setsid sleep 600 &); sleep 600"))
        .await
        .unwrap();
    let leader = process.id().unwrap();
    token.at_least(2).await;
    let root = root(&*sandbox);
    drop(sandbox);
    eventually("its processes are gone", || token.alive().is_empty()).await;
    eventually("its directory is gone", || !root.exists()).await;
    drop(process);
    eventually("the leader is reaped", || !exists(leader)).await;
}

#[tokio::test]
async fn drop_works_outside_a_runtime() {
    let token = Token::new();
    let sandbox = open().await;
    let request = token
        .shell("setsid sleep 600 & true")
        .with_background(Background::Keep);
    sandbox.run(request).await.unwrap();
    let root = root(&*sandbox);
    std::thread::spawn(move || drop(sandbox)).join().unwrap();
    assert_eq!(token.alive(), [0; 0]);
    assert!(!root.exists());
}

#[tokio::test]
async fn close_does_not_affect_other_sandboxes() {
    let (one, other) = (open().await, open().await);
    let token = Token::new();
    let request = token
        .shell("setsid sleep 600 & true")
        .with_background(Background::Keep);
    other.run(request).await.unwrap();
    one.close().await.unwrap();
    eventually("it runs", || token.alive().len() == 1).await;
    assert_eq!(stdout(&*other, "echo alive").await, "alive\n");
    other.close().await.unwrap();
    assert_eq!(token.alive(), [0; 0]);
}

#[tokio::test]
async fn tree_deeper_than_path_max_is_removed() {
    let sandbox = open().await;
    // Far deeper than PATH_MAX allows.
    let line = "python3 -c 'import os
for number in range(1, 3001):
    os.makedirs(f\"dir-{number}/twig\"); open(f\"dir-{number}/f\", \"w\"); os.chdir(f\"dir-{number}\")
print(len(os.getcwd()))'";
    let length = stdout(&*sandbox, line).await;
    assert!(length.trim().parse::<usize>().unwrap() > 4096, "{length}");
    let first = path("dir-1");
    stdout(
        &*sandbox,
        "mkdir kept && touch kept/f && ln -s ../kept dir-1/link",
    )
    .await;
    soon(sandbox.remove(&first)).await.unwrap();
    assert_eq!(
        sandbox.stat(&first).await.unwrap_err().kind(),
        SandboxErrorKind::NotFound
    );
    assert!(sandbox.is_file(&path("kept/f")).await.unwrap());
    run(&*sandbox, line).await;
    let root = root(&*sandbox);
    soon(sandbox.close()).await.unwrap();
    assert!(!root.exists());
}

#[tokio::test]
async fn symlinks_are_removed_not_followed() {
    let sandbox = open().await;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    let out = outside.path().display();
    run(
        &*sandbox,
        &format!("mkdir d; ln -s {out} d/out; ln -s {out} out; ln -s nowhere d/dangling"),
    )
    .await;
    sandbox.remove(&path("d")).await.unwrap();
    sandbox.close().await.unwrap();
    assert!(outside.path().join("precious").exists());
}

#[tokio::test]
async fn close_error_names_unremovable_files() {
    let sandbox = open().await;
    let root = root(&*sandbox);
    write(&*sandbox, "d/stays", "x").await;
    for name in ["goes", "d/goes", "d/too", "d/e/goes"] {
        write(&*sandbox, name, "x").await;
    }
    // Takes root, and a file system that supports it.
    if !run(&*sandbox, "chattr +i d/stays")
        .await
        .exit
        .status
        .success()
    {
        return sandbox.close().await.unwrap();
    }
    let error = sandbox.close().await.unwrap_err();
    assert!(
        error.to_string().contains(&*root.to_string_lossy()),
        "{error}"
    );
    assert!(error.to_string().contains("`stays`"), "{error}");
    let left = Command::new("find")
        .arg(&root)
        .args(["-type", "f"])
        .output()
        .unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    assert!(
        left.ends_with("/stays\n") && left.lines().count() == 1,
        "{left}"
    );
    sandbox.close().await.unwrap();
    assert!(
        Command::new("chattr")
            .arg("-R")
            .arg("-i")
            .arg(&root)
            .status()
            .unwrap()
            .success()
    );
    fs::remove_dir_all(&root).unwrap();
}

#[tokio::test]
async fn deleted_working_directory_is_reported_as_gone() {
    let sandbox = open().await;
    write(&*sandbox, "f", "x").await;
    fs::remove_dir_all(on_host(&*sandbox, "")).unwrap();
    assert_gone(&*sandbox).await;
    // A new directory of the same name is another one.
    fs::create_dir(on_host(&*sandbox, "")).unwrap();
    let spawned = sandbox.spawn(SpawnRequest::shell("true")).await;
    assert_eq!(spawned.err().unwrap().kind(), SandboxErrorKind::Gone);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn deleted_root_is_reported_as_gone_and_can_be_closed() {
    let sandbox = open().await;
    fs::remove_dir_all(root(&*sandbox)).unwrap();
    assert_gone(&*sandbox).await;
    sandbox.close().await.unwrap();
}

async fn assert_gone(sandbox: &dyn Sandbox) {
    let file = path("f");
    let spawned = sandbox.spawn(SpawnRequest::shell("true")).await;
    for (what, error) in [
        ("spawn", spawned.err()),
        ("read", sandbox.read(&file, ByteRange::all()).await.err()),
        (
            "write",
            sandbox.write_bytes(&path("d/f"), "x".into()).await.err(),
        ),
        ("stat", sandbox.stat(&file).await.err()),
        ("list", sandbox.list(&path(".")).await.err()),
        ("mkdir", sandbox.mkdir(&file).await.err()),
        ("remove", sandbox.remove(&file).await.err()),
        ("rename", sandbox.rename(&file, &path("g")).await.err()),
    ] {
        assert_eq!(error.unwrap().kind(), SandboxErrorKind::Gone, "{what}");
    }
}

/// Root ignores permissions, so this runs again as an ordinary user.
#[test]
fn directories_without_permissions_are_removed() {
    if ran_as_ordinary_user("closing::directories_without_permissions_are_removed") {
        return;
    }
    let runtime = new_runtime();
    runtime.block_on(async {
        let sandbox = open().await;
        let line =
            "mkdir -p d/e/f d/g kept && touch d/e/f/x d/g/x kept/x && chmod 000 d/e/f d/e d/g d";
        run(&*sandbox, line).await;
        let denied = sandbox.list(&path("d")).await.unwrap_err();
        assert_eq!(denied.kind(), SandboxErrorKind::PermissionDenied);
        sandbox.remove(&path("d")).await.unwrap();
        assert_eq!(stdout(&*sandbox, "ls").await, "kept\n");
        run(&*sandbox, &format!("{line}; chmod 000 . .. $TMPDIR")).await;
        let root = root(&*sandbox);
        sandbox.close().await.unwrap();
        assert!(!root.exists());
    });
}
