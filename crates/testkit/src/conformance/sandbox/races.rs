//! Links that change while they are followed: a path is looked up once, by who opens it, or what was
//! looked at is not what is opened.

use std::time::Duration;

use cantle_core::sandbox::{
    OutputStream, Process, ProcessStdin, SandboxExt as _, SpawnRequest, Stdin,
};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::super::check::{Checked, Failure, ensure, same_bytes};
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

/// How long a race lasts at least, and where each look takes long, at most.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(5);

/// How many looks are enough for one race.
const LOOKS: usize = 1000;

/// How often the link was changed at least, in [`LEAST`], even where each step starts a program. Whoever
/// looks cannot promise to see both ways: where a look takes as long as many changes, it may find the
/// same one each time.
const CHANGES: usize = 5;

/// A command that makes `way` in turn a directory with the file `secret`, and a link that leads out.
struct Swapping {
    _process: Box<dyn Process>,
    stdin: Box<dyn ProcessStdin>,
    output: OutputStream,
}

impl Swapping {
    /// Perl does it a hundred times as often as a shell, which has to start a program for each step. A
    /// directory that somebody makes of that name meanwhile is put away.
    async fn start(bench: &Bench<'_>, outside: &Outside) -> Checked<Self> {
        let script = r#"
            exec 2>/dev/null; mkdir way; printf inside > way/secret
            swap='$SIG{TERM} = sub { print "$swaps changes\n"; exit };
                $| = 1; print "ready\n";
                for (;; $swaps++) {
                    rename "way", "own"; symlink $ARGV[0], "way"; unlink "way";
                    rename "own", "way" or rename "way", "away-" . $n++ and rename "own", "way" }'
            swap() {
                type perl >/dev/null && exec perl -e "$swap" "$1"
                trap 'echo "$swaps changes"; exit' TERM; echo ready
                for ((swaps = 0; ; swaps++)); do
                    mv way own; ln -sn "$1" way; rm way
                    mv -T own way || { mv way "away-$((n++))"; mv -T own way; }
                done
            }
            swap "$1" & read -r; kill $!; wait"#;
        let target = outside.path().to_string_lossy().into_owned();
        let request = SpawnRequest::argv(["bash", "-c", script, "bash", &target]);
        let mut process = bench
            .sandbox
            .spawn(request.with_stdin(Stdin::Piped))
            .await?;
        let mut output = take_output(&mut *process)?;
        let stdin = process
            .take_stdin()
            .ok_or_else(|| Failure::new("there is no input to write to"))?;
        read_until(&mut output, "ready").await?;
        Ok(Self {
            _process: process,
            stdin,
            output,
        })
    }

    /// Ends it, by its input: not every sandbox has signals. That it ran until now, and how often it
    /// changed the link, is its own answer.
    async fn must_have_run(mut self) -> Checked {
        drop(self.stdin);
        let said = read_until(&mut self.output, " changes").await?;
        let changes = said.split_whitespace().next().map(str::parse::<usize>);
        let Some(Ok(changes)) = changes else {
            return Err(Failure::new(format!(
                "the changes were counted as {said:?}"
            )));
        };
        ensure!(
            changes >= CHANGES,
            "the link was changed {changes} times only"
        );
        Ok(())
    }
}

async fn a_link_that_changes_while_it_is_read_leads_nowhere(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let swapping = Swapping::start(bench, &outside).await?;
    let way = path("way/secret")?;
    let (started, mut looks) = (Instant::now(), 0);
    while started.elapsed() < LEAST || looks < LOOKS && started.elapsed() < MOST {
        // Where it is away, or leads out, there is an error.
        if let Ok(content) = bench.sandbox.read_bytes(&way, 1000).await {
            ensure!(
                !Outside::is_secret(&content),
                "a file outside was read by a link that changed meanwhile"
            );
            same_bytes("the file inside", &content, b"inside")?;
        }
        looks += 1;
        yield_now().await;
    }
    swapping.must_have_run().await
}

async fn a_link_that_changes_while_it_is_changed_leads_nowhere(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let swapping = Swapping::start(bench, &outside).await?;
    let sandbox = &bench.sandbox;
    let [new, below, secret] = [path("way/new")?, path("way/a/b/c")?, path("way/secret")?];
    let (started, mut looks) = (Instant::now(), 0);
    while started.elapsed() < LEAST || looks < LOOKS && started.elapsed() < MOST {
        // Mostly what is looked up once, which is where a race is won most often. Each may fail: what
        // counts is what is there in the end.
        for _ in 0..10 {
            let _ = sandbox.remove(&secret).await;
        }
        let _ = sandbox.mkdir(&below).await;
        let _ = sandbox.write_bytes(&new, "new".into()).await;
        let _ = sandbox.rename(&new, &secret).await;
        let there = outside.secret().exists();
        ensure!(there, "a file outside was moved or removed");
        looks += 10;
        yield_now().await;
    }
    swapping.must_have_run().await?;
    outside.must_be_untouched()
}
