//! Runs on a copy of a directory, and what becomes of their changes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use crate::serve::serve;
use crate::support::{DEADLINE, DEFAULT_SIGNALS, Exited, TestEnv, peer, send, wait_for_exit};
use crate::{command, finish};

/// Every kind of change.
const CHANGES: &str = "sed -i s/helo/hello/ src/main.txt; mkdir -p built docs; echo x > built/x; echo new > docs/new.md; \
    mv old.txt moved.txt; chmod -x run.sh; printf 'a\\0c' > data.bin; cat .env";

/// Returns a server whose model runs a command and finishes, and a directory `repo` to work on.
async fn on_repository(changes: &str) -> (ScriptedServer, TestEnv) {
    let script = Script::new()
        .turn(command(changes))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script.repeat_last()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write("repo/src/main.txt", "first\nhelo\nlast\n");
    env.write("repo/old.txt", "kept as it is\n");
    env.write("repo/run.sh", "#!/bin/sh\n");
    fs::set_permissions(env.path("repo/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    env.write("repo/data.bin", b"a\0b");
    env.write("repo/.gitignore", "/built\n");
    env.write("repo/.env", "SECRET=1\n");
    (server, env)
}

async fn work(env: &TestEnv, flags: &[&str]) -> Exited {
    let run = ["run", "Correct it", "--workdir", "repo"];
    env.run(run.iter().chain(flags)).await
}

async fn apply(env: &TestEnv, flags: &[&str]) -> Exited {
    env.run(["runs", "apply", "last"].iter().chain(flags)).await
}

fn mode(env: &TestEnv, path: &str) -> u32 {
    fs::metadata(env.path(path)).unwrap().permissions().mode() & 0o777
}

#[track_caller]
fn assert_original(env: &TestEnv) {
    assert_eq!(env.read("repo/src/main.txt"), "first\nhelo\nlast\n");
    assert_eq!(
        env.list("repo"),
        [".env", ".gitignore", "data.bin", "old.txt", "run.sh", "src"]
    );
    assert_eq!(env.read("repo/data.bin"), "a\0b");
    assert_eq!(mode(env, "repo/run.sh"), 0o755);
}

#[track_caller]
fn assert_changed(env: &TestEnv) {
    assert_eq!(env.read("repo/src/main.txt"), "first\nhello\nlast\n");
    assert_eq!(
        env.list("repo"),
        [
            ".env",
            ".gitignore",
            "data.bin",
            "docs",
            "moved.txt",
            "run.sh",
            "src"
        ]
    );
    assert_eq!(env.read("repo/data.bin"), "a\0c");
    assert_eq!(mode(env, "repo/run.sh"), 0o644);
}

#[tokio::test]
async fn changes_wait_for_their_user_and_can_be_reverted() {
    let (server, env) = on_repository(CHANGES).await;
    let exited = work(&env, &[]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "Done.\n"),
        "{exited:?}"
    );
    assert_original(&env);
    insta::assert_snapshot!(exited.transcript(&env));
    let first = server.requests()[0].body().to_string();
    assert!(first.contains("a copy of the user's directory"), "{first}");
    assert!(!first.contains("No output directory"), "{first}");
    let second = server.requests()[1].body().to_string();
    assert!(!second.contains("SECRET"), "{second}");

    let patch = apply(&env, &["--diff"]).await;
    insta::assert_snapshot!(patch.stdout);

    let reverted = apply(&env, &["--revert"]).await;
    let none = "Nothing was reverted: no changes are applied.\n";
    assert_eq!((reverted.code, &*reverted.stdout), (Some(0), none));
    let shown = env.run(["runs", "show", "last"]).await.stdout;
    assert!(shown.contains("changes  6 files, not applied\n"), "{shown}");
    for _ in 0..2 {
        let applied = apply(&env, &[]).await;
        assert_eq!(applied.code, Some(0), "{applied:?}");
        assert_changed(&env);
    }
    let refused = apply(&env, &["--reject"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let reverted = apply(&env, &["--revert"]).await;
    assert_eq!(reverted.code, Some(0), "{reverted:?}");
    assert_original(&env);

    let state = env.path(".local/state/cantle/working-copies");
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
    let removed = env.run(["runs", "rm", "last"]).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
}

#[tokio::test]
async fn changes_are_applied_or_rejected_as_flags_say() {
    let (_server, env) = on_repository(CHANGES).await;
    let rejected = work(&env, &["--reject", "--diff", "changes.patch"]).await;
    assert_eq!(rejected.code, Some(0), "{rejected:?}");
    assert_original(&env);
    let patch = env.read("changes.patch");
    assert!(
        patch.contains("+hello\n") && patch.contains("rename to moved.txt\n"),
        "{patch}"
    );

    // Half of the work is not applied unasked.
    let half = work(&env, &["--apply", "--no-keep", "--max-turns", "1"]).await;
    assert_eq!(half.code, Some(3), "{half:?}");
    assert!(
        half.stderr
            .contains("Nothing was written yet: the run is not kept"),
        "{half:?}"
    );
    assert_original(&env);

    let lost = work(&env, &["--diff", "gone/patch", "--no-keep"]).await;
    assert_eq!(lost.code, Some(1), "{lost:?}");
    let (_, place) = lost.stderr.split_once("the changed files are in ").unwrap();
    let (place, _) = place.split_once(": failed to write gone/patch").unwrap();
    let saved = fs::read_to_string(Path::new(place).join("docs/new.md")).unwrap();
    assert_eq!(saved, "new\n");

    let applied = work(&env, &["--apply", "--no-keep"]).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert_changed(&env);
    let again = work(&env, &["--apply"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stderr.contains("No changes to "), "{again:?}");
}

#[tokio::test]
async fn changes_are_applied_even_if_the_answer_cannot_be_written() {
    let (_server, env) = on_repository(CHANGES).await;
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = env.command(["run", "Correct it", "--workdir", "repo", "--apply"]);
    let exited = wait_for_exit(command.stdout(full).spawn().unwrap()).await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    assert!(
        exited.stderr.contains("failed to write the result"),
        "{exited:?}"
    );
    assert_changed(&env);
}

#[tokio::test]
async fn more_files_are_changed_than_may_be_open() {
    let (_server, env) = on_repository("for i in $(seq 300); do echo x > new-$i; done").await;
    work(&env, &[]).await;
    let script = "ulimit -n 100 && exec \"$0\" runs apply last";
    let mut limited = env.command_of("bash");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_cantle")]);
    let applied = wait_for_exit(limited.spawn().unwrap()).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let is_new = |name: &String| name.starts_with("new-");
    let names = env.list("repo");
    assert_eq!(names.iter().filter(|name| is_new(name)).count(), 300);
}

/// The measure of a patch is that git can take it back; binary files are only named in it.
#[tokio::test]
async fn a_patch_is_one_of_git() {
    let changes = "printf 'no end' > src/main.txt; rm old.txt; : > empty; printf '\\351t\\351\\n' > latin; \
        printf 'a\\rb\\r\\n' > returns; printf 'a\\nb\\r' > 'return at its end'; \
        printf 'a\\0c' > data.bin; printf '\\0' > empty.bin; \
        printf 'a\\n' > 'with \"quotes\" and spaces'; chmod +x empty; seq 100 > many; mkdir d; mv run.sh d/run";
    let (_server, env) = on_repository(changes).await;
    let exited = work(&env, &["--diff", "changes.patch", "--apply"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let reversed = ["apply", "--check", "--reverse", "../changes.patch"];
    let mut git = std::process::Command::new("git");
    let git = git.args(reversed).current_dir(env.path("repo")).output();
    let git = git.unwrap();
    assert!(
        git.status.success(),
        "{git:?}\n{}",
        env.read("changes.patch")
    );
    assert_eq!(env.read("repo/data.bin"), "a\0c");
}

#[tokio::test]
async fn a_patch_renames_a_file_and_changes_its_mode() {
    let changes = "mv old.txt moved.txt; chmod +x moved.txt; mv run.sh run; chmod -x run";
    let (_server, env) = on_repository(changes).await;
    let exited = work(&env, &["--diff", "changes.patch", "--reject"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    for line in [
        "R old.txt → moved.txt  executable\n",
        "R run.sh → run  not executable\n",
    ] {
        assert!(exited.stderr.contains(line), "{line:?}: {exited:?}");
    }
    let patch = env.read("changes.patch");
    let renamed = "diff --git a/old.txt b/moved.txt\nold mode 100644\nnew mode 100755\nsimilarity index 100%\n\
        rename from old.txt\nrename to moved.txt\n";
    assert!(patch.contains(renamed), "{patch}");
    let mut git = std::process::Command::new("git");
    let git = git.args(["apply", "../changes.patch"]);
    let git = git.current_dir(env.path("repo")).output().unwrap();
    assert!(git.status.success(), "{git:?}\n{patch}");
    let is_executable = |path| mode(&env, path) & 0o100 != 0;
    assert!(is_executable("repo/moved.txt") && !is_executable("repo/run"));
}

#[tokio::test]
async fn a_file_that_changed_meanwhile_stops_all_changes() {
    let (_server, env) = on_repository(CHANGES).await;
    work(&env, &[]).await;
    env.write("repo/src/main.txt", "the user's\n");
    env.write("repo/moved.txt", "the user's\n");
    let refused = apply(&env, &[]).await;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    for line in [
        "  moved.txt: a file of this name was created meanwhile\n",
        "  src/main.txt: it was changed meanwhile\n",
    ] {
        assert!(refused.stdout.contains(line), "{refused:?}");
    }
    assert_eq!(env.read("repo/src/main.txt"), "the user's\n");
    assert_eq!(env.read("repo/old.txt"), "kept as it is\n");
    assert_eq!(env.read("repo/data.bin"), "a\0b");
}

#[tokio::test]
async fn no_link_leads_changes_out_of_the_directory() {
    let (_server, env) = on_repository(CHANGES).await;
    env.write("outside/main.txt", "first\nhelo\nlast\n");
    work(&env, &[]).await;
    fs::remove_dir_all(env.path("repo/src")).unwrap();
    symlink("../outside", env.path("repo/src")).unwrap();
    fs::remove_file(env.path("repo/data.bin")).unwrap();
    symlink("../outside/new", env.path("repo/data.bin")).unwrap();
    let refused = apply(&env, &[]).await;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert_eq!(env.read("outside/main.txt"), "first\nhelo\nlast\n");
    assert_eq!(env.list("outside"), ["main.txt"]);
}

/// A sandbox holds a copy of what a link leads to, and its changes are those of the link's target.
#[tokio::test]
async fn changes_of_links_are_applied_to_their_targets() {
    let changes = "cat deep/link absolute both; echo new >> deep/link; echo new > absolute; \
        echo new > both; echo new > docs/both.txt; echo one > apart; echo two > docs/apart.txt; rm removed; \
        mkdir -p directory; echo new > directory/file; echo fine > fine";
    let (_server, env) = on_repository(changes).await;
    for file in ["link", "absolute", "both", "apart", "removed"] {
        env.write(format!("repo/docs/{file}.txt"), "old\n");
    }
    fs::create_dir(env.path("repo/deep")).unwrap();
    for (target, link) in [
        ("../docs/link.txt", "deep/link"),
        ("docs/both.txt", "both"),
        ("docs/apart.txt", "apart"),
        ("docs/removed.txt", "removed"),
        ("docs", "directory"),
        ("../outside", "outside"),
        (
            env.path("repo/docs/absolute.txt").to_str().unwrap(),
            "absolute",
        ),
    ] {
        symlink(target, env.path("repo").join(link)).unwrap();
    }
    env.write("outside", "old\n");
    let exited = work(&env, &["--apply"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let links = [
        "deep/link",
        "both",
        "apart",
        "removed",
        "directory",
        "absolute",
    ];
    for link in links {
        assert!(env.path("repo").join(link).is_symlink(), "{link}");
    }
    for (file, content) in [
        ("docs/link.txt", "old\nnew\n"),
        ("docs/absolute.txt", "new\n"),
        ("docs/both.txt", "new\n"),
        ("docs/apart.txt", "two\n"),
        ("docs/removed.txt", "old\n"),
        ("fine", "fine\n"),
    ] {
        assert_eq!(env.read(format!("repo/{file}")), content, "{file}");
    }
    for line in [
        "M docs/link.txt  +1 −0\n",
        "not applied: apart: it is a link to docs/apart.txt, which was changed differently\n",
        "not applied: removed: it is a link to docs/removed.txt, and links are not removed\n",
        "not applied: directory/file: directory is a link\n",
        "outside is left out: the link leads out of the directory\n",
    ] {
        assert!(exited.stderr.contains(line), "{line:?}: {exited:?}");
    }
    let reverted = apply(&env, &["--revert"]).await;
    assert_eq!(reverted.code, Some(0), "{reverted:?}");
    assert_eq!(env.read("repo/docs/link.txt"), "old\n");
    assert!(!env.path("repo/fine").exists());
}

#[tokio::test]
async fn a_link_to_a_secret_is_one() {
    let (server, env) = on_repository("cat config hop key").await;
    env.write("repo/key.pem", "-----BEGIN PRIVATE KEY-----\nSECRET\n");
    for (target, link) in [(".env", "config"), ("config", "hop"), ("key.pem", "key")] {
        symlink(target, env.path("repo").join(link)).unwrap();
    }
    let exited = work(&env, &[]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(
        exited
            .stderr
            .contains("are left out (--include-secrets): .env, config, hop, key, key.pem\n"),
        "{exited:?}"
    );
    let second = server.requests()[1].body().to_string();
    assert!(!second.contains("SECRET"), "{second}");
}

/// Links, names of programs' settings, and a name that is not text.
#[tokio::test]
async fn hostile_changes_are_named_and_left_out() {
    let changes = "ln -s /etc/passwd link; ln -sf /etc/passwd old.txt; mkdir -p .git/hooks .github; \
        echo evil > .git/hooks/pre-commit; echo evil > .github/ci.yml; echo evil > AGENTS.md; \
        touch $'not-\\xff-text' $'two\\nlines\\e[2J'; mkfifo pipe; echo key > id_rsa; echo fine > fine";
    let (_server, env) = on_repository(changes).await;
    let exited = work(&env, &["--apply"]).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    let listed = env.list("repo");
    let expected = [
        ".env",
        ".gitignore",
        "data.bin",
        "fine",
        "old.txt",
        "run.sh",
        "src",
        "two\nlines\u{1b}[2J",
    ];
    assert_eq!(listed, expected);
    assert!(
        !fs::symlink_metadata(env.path("repo/old.txt"))
            .unwrap()
            .is_symlink()
    );
    assert!(!exited.stderr.contains("\u{1b}"), "{exited:?}");
    for line in [
        "A .git/hooks/pre-commit  +1 −0  programs may load or execute .git\n",
        "not applied: link: only files are applied",
        "not applied: pipe: only files are applied",
        "not applied: id_rsa: it looks like a secret",
        "its name is not UTF-8",
        "Left out: .github/ci.yml\n",
        "Left out: AGENTS.md\n",
        "A two\\u{a}lines\\u{1b}[2J\n",
    ] {
        assert!(exited.stderr.contains(line), "{line:?}: {exited:?}");
    }
}

#[tokio::test]
async fn an_unchanged_file_whose_name_is_not_text_is_not_named() {
    let (_server, env) = on_repository("echo new > new").await;
    let name = OsStr::from_bytes(b"repo/not-\xff-text");
    fs::write(env.path(name), "").unwrap();
    let exited = work(&env, &["--apply"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(!exited.stderr.contains("not UTF-8"), "{exited:?}");
    assert_eq!(env.read("repo/new"), "new\n");
}

#[tokio::test]
async fn a_deleted_file_whose_name_is_not_text_is_named() {
    let (_server, env) = on_repository("rm $'not-\\xff-text'").await;
    let name = env.path(OsStr::from_bytes(b"repo/not-\xff-text"));
    fs::write(&name, "").unwrap();
    let exited = work(&env, &["--apply"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let reason = "it was deleted, and its name is not UTF-8";
    assert!(exited.stderr.contains(reason), "{exited:?}");
    assert!(name.exists());
}

#[tokio::test]
async fn a_file_that_became_a_directory_or_the_reverse_is_named() {
    let changes = "rm -r old.txt src; mkdir old.txt; echo new > old.txt/new; echo new > src";
    let (_server, env) = on_repository(changes).await;
    work(&env, &[]).await;
    let refused = apply(&env, &[]).await;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    for path in ["old.txt/new", "src"] {
        let line = format!("  {path}: a file and a directory can't take each other's place\n");
        assert!(refused.stdout.contains(&line), "{refused:?}");
    }
    assert_original(&env);
}

/// Returns the files of a directory, and the directories with a slash, sorted.
fn tree(env: &TestEnv, directory: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in env.list(directory) {
        let path = format!("{directory}/{name}");
        if env.path(&path).is_dir() {
            found.extend(tree(env, &path));
            found.push(format!("{path}/"));
        } else {
            found.push(path);
        }
    }
    found
}

/// A process that is killed at any moment leaves changes that can be completed, reverted or rejected, and then nothing
/// else.
#[tokio::test]
async fn interrupted_changes_are_completed_or_reverted() {
    let count: usize = lane::choose("two thirds of the files", 50, 150);
    let change =
        "for f in d*/e/f*; do echo new > $f; mkdir -p n/$f; echo new > n/$f/g; done; rm -r gone";
    let script = Script::new().turn(command(change));
    let server = ScriptedServer::start(script.turn(finish("Done.", &[])))
        .await
        .unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let files = || (0..count).map(|number| format!("repo/d{}/e/f{number}", number % 7));
    for file in files() {
        env.write(file, "old\n");
    }
    env.write("repo/gone/a/b", "old\n");
    let original = tree(&env, "repo");
    work(&env, &[]).await;
    assert_eq!(apply(&env, &[]).await.code, Some(0));
    let changed = tree(&env, "repo");
    assert_eq!(apply(&env, &["--revert"]).await.code, Some(0));
    assert_eq!(tree(&env, "repo"), original);

    let contents = || files().map(|file| env.read(file)).collect::<Vec<_>>();
    let temporary = || {
        let found = tree(&env, "repo");
        let is_temporary = |path: &&String| path.contains("/.cantle-apply-");
        found.iter().filter(is_temporary).count()
    };
    let (mut seen_staging, mut seen_partly) = (false, false);
    let mut delay = Duration::from_millis(5);
    for round in 0.. {
        let child = env.command(["runs", "apply", "last"]).spawn().unwrap();
        sleep(delay).await;
        send(&child, Signal::KILL);
        wait_for_exit(child).await;
        let contents_now = contents();
        let new = contents_now.iter().filter(|it| *it == "new\n").count();
        let old = contents_now.iter().filter(|it| *it == "old\n").count();
        assert_eq!(old, count - new);
        let has_begun = new > 0 || tree(&env, "repo").iter().any(|path| path.ends_with("/g"));
        if temporary() > 0 && !has_begun {
            seen_staging = true;
            if round % 2 == 0 {
                let rejected = apply(&env, &["--reject"]).await;
                assert_eq!(rejected.code, Some(0), "{rejected:?}");
                assert_eq!(temporary(), 0);
            }
        }
        seen_partly |= has_begun && new < count;
        if round % 3 != 0 {
            let completed = apply(&env, &[]).await;
            assert_eq!(completed.code, Some(0), "{completed:?}");
            assert_eq!(contents(), vec!["new\n"; count]);
            assert_eq!(tree(&env, "repo"), changed);
        }
        let reverted = apply(&env, &["--revert"]).await;
        assert_eq!(reverted.code, Some(0), "{reverted:?}");
        assert_eq!(contents(), vec!["old\n"; count]);
        assert_eq!(tree(&env, "repo"), original);
        if new == count {
            break;
        }
        delay = delay * 3 / 2;
    }
    if !(seen_staging && seen_partly) {
        eprintln!("no process was killed at one of the moments: {seen_staging}, {seen_partly}");
    }
}

#[tokio::test]
async fn an_unfinished_run_has_its_changes_so_far() {
    let (_server, env) = on_repository(CHANGES).await;
    let exited = work(&env, &["--max-turns", "1"]).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    assert!(
        exited
            .stderr
            .contains("its changes so far: cantle runs apply "),
        "{exited:?}"
    );
    let patch = apply(&env, &["--diff"]).await.stdout;
    assert!(patch.contains("+hello\n"), "{patch}");
    let resume = ["run", "--resume", "last", "--max-turns", "5", "--apply"];
    let fresh = env.run(resume.iter().chain(&["--fresh-sandbox"])).await;
    assert_eq!(fresh.code, Some(2), "{fresh:?}");
    let resumed = env.run(resume).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert_changed(&env);
}

#[tokio::test]
async fn changes_so_far_are_applied_before_the_others() {
    let script = Script::new()
        .turn(command("echo first > old.txt; echo first > new.txt"))
        .turn(command("echo second > old.txt; rm data.bin"))
        .turn(command("rm new.txt"))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let (_, env) = on_repository("true").await;
    let env = env.with_server(&server.url());
    assert_eq!(work(&env, &["--max-turns", "1"]).await.code, Some(3));
    let applied = apply(&env, &[]).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert_eq!(env.read("repo/old.txt"), "first\n");

    let resume = ["run", "--resume", "last", "--max-turns"];
    let stopped = env.run(resume.iter().chain(&["2"])).await;
    assert_eq!(stopped.code, Some(3), "{stopped:?}");
    let applied = apply(&env, &[]).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert_eq!(env.read("repo/old.txt"), "second\n");
    assert!(!env.path("repo/data.bin").exists());

    let resumed = env.run(resume.iter().chain(&["5", "--apply"])).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let changed_back = "new.txt: it was applied before, and the run has changed it back";
    assert!(resumed.stderr.contains(changed_back), "{resumed:?}");
    let reverted = apply(&env, &["--revert"]).await;
    assert_eq!(reverted.code, Some(0), "{reverted:?}");
    assert_eq!(env.read("repo/new.txt"), "first\n");
    fs::remove_file(env.path("repo/new.txt")).unwrap();
    assert_original(&env);
}

#[tokio::test]
async fn directories_and_flags_that_make_no_sense_are_refused() {
    let (_server, env) = on_repository(CHANGES).await;
    let home = env.path(".").display().to_string();
    for (args, part) in [
        (vec!["--workdir", "/"], "is too large"),
        (vec!["--workdir", "missing"], "can't be read"),
        (vec!["--workdir", "repo/old.txt"], "is not a directory"),
        (vec!["--apply"], "need --workdir"),
        (
            vec!["--workdir", "repo", "--input", "repo"],
            "cannot be used with",
        ),
        (
            vec!["--workdir", "repo", "--apply", "--reject"],
            "cannot be used with",
        ),
        (vec!["--workdir", &home], ""),
    ] {
        let exited = env.run(["run", "Correct it"].iter().chain(&args)).await;
        if !part.is_empty() {
            assert_eq!(exited.code, Some(2), "{exited:?}");
            assert!(exited.stderr.contains(part), "{exited:?}");
        }
    }
    let none = env.run(["runs", "apply", "last"]).await;
    assert_eq!(none.code, Some(2), "{none:?}");
}

#[tokio::test]
async fn a_run_that_cannot_begin_leaves_no_copy() {
    let (_server, env) = on_repository(CHANGES).await;
    fs::create_dir_all(env.path("out/cantle-result.json")).unwrap();
    let exited = work(&env, &["--output-dir", "out"]).await;
    assert_eq!(exited.code, Some(2), "{exited:?}");
    assert!(exited.stderr.contains("failed to move"), "{exited:?}");
    let state = env.path(".local/state/cantle");
    for kept in ["working-copies", "workspaces"] {
        assert_eq!(env.list(state.join(kept)), [""; 0], "{kept}");
    }
}

#[tokio::test]
async fn the_user_sees_the_changes_and_decides() {
    let (_server, env) = on_repository(
        "printf '\\e[2J\\u202e\\n' >> src/main.txt; mkdir .github; echo x > .github/ci",
    )
    .await;
    let answers = [
        ("[d]iff in full > ", "what\n"),
        ("[d]iff in full > ", "y\n"),
        ("[y/N] > ", "\n"),
    ];
    let line = "run 'Correct it' --workdir repo";
    let Some((shown, exited)) = at_terminal(&env, line, &answers).await else {
        return;
    };
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(shown.contains("+\\u{1b}[2J\\u{202e}\r\n"), "{shown:?}");
    assert!(
        shown.contains(".github/ci may be loaded or executed"),
        "{shown:?}"
    );
    assert!(
        exited.stdout.contains("Left out: .github/ci\r\n"),
        "{exited:?}"
    );
    assert!(env.read("repo/src/main.txt").contains('\u{202e}'));
    assert!(!env.path("repo/.github").exists());
}

/// Other programs get the patch as it is.
#[tokio::test]
async fn a_patch_is_escaped_at_a_terminal() {
    let (_server, env) = on_repository("printf '\\e[2J\\n' >> src/main.txt").await;
    work(&env, &[]).await;
    let patch = apply(&env, &["--diff"]).await.stdout;
    assert!(patch.contains("+\u{1b}[2J\n"), "{patch:?}");
    let Some((_, exited)) = at_terminal(&env, "runs apply last --diff", &[]).await else {
        return;
    };
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(
        exited.stdout.contains("+\\u{1b}[2J\r\n") && !exited.stdout.contains('\u{1b}'),
        "{exited:?}"
    );
}

#[tokio::test]
async fn an_interrupt_at_the_question_keeps_the_changes() {
    let (_server, env) = on_repository("echo new > new").await;
    let answers = [("[d]iff in full > ", "\u{3}")];
    let line = "run 'Correct it' --workdir repo";
    let Some((_, exited)) = at_terminal(&env, line, &answers).await else {
        return;
    };
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let how_later = "Nothing was written yet: cantle runs apply ";
    assert!(exited.stdout.contains(how_later), "{exited:?}");
    assert!(!env.path("repo/new").exists());
    let applied = apply(&env, &[]).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert_eq!(env.read("repo/new"), "new\n");
}

#[tokio::test]
async fn the_user_can_leave_out_what_cannot_be_applied() {
    let (_server, env) = on_repository(CHANGES).await;
    work(&env, &[]).await;
    env.write("repo/src/main.txt", "the user's\n");
    env.write("repo/moved.txt", "the user's\n");
    let answers = [("[y/N] > ", "\n")];
    let Some((shown, exited)) = at_terminal(&env, "runs apply last", &answers).await else {
        return;
    };
    assert!(
        shown.contains("Apply the other 4 changes? [y/N] > "),
        "{shown:?}"
    );
    assert_eq!(exited.code, Some(3), "{exited:?}");
    assert_eq!(env.read("repo/data.bin"), "a\0b");

    let answers = [("[y/N] > ", "y\n")];
    let (_, exited) = at_terminal(&env, "runs apply last", &answers)
        .await
        .unwrap();
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(
        exited
            .stdout
            .contains("Left out: moved.txt\r\nLeft out: src/main.txt\r\n"),
        "{exited:?}"
    );
    assert_eq!(env.read("repo/data.bin"), "a\0c");
    // What was left out is not in the way of the others' way back.
    let reverted = apply(&env, &["--revert"]).await;
    assert_eq!(reverted.code, Some(0), "{reverted:?}");
    assert_eq!(env.read("repo/data.bin"), "a\0b");
    assert_eq!(env.read("repo/old.txt"), "kept as it is\n");
    for file in ["src/main.txt", "moved.txt"] {
        assert_eq!(env.read(format!("repo/{file}")), "the user's\n");
    }
}

/// Runs a command line at a terminal, and answers its questions. Returns what it showed up to the last one, and its end;
/// `None` without script(1).
async fn at_terminal(
    env: &TestEnv,
    line: &str,
    answers: &[(&str, &str)],
) -> Option<(String, Exited)> {
    let mut script = env.command_of("script");
    script
        .env("NO_COLOR", "1")
        .env("TERM", "xterm")
        .env("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    // A parent process may ignore signals.
    let line = format!("exec env {DEFAULT_SIGNALS} \"$PROGRAM\" {line}");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let Ok(mut child) = script.stdin(Stdio::piped()).spawn() else {
        eprintln!("SKIPPED: script(1) is not installed");
        return None;
    };
    let mut shown = String::new();
    for (question, answer) in answers {
        let stdout = child.stdout.as_mut().unwrap();
        let mut read = Vec::new();
        let reading = async {
            while !read.ends_with(question.as_bytes()) {
                match stdout.read_u8().await {
                    Ok(byte) => read.push(byte),
                    Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&read)),
                }
            }
        };
        timeout(DEADLINE, reading).await.unwrap();
        shown += &String::from_utf8(read).unwrap();
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(answer.as_bytes()).await.unwrap();
    }
    Some((shown, wait_for_exit(child).await))
}

/// Works on the directory in a sandbox of another backend: copies it, shows the diff, applies and reverts the changes of
/// a finished run, and those of one that has not finished, whose sandbox is found again.
async fn works_on_every_backend(env: &TestEnv, backend: &str) {
    let flags = ["--backend", backend, "--best-effort"];
    let exited = work(env, &[&flags[..], &["--apply", "--diff", "patch"]].concat()).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let patch = env.read("patch");
    for part in [
        "-helo\n+hello\n",
        "rename from old.txt\n",
        "old mode 100755\n",
        "+new\n",
    ] {
        assert!(patch.contains(part), "{patch}");
    }
    assert_changed(env);
    let reverted = apply(env, &["--revert"]).await;
    assert_eq!(reverted.code, Some(0), "{reverted:?}");
    assert_original(env);

    let exited = work(env, &[&flags[..], &["--max-turns", "1"]].concat()).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    assert_original(env);
    let applied = apply(env, &[]).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert_changed(env);
    assert_eq!(apply(env, &["--revert"]).await.code, Some(0));
    let exported = env.run(["runs", "export", "last", "copy"]).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert_eq!(env.read("copy/src/main.txt"), "first\nhello\nlast\n");
    let removed = env.run(["runs", "rm", "last"]).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
}

#[tokio::test]
async fn changes_in_a_container_are_applied() {
    let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
    let Some([host, image]) = peer("docker", names) else {
        return;
    };
    let (_server, env) = on_repository(CHANGES).await;
    let env = env.set("DOCKER_HOST", host);
    works_on_every_backend(&env, &format!("docker:{image}")).await;
}

#[tokio::test]
async fn changes_in_a_remote_sandbox_are_applied() {
    let (_model, env) = on_repository(CHANGES).await;
    let host = TestEnv::new();
    let (_server, client) = serve(&host, "local").await;
    let env = env.with_variables_of(&client);
    works_on_every_backend(&env, "remote").await;
}

#[tokio::test]
async fn changed_files_of_a_finished_run_are_exported() {
    let (_server, env) = on_repository(CHANGES).await;
    assert_eq!(work(&env, &[]).await.code, Some(0));
    let exported = env.run(["runs", "export", "last", "copy"]).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert!(
        exported
            .stdout
            .contains("is gone; copied 5 files that the run"),
        "{exported:?}"
    );
    assert_eq!(env.read("copy/src/main.txt"), "first\nhello\nlast\n");
}
