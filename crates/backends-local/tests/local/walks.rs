//! Recursive listings of hostile trees.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    FileKind, Sandbox, SandboxErrorKind, SandboxPath, Walk, walk_by_command,
};
use cantle_testkit::lane::skip;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::{on_host, open, open_under, path, ran_as_ordinary_user, run, soon, write};

/// Walks a directory in this process and by a command.
async fn both(sandbox: &dyn Sandbox, directory: &SandboxPath, max_entries: usize) -> [Walk; 2] {
    let own = soon(sandbox.walk(directory, max_entries)).await.unwrap();
    let command = soon(walk_by_command(sandbox, directory, max_entries)).await;
    [own, command.unwrap()]
}

fn names(walk: &Walk) -> Vec<String> {
    walk.entries.keys().map(SandboxPath::to_string).collect()
}

async fn python(sandbox: &dyn Sandbox, program: &str) {
    let output = run(sandbox, &format!("python3 - <<'END'\n{program}\nEND")).await;
    assert!(output.exit.status.success(), "{}", output.stderr.text());
}

#[tokio::test]
async fn a_walk_finds_what_a_command_finds() {
    let sandbox = open().await;
    let line = "mkdir -p a/b/c 'a/ x'; printf 12345 > a/b/file; truncate -s 1G a/sparse; \
                touch $'a/new\\nline' $'a/\\xff\\xfe' $'a/\\001' \"a/it's\" a/-print 'a/b/%P'; \
                touch -d 1960-01-01 a/old; touch -d 2400-01-01T00:00:00.5 a/late; touch -d @1.000000009 a/early; \
                ln a/b/file a/hard; ln -s /etc a/out; ln -s ../../a a/b/up; ln -s missing a/dangling; ln -s loop a/loop; \
                mkfifo a/fifo; chmod 000 a/hard; chmod 1777 a/b/c";
    run(&*sandbox, line).await;
    let program = "import socket; socket.socket(socket.AF_UNIX).bind('a/socket')";
    python(&*sandbox, program).await;
    let whole = sandbox.info().working_directory.clone();
    for directory in [path("."), path("a"), path("a/b"), path("a/b/up"), whole] {
        let [own, command] = both(&*sandbox, &directory, 1000).await;
        assert_eq!(own, command, "{directory}");
        assert!(!own.is_truncated && own.refused.is_empty());
        assert!(own.entries.values().all(|entry| entry.stamp.is_some()));
    }
    let own = sandbox.walk(&path("a"), 1000).await.unwrap();
    assert_eq!(own.entries.len(), 21, "{:?}", names(&own));
    let others = own
        .entries
        .iter()
        .filter(|(_, it)| it.kind == FileKind::Other);
    let others: Vec<_> = others.map(|(path, _)| path.to_string()).collect();
    assert_eq!(others, ["fifo", "socket"]);

    for (directory, kind) in [
        ("missing", SandboxErrorKind::NotFound),
        ("a/old", SandboxErrorKind::NotADirectory),
        ("a/fifo", SandboxErrorKind::NotADirectory),
        ("a/loop", SandboxErrorKind::NotFound),
        ("a/out", SandboxErrorKind::OutsideSandbox),
    ] {
        let error = soon(sandbox.walk(&path(directory), 10)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{directory}: {error}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_walk_by_busybox_finds_the_same() {
    let Some(busybox) = std::env::var_os("CANTLE_TEST_BUSYBOX") else {
        return skip("no CANTLE_TEST_BUSYBOX; `cargo xtask test` prepares it");
    };
    let programs = tempfile::tempdir().unwrap();
    for name in ["find", "sh", "stat"] {
        symlink(&busybox, programs.path().join(name)).unwrap();
    }
    let mut policy = Policy::unconfined();
    let search_path = programs.path().display().to_string();
    policy
        .environment
        .insert("PATH".to_owned(), search_path.into());
    let sandbox = open_under(policy).await;
    let line = "export PATH=/usr/bin:/bin; mkdir -p 'a/b/ x' many; printf 12345 > a/b/file; mkfifo a/fifo; \
                touch $'a/new\\nline' $'a/\\xff\\n\\n' $'a/\\n' \"a/it's\" a/-c 'a/%n'; ln -s missing a/dangling; \
                touch -d @1.000000009 a/early; touch -d 1960-01-01T00:00:00.5Z a/old; cd many; seq 5000 | xargs touch";
    let made = run(&*sandbox, line).await;
    assert!(made.exit.status.success(), "{}", made.stderr.text());
    let whole = sandbox.info().working_directory.clone();
    for directory in [path("."), path("a"), path("a/b"), whole] {
        let [own, command] = both(&*sandbox, &directory, 10_000).await;
        assert_eq!(own, command, "{directory}");
    }
    let bounded = soon(walk_by_command(&*sandbox, &path("many"), 10)).await;
    let bounded = bounded.unwrap();
    assert_eq!((bounded.entries.len(), bounded.is_truncated), (10, true));

    // Same size and same time of modification.
    let before = walk_by_command(&*sandbox, &path("a"), 100).await.unwrap();
    let line = "export PATH=/usr/bin:/bin; cd a/b; touch -r file stamp; printf 54321 > file; touch -r stamp file; rm stamp";
    run(&*sandbox, line).await;
    let after = walk_by_command(&*sandbox, &path("a"), 100).await.unwrap();
    let changed: Vec<_> = after
        .changed_since(&before)
        .map(|(path, _)| path.to_string())
        .collect();
    assert_eq!(changed, ["b/file"]);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_walk_is_bounded_in_entries_and_depth() {
    let sandbox = open().await;
    let program = "import os
os.mkdir('wide'); os.mkdir('deep')
for name in range(5_000): os.close(os.open(f'wide/{name}', os.O_CREAT))
os.chdir('deep')
for level in range(2_100):
    os.mkdir('s'); os.mkdir('d'); os.chdir('d')";
    python(&*sandbox, program).await;
    let wide = path("wide");
    let started = Instant::now();
    let some = sandbox.walk(&wide, 100).await.unwrap();
    assert_eq!((some.entries.len(), some.is_truncated), (100, true));
    let [own, command] = both(&*sandbox, &wide, 5_000).await;
    assert_eq!((own.entries.len(), own.is_truncated), (5_000, false));
    assert_eq!(own, command);

    // Neither by a stack nor by a descriptor of each level; paths end at PATH_MAX.
    let [own, command] = both(&*sandbox, &path("deep"), 100_000).await;
    assert_eq!(own, command);
    let longest = own.entries.keys().map(|it| it.relative_bytes().len()).max();
    assert_eq!((longest, own.entries.len()), (Some(4095), 2 * 2048));
    let [refused] = own.refused.as_slice() else {
        panic!("{:?}", own.refused)
    };
    assert_eq!(refused.reason, "the paths below it are too long");
    assert!(started.elapsed() < Duration::from_secs(60));
    sandbox.close().await.unwrap();
}

/// Root can read them, and lists what commands of another user can't.
#[test]
fn directories_without_permissions_are_refused_by_name() {
    let name = "walks::directories_without_permissions_are_refused_by_name";
    let is_root = ran_as_ordinary_user(name);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let sandbox = open().await;
        let line = "mkdir -p a/closed/x a/named/x b; touch a/closed/file b/file; chmod 000 a/closed; chmod 444 a/named";
        run(&*sandbox, line).await;
        let [own, command] = both(&*sandbox, &path("."), 100).await;
        assert_eq!(own.entries, command.entries);
        let refused: BTreeSet<_> = own.refused.iter().map(|it| it.source.as_str()).collect();
        let visible = ["a", "a/closed", "a/named", "b", "b/file"];
        if is_root {
            assert!(refused.is_empty());
            assert_eq!(own.entries.len(), visible.len() + 3);
        } else {
            assert_eq!(refused, BTreeSet::from(["a/closed", "a/named"]));
            assert_eq!(names(&own), visible);
            let error = sandbox.walk(&path("a/closed"), 100).await.unwrap_err();
            assert_eq!(error.kind(), SandboxErrorKind::PermissionDenied);
        }
        sandbox.close().await.unwrap();
    });
}

/// Repeats `change` on another thread while `check` runs, for a second, and longer until `check` was true.
async fn during(mut change: impl FnMut() + Send + 'static, mut check: impl AsyncFnMut() -> bool) {
    let stop = Arc::new(AtomicBool::new(false));
    let changing = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                change();
            }
        }
    });
    let (started, race) = (Instant::now(), Duration::from_secs(1));
    let mut was_true = false;
    while started.elapsed() < race || !was_true && started.elapsed() < 30 * race {
        was_true |= soon(check()).await;
    }
    stop.store(true, Ordering::Relaxed);
    changing.join().unwrap();
    assert!(was_true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_becomes_a_link_is_not_followed() {
    let sandbox = open().await;
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir_all(outside.path().join("below/secret")).unwrap();
    for name in ["d/below/f", "d/g", "other/f"] {
        write(&*sandbox, name, "inside").await;
    }
    let work = on_host(&*sandbox, "");
    symlink(outside.path(), work.join("fake")).unwrap();
    let swap = move || {
        let (real, fake) = (work.join("d"), work.join("fake"));
        renameat_with(CWD, &real, CWD, &fake, RenameFlags::EXCHANGE).unwrap();
    };
    during(swap, async || {
        let walk = sandbox.walk(&path("."), 100).await.unwrap();
        let found = names(&walk);
        assert!(
            !found.iter().any(|name| name.contains("secret")),
            "{found:?}"
        );
        assert!(walk.refused.is_empty(), "{:?}", walk.refused);
        if let Ok(walk) = sandbox.walk(&path("d"), 100).await {
            let found = names(&walk);
            assert!(
                !found.iter().any(|name| name.contains("secret")),
                "{found:?}"
            );
        }
        found.iter().any(|name| name == "d/below/f")
    })
    .await;
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_changes_is_walked_to_an_end() {
    let sandbox = open().await;
    write(&*sandbox, "d/kept", "x").await;
    let directory = on_host(&*sandbox, "d");
    let mut number = 0_u64;
    let churn = move || {
        number += 1;
        let place = directory.join(number.to_string());
        fs::create_dir(&place).unwrap();
        fs::write(place.join("f"), "x").unwrap();
        if number > 30 {
            fs::remove_dir_all(directory.join((number - 30).to_string())).unwrap();
        }
    };
    during(churn, async || {
        let walk = sandbox.walk(&path("."), 80).await.unwrap();
        assert!(walk.entries.len() <= 80);
        assert!(walk.refused.is_empty(), "{:?}", walk.refused);
        let found = names(&walk);
        assert!(
            walk.is_truncated || found.contains(&"d/kept".to_owned()),
            "{found:?}"
        );
        !walk.is_truncated
    })
    .await;
    sandbox.close().await.unwrap();
}
