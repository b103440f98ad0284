//! Links that change while they are followed: a path is looked up once, by who opens it, or what was
//! looked at is not what is opened.

use std::time::Duration;

use cantle_core::sandbox::{FileKind, Process, SandboxExt as _, SpawnRequest};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::super::check::{Checked, ensure, same_bytes};
use super::super::suite::Case;
use super::bench::{Bench, Harness, path, read_until, take_output};
use super::case;
use super::host::Outside;

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(a_link_that_changes_while_it_is_read_leads_nowhere),
        case!(a_link_that_changes_while_it_is_changed_leads_nowhere),
    ]
}

/// How long a race lasts at least, and where it never went one of both ways, at most.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(10);

/// Starts a command that makes `way` in turn a directory with the file `secret`, and a link that
/// leads out. Perl does it a hundred times as often as a shell, which has to start a program for each
/// step. A directory that somebody makes of that name meanwhile is put away.
async fn swapping(bench: &Bench<'_>, outside: &Outside) -> Checked<Box<dyn Process>> {
    let script = r#"
        mkdir way; printf inside > way/secret; echo ready
        swap='while (1) {
            rename "way", "own"; symlink $ARGV[0], "way"; unlink "way";
            rename "own", "way" or rename "way", "away-" . $n++ and rename "own", "way" }'
        type perl >/dev/null && exec perl -e "$swap" "$1"
        while :; do
            mv way own; ln -sn "$1" way; rm way
            mv -T own way 2>/dev/null || { mv way "away-$((n++))"; mv -T own way; }
        done"#;
    let target = outside.path().to_string_lossy().into_owned();
    let request = SpawnRequest::argv(["bash", "-c", script, "bash", &target]);
    let mut process = bench.sandbox.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "ready").await?;
    Ok(process)
}

async fn a_link_that_changes_while_it_is_read_leads_nowhere(bench: &Bench<'_>) -> Checked {
    const READS: usize = 2000;
    let outside = Outside::new()?;
    let _swapping = swapping(bench, &outside).await?;
    let way = path("way/secret")?;
    let (started, mut inside, mut failed) = (Instant::now(), 0, 0);
    let enough =
        |inside: usize, failed: usize| inside + failed >= READS && inside > 0 && failed > 0;
    while started.elapsed() < LEAST || !enough(inside, failed) && started.elapsed() < MOST {
        match bench.sandbox.read_bytes(&way, 1000).await {
            Ok(content) => {
                ensure!(
                    !Outside::is_secret(&content),
                    "a file outside was read by a link that changed meanwhile"
                );
                same_bytes("the file inside", &content, b"inside")?;
                inside += 1;
            }
            Err(_) => failed += 1,
        }
        yield_now().await;
    }
    ensure!(
        inside > 0 && failed > 0,
        "the link was read {inside} times within and {failed} times out of the sandbox"
    );
    Ok(())
}

async fn a_link_that_changes_while_it_is_changed_leads_nowhere(bench: &Bench<'_>) -> Checked {
    const EACH: usize = 50;
    let outside = Outside::new()?;
    let _swapping = swapping(bench, &outside).await?;
    let sandbox = &bench.sandbox;
    let [way, new, below, secret] = [
        path("way")?,
        path("way/new")?,
        path("way/a/b/c")?,
        path("way/secret")?,
    ];
    let (started, mut directories, mut links) = (Instant::now(), 0, 0);
    let enough = |directories: usize, links: usize| directories >= EACH && links >= EACH;
    while started.elapsed() < LEAST || !enough(directories, links) && started.elapsed() < MOST {
        // Mostly what is looked up once, which is where a race is won most often. Each may fail: what
        // counts is what is there in the end.
        for _ in 0..10 {
            let _ = sandbox.remove(&secret).await;
        }
        let _ = sandbox.mkdir(&below).await;
        let _ = sandbox.write_bytes(&new, "new".into()).await;
        let _ = sandbox.rename(&new, &secret).await;
        match sandbox.stat(&way).await.map(|info| info.kind) {
            Ok(FileKind::Directory) => directories += 1,
            Ok(FileKind::Symlink) => links += 1,
            _ => {}
        }
        let there = outside.secret().exists();
        ensure!(there, "a file outside was moved or removed");
        yield_now().await;
    }
    // Where each look takes long, the directory may be put away at every one.
    ensure!(
        links > 0,
        "a directory was seen {directories} times, and never a link in its place"
    );
    outside.must_be_untouched()
}
