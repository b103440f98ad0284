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

/// Time for the report of the swaps, between attempts.
const POLL: Duration = Duration::from_millis(50);

/// Number of attempts that suffice for one race.
const MIN_ATTEMPTS: usize = 1000;

/// Minimum number of swaps during a race, which continues until they are done. The reader can't count them: slow
/// attempts may observe the same state each time.
const MIN_SWAPS: usize = 5;

/// Command that makes `way` alternately a directory with the file `secret` and an escaping link.
struct LinkSwapper {
    _process: Box<dyn Process>,
    /// Ends the command when it is dropped, since signals are optional.
    _stdin: Box<dyn ProcessStdin>,
    output: OutputStream,
    has_swapped: bool,
}

impl LinkSwapper {
    /// Perl swaps a hundred times as often as a shell, which starts a program for each step. A
    /// directory created under that name in between is moved away.
    async fn start(bench: &Bench<'_>, outside: &Outside) -> Checked<Self> {
        let script = r#"
            exec 2>/dev/null; mkdir way; printf inside > way/secret
            swap='$| = 1; print "ready\n";
                for ($swaps = 0; ; $swaps++) {
                    print "enough\n" if $swaps == $ARGV[1];
                    rename "way", "own"; symlink $ARGV[0], "way"; unlink "way";
                    rename "own", "way" or rename "way", "away-" . $n++ and rename "own", "way" }'
            swap() {
                type perl >/dev/null && exec perl -e "$swap" "$@"
                echo ready
                for ((swaps = 0; ; swaps++)); do
                    ((swaps == $2)) && echo enough
                    mv way own; ln -sn "$1" way; rm way
                    mv -T own way || { mv way "away-$((n++))"; mv -T own way; }
                done
            }
            swap "$@" & read -r; kill $!; wait"#;
        let target = outside.path().to_string_lossy().into_owned();
        let swaps = MIN_SWAPS.to_string();
        let request = SpawnRequest::argv(["bash", "-c", script, "bash", &target, &swaps]);
        let mut process = bench.spawn(request.with_stdin(Stdin::Piped)).await?;
        let mut output = take_output(&mut *process)?;
        let stdin = take_stdin(&mut *process)?;
        let begun = read_until(&mut output, "ready").await?;
        Ok(Self {
            _process: process,
            _stdin: stdin,
            output,
            // Both lines may come at once.
            has_swapped: begun.contains("enough"),
        })
    }

    /// Returns whether another attempt is needed.
    async fn goes_on(&mut self, started: Instant, attempts: usize) -> Checked<bool> {
        let elapsed = started.elapsed();
        if elapsed < MIN_DURATION || attempts < MIN_ATTEMPTS && elapsed < MAX_DURATION {
            return Ok(true);
        }
        // A machine that is busy may not have run the command yet.
        if !self.has_swapped {
            let enough = read_until(&mut self.output, "enough");
            if let Ok(report) = timeout(POLL, enough).await {
                report?;
                self.has_swapped = true;
            }
        }
        Ok(!self.has_swapped)
    }
}

async fn a_link_swapped_during_reads_does_not_escape(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let mut swapper = LinkSwapper::start(bench, &outside).await?;
    let way = path("way/secret")?;
    let (started, mut attempts) = (Instant::now(), 0);
    while swapper.goes_on(started, attempts).await? {
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
    Ok(())
}

async fn a_link_swapped_during_writes_does_not_escape(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let mut swapper = LinkSwapper::start(bench, &outside).await?;
    let [new, below, secret] = [path("way/new")?, path("way/a/b/c")?, path("way/secret")?];
    let (started, mut attempts) = (Instant::now(), 0);
    while swapper.goes_on(started, attempts).await? {
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
    // It must not run while the result is checked.
    drop(swapper);
    outside.must_be_untouched()
}
