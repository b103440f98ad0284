//! Soak test: ordinary and hostile load for a long time, kills, and nothing left at the end.
//!
//! Half of the sandboxes belong to `cantle serve`, with files in disk images, and the others to a process that uses the
//! library, with files in memory. A third process, the victim, opens sandboxes on a small file system, which they fill,
//! and is killed and started again; random processes of all sandboxes are killed, too. Agents without sandboxes work
//! against a scripted model server. The seed determines the choices, not their order in time.

mod agents;
mod load;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) use self::load::run_library;
use self::load::{Counts, ServerSandboxes, use_sandboxes};
use crate::process::{descendants, median, memory_mb_of, part};
use crate::serving::{Client, Served, loop_devices};

/// Sandboxes of the victim.
const VICTIM_SANDBOXES: usize = 8;
/// Longest lives of the victim, and longest pauses between kills of a process in a sandbox.
const VICTIM_MS: u64 = 4000;
const KILL_PAUSE_MS: u64 = 500;
/// Maximum time until nothing is left.
const END_DEADLINE: Duration = Duration::from_secs(90);
/// Resident memory in the last quarter, relative to the second, of a test that is long enough: threads and the
/// allocator take minutes to reach their size.
const MAX_GROWTH: f64 = 1.1;
const MIN_GROWTH_TIME: Duration = Duration::from_mins(30);

/// The options of a soak test.
pub(crate) struct Soak {
    pub(crate) time: Duration,
    pub(crate) sandboxes: usize,
    pub(crate) seed: u64,
}

/// Runs the test and prints what happened; fails if something is left.
pub(crate) fn run(cantle: &Path, soak: &Soak) -> Result<()> {
    println!("seed {}", soak.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run_in_runtime(cantle, soak))
}

async fn run_in_runtime(cantle: &Path, soak: &Soak) -> Result<()> {
    let limits = load::LIMITS.iter().flat_map(|limit| ["--limit", limit]);
    let served = Served::start_with(cantle, limits)?;
    let client = Arc::new(Client::new(served.address));
    // One sandbox first, so that whatever is made once is there.
    client.kill(&client.create().await?).await?;
    served.wait_until_idle().await?;
    let before = served.traces()?;

    let directory = shared_directory()?;
    let (stop, counts) = (CancellationToken::new(), Arc::new(Counts::default()));
    let kills = Arc::new(AtomicU64::new(0));
    let mut random = Rng::with_seed(soak.seed);
    let library = Library::start(directory.path(), random.u64(..), soak.sandboxes / 2, false)?;
    let mut tasks = JoinSet::new();
    for _ in 0..soak.sandboxes.div_ceil(2) {
        let (client, counts, stop) = (Arc::clone(&client), Arc::clone(&counts), stop.clone());
        let random = random.fork();
        tasks.spawn(use_sandboxes(
            ServerSandboxes { client },
            random,
            counts,
            stop,
        ));
    }
    let spared = [served.id(), library.child.id()];
    tasks.spawn(kill_processes(
        spared.into(),
        random.fork(),
        Arc::clone(&kills),
        stop.clone(),
    ));
    let victims = kill_victims(random.fork(), stop.clone());
    let victims = tokio::spawn(victims);
    let agents = tokio::spawn(agents::run_agents(stop.clone()));

    let end = Instant::now() + soak.time;
    let (mut server_mb, mut library_mb) = (Vec::new(), Vec::new());
    let mut images = 0;
    while Instant::now() < end {
        sleep(Duration::from_secs(1)).await;
        images = images.max(loop_devices());
        server_mb.push(memory_mb_of(served.id())?);
        library_mb.push(memory_mb_of(library.child.id())?);
    }
    stop.cancel();
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    let lives = victims.await??;
    let ledgers = agents.await??;
    let in_library = library.stop()?;
    let mut reclaimed = 0;
    drop(client);

    let kills = kills.load(Ordering::Relaxed);
    println!("server: {counts}");
    println!("library: {in_library}");
    println!("{kills} processes of sandboxes and {lives} victims killed");
    let (runs, calls) = (ledgers.runs, ledgers.model_calls);
    println!("{runs} runs of agents with {calls} model calls, all in their ledgers");
    println!("at most {images} disk images mounted at once");
    let mut grown = Vec::new();
    for (name, values) in [("server", server_mb), ("library", library_mb)] {
        let (second, last) = quarters(values);
        println!("{name}: {second:.1} MB in the second quarter, {last:.1} MB in the last");
        if last > second * MAX_GROWTH && soak.time >= MIN_GROWTH_TIME {
            grown.push(name);
        }
    }
    let deadline = Instant::now() + END_DEADLINE;
    loop {
        // Groups are removed some time after they were made: their sandbox might be about to join them.
        reclaimed += load::reclaim(directory.path()).await;
        let after = served.traces()?;
        let left = entries(directory.path())?;
        if after.exceed(&before).is_empty() && left.is_empty() {
            break;
        }
        let exceeding = after.exceed(&before).join(", ");
        ensure!(
            Instant::now() < deadline,
            "left: {exceeding} {}",
            left.join(", ")
        );
        sleep(Duration::from_millis(200)).await;
    }
    served.stop()?;
    let failures = counts.failures() + in_library.failures();
    ensure!(
        failures <= kills,
        "{failures} ordinary commands failed, but only {kills} processes were killed"
    );
    ensure!(grown.is_empty(), "memory grows: {}", grown.join(", "));
    println!("nothing is left; {reclaimed} paths of killed processes were reclaimed");
    Ok(())
}

/// Returns the medians of the second and the last quarter.
fn quarters(mut values: Vec<f64>) -> (f64, f64) {
    let quarter = values.len() / 4;
    let mut last = values.split_off(values.len() - quarter.max(1));
    let mut second = values.split_off(quarter);
    second.truncate(quarter.max(1));
    (median(&mut second), median(&mut last))
}

/// A directory that the users of commands may traverse.
fn shared_directory() -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
    Ok(directory)
}

fn entries(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.path().display().to_string());
    }
    Ok(names)
}

/// A process that uses sandboxes through the library until its input ends.
struct Library {
    child: Child,
}

impl Library {
    fn start(directory: &Path, seed: u64, sandboxes: usize, on_host_disk: bool) -> Result<Self> {
        let directory = directory.to_str().context("its path is UTF-8")?;
        let numbers = [seed.to_string(), sandboxes.to_string()];
        let arguments = [
            directory,
            &numbers[0],
            &numbers[1],
            &on_host_disk.to_string(),
        ];
        let mut command: Command = part(&["soak-library"])?;
        let child = command.args(arguments).stdin(Stdio::piped()).spawn()?;
        Ok(Self { child })
    }

    /// Ends it gracefully.
    fn stop(mut self) -> Result<Counts> {
        drop(self.child.stdin.take());
        let output = self.child.stdout.take().context("it is captured")?;
        let counts = serde_json::from_reader(output)?;
        let status = self.child.wait()?;
        ensure!(
            status.success(),
            "the library's process ended with {status}"
        );
        Ok(counts)
    }
}

/// A file system of limited size, unmounted on drop.
struct SmallDisk<'p>(&'p Path);

impl<'p> SmallDisk<'p> {
    fn mount(directory: &'p Path) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64M,mode=0711", "tmpfs"]);
        ensure!(mount.arg(directory).status()?.success(), "run it as root");
        Ok(Self(directory))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// Starts victims and kills them, and reclaims what they leave.
async fn kill_victims(mut random: Rng, stop: CancellationToken) -> Result<u64> {
    let directory = shared_directory()?;
    let _disk = SmallDisk::mount(directory.path())?;
    let mut lives = 0;
    while !stop.is_cancelled() {
        let mut victim = Library::start(directory.path(), random.u64(..), VICTIM_SANDBOXES, true)?;
        let life = Duration::from_millis(random.u64(..VICTIM_MS));
        let _ = tokio::time::timeout(life, stop.cancelled()).await;
        // By its handle, so no other process can be meant.
        victim.child.kill()?;
        victim.child.wait()?;
        lives += 1;
    }
    let deadline = Instant::now() + END_DEADLINE;
    loop {
        load::reclaim(directory.path()).await;
        let left = entries(directory.path())?;
        if left.is_empty() {
            return Ok(lives);
        }
        ensure!(
            Instant::now() < deadline,
            "left by victims: {}",
            left.join(", ")
        );
        sleep(Duration::from_millis(200)).await;
    }
}

/// Kills random processes of sandboxes: guards, inits, keepers and commands.
async fn kill_processes(
    spared: Vec<u32>,
    mut random: Rng,
    kills: Arc<AtomicU64>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let pause = Duration::from_millis(random.u64(..KILL_PAUSE_MS));
        let _ = tokio::time::timeout(pause, stop.cancelled()).await;
        // Not victims, which are children of this process.
        let all = descendants(std::process::id(), Some("cantle-bench")).unwrap_or_default();
        let inside = all.into_iter().filter(|pid| !spared.contains(pid));
        if let Some(pid) = random.choice(inside.collect::<Vec<_>>())
            && kill_descendant(pid)
        {
            kills.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Kills a process if it still descends from this one; its number may be another's by now.
fn kill_descendant(pid: u32) -> bool {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    let pid_number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(Ok(process)) = pid_number.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return false;
    };
    let all = descendants(std::process::id(), None).unwrap_or_default();
    all.contains(&pid) && pidfd_send_signal(process, Signal::KILL).is_ok()
}
