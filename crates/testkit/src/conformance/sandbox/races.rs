//! Links swapped while they are resolved: a path that is checked and then opened separately can be
//! redirected in between (TOCTOU).

use tokio::task::yield_now;

use super::prelude::*;

cases! { cases for Harness:
    a_link_swapped_during_reads_does_not_escape,
    a_link_swapped_during_writes_does_not_escape,
}

/// Bounds of a race's duration; the upper one applies if attempts are slow.
const MIN_DURATION: Duration = Duration::from_secs(1);
const MAX_DURATION: Duration = Duration::from_secs(5);

/// Number of attempts that suffice for one race.
const MIN_ATTEMPTS: usize = 1000;

/// Minimum number of swaps within [`MIN_DURATION`], even if each step starts a program. The reader
/// can't count them: slow attempts may observe the same state each time.
const MIN_SWAPS: usize = 5;

/// Command that makes `way` alternately a directory with the file `secret` and an escaping link.
struct LinkSwapper {
    _process: Box<dyn Process>,
    stdin: Box<dyn ProcessStdin>,
    output: OutputStream,
}

impl LinkSwapper {
    /// Perl swaps a hundred times as often as a shell, which starts a program for each step. A
    /// directory created under that name in between is moved away.
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
        let mut process = bench.spawn(request.with_stdin(Stdin::Piped)).await?;
        let mut output = take_output(&mut *process)?;
        let stdin = take_stdin(&mut *process)?;
        read_until(&mut output, "ready").await?;
        Ok(Self {
            _process: process,
            stdin,
            output,
        })
    }

    /// Ends the command by closing its stdin, since signals are optional, and checks the number of
    /// swaps that it reports.
    async fn must_have_swapped(mut self) -> Checked {
        drop(self.stdin);
        let report = read_until(&mut self.output, " changes").await?;
        let changes = report.split_whitespace().next().map(str::parse::<usize>);
        let Some(Ok(changes)) = changes else {
            return Err(Failure::new(format!(
                "the number of swaps was reported as {report:?}"
            )));
        };
        ensure!(
            changes >= MIN_SWAPS,
            "the link was swapped only {changes} times"
        );
        Ok(())
    }
}

async fn a_link_swapped_during_reads_does_not_escape(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let swapper = LinkSwapper::start(bench, &outside).await?;
    let way = path("way/secret")?;
    let (started, mut attempts) = (Instant::now(), 0);
    while started.elapsed() < MIN_DURATION
        || attempts < MIN_ATTEMPTS && started.elapsed() < MAX_DURATION
    {
        // Fails while the directory is away or the link leads out.
        if let Ok(content) = bench.read_bytes(&way, 1000).await {
            ensure!(
                !Outside::is_secret(&content),
                "a file outside was read through a swapped link"
            );
            same_bytes("the file inside", &content, b"inside")?;
        }
        attempts += 1;
        yield_now().await;
    }
    swapper.must_have_swapped().await
}

async fn a_link_swapped_during_writes_does_not_escape(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let swapper = LinkSwapper::start(bench, &outside).await?;
    let [new, below, secret] = [path("way/new")?, path("way/a/b/c")?, path("way/secret")?];
    let (started, mut attempts) = (Instant::now(), 0);
    while started.elapsed() < MIN_DURATION
        || attempts < MIN_ATTEMPTS && started.elapsed() < MAX_DURATION
    {
        // Mostly operations with a single lookup, where a race is won most often. Each may fail; the
        // final state counts.
        for _ in 0..10 {
            let _ = bench.remove(&secret).await;
        }
        let _ = bench.mkdir(&below).await;
        let _ = bench.write_bytes(&new, "new".into()).await;
        let _ = bench.rename(&new, &secret).await;
        let exists = outside.secret().exists();
        ensure!(exists, "a file outside was moved or removed");
        attempts += 10;
        yield_now().await;
    }
    swapper.must_have_swapped().await?;
    outside.must_be_untouched()
}
