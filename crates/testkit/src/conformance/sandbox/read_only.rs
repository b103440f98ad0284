//! Commands that may change files below one directory only (`SpawnRequest::read_only_except`). Optional.

use std::error::Error as _;

use super::prelude::*;

cases! { cases for Harness:
    a_read_only_command_changes_nothing_outside.optional(),
    a_read_only_command_writes_below_its_directory.optional(),
    children_of_a_read_only_command_are_read_only.optional(),
    a_missing_directory_or_a_link_is_refused.optional(),
}

/// Ways to change `file`, `dir` and what is beside them; each must fail.
const CHANGES: [&str; 24] = [
    "echo x > file",
    "echo x >> file",
    "echo x > new",
    "mkdir new",
    "rmdir dir",
    "rm -f file; test ! -e file",
    "mv file moved",
    "mv file scratch/moved",
    "ln file hard",
    "ln file scratch/hard && echo x > scratch/hard",
    "ln -s file link",
    "ln -s ../file scratch/link && echo x > scratch/link",
    "mkfifo pipe",
    "truncate -s 0 file",
    "chmod 777 file",
    "touch -d 2001-01-01 file",
    "cp scratch/own file",
    "dd if=/dev/zero of=file bs=1 count=1",
    "exec 3<>file && echo x >&3",
    "cd scratch && echo x > ../file",
    "echo x > /tmp/outside",
    "(setsid sh -c 'echo x > new' && test -e new)",
    "bash -c 'echo x > file'",
    "sh -c \"$(printf 'echo x > fi''le')\"",
];

const PREPARE: &str =
    "mkdir dir scratch; echo text > file; echo own > scratch/own; rm -f /tmp/outside";

/// Runs a read-only command.
async fn run(bench: &Bench<'_>, line: &str) -> Checked<CommandOutput> {
    let request = SpawnRequest::shell(line).read_only_except(path("scratch")?);
    Ok(bench.run(request).await?)
}

async fn a_read_only_command_changes_nothing_outside(bench: &Bench<'_>) -> Checked {
    bench.stdout(PREPARE).await?;
    let state = "cat file; ls; stat -c '%A %Y' file dir; ls /tmp/outside 2>/dev/null; true";
    let before = bench.stdout(state).await?;
    for change in CHANGES {
        let output = run(bench, change).await?;
        ensure!(
            output.exit.status != ExitStatus::Code(0),
            "`{change}` succeeded"
        );
        let after = bench.stdout(state).await?;
        equal(change, after, before.clone())?;
    }
    Ok(())
}

async fn a_read_only_command_writes_below_its_directory(bench: &Bench<'_>) -> Checked {
    bench.stdout(PREPARE).await?;
    let line = "cat file; cd scratch; echo new > made; mkdir sub; mv made sub/moved; rm own; cat sub/moved; echo quiet > /dev/null; ls | wc -l";
    let output = run(bench, line).await?;
    equal("stdout", output.stdout.text(), "text\nnew\n1\n".to_owned())?;
    bench
        .must_print("what it wrote", "cat scratch/sub/moved", "new\n")
        .await
}

async fn children_of_a_read_only_command_are_read_only(bench: &Bench<'_>) -> Checked {
    bench.stdout(PREPARE).await?;
    let line = "for i in 1 2 3; do (sh -c 'echo x > new'; (setsid sh -c 'sleep 0.2; echo x > new' &) ) 2>/dev/null; done; sleep 0.5; ls";
    let output = run(bench, line).await?;
    equal(
        "the files",
        output.stdout.text(),
        "dir\nfile\nscratch\n".to_owned(),
    )
}

async fn a_missing_directory_or_a_link_is_refused(bench: &Bench<'_>) -> Checked {
    bench.stdout("mkdir dir scratch").await?;
    // Refused for another reason where they are not supported at all.
    run(bench, "true").await?;
    bench.stdout("mv scratch kept; ln -s dir scratch").await?;
    let request = SpawnRequest::shell("echo x > dir/file").read_only_except(path("scratch")?);
    let Err(error) = bench.run(request).await else {
        return Err(Failure::new("a link was accepted"));
    };
    let text = error.to_string();
    let cause = error.source().map(ToString::to_string);
    let repeats = cause.is_some_and(|cause| text.contains(&cause));
    ensure!(!repeats, "the message repeats the source: {text}");
    let request = SpawnRequest::shell("true").read_only_except(path("missing")?);
    ensure!(
        bench.run(request).await.is_err(),
        "a missing directory was accepted"
    );
    bench
        .must_print("the directory", "ls dir | wc -l", "0\n")
        .await
}
