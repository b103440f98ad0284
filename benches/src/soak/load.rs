//! The load of a soak test: what happens in a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, Sandbox, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest,
};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::serving::{Client, Made};

/// Limits of every sandbox.
pub(super) const LIMITS: &[&str] = &["wall_time=60", "processes=48", "disk=16M", "memory=256M"];

/// Command lines whose result does not matter. Each has two seconds.
const HOSTILE: &[&str] = &[
    "bomb() { bomb | bomb & }; bomb; wait",
    "yes | head -c 20000000",
    "head -c 64M /dev/zero > big; rm -f big",
    "setsid sleep 60 >/dev/null 2>&1 & true",
    "kill -9 -1",
    "kill -STOP $$",
    "trap '' TERM; while :; do :; done",
    "python3 -c 'bytearray(400 << 20)'",
    "for i in $(seq 300); do : > f$i; done; rm f*",
    "mkdir -p a/b; ln -s / a/b/link; cat a/b/link/etc/shadow",
    "python3 -c 'import socket; [socket.socketpair() for _ in range(400)]'",
    "exec python3 -c 'import os\nwhile os.fork() == 0: pass'",
];

/// Longest pause between two commands, and limit of one operation.
const PAUSE_MS: u64 = 1000;
const DEADLINE: Duration = Duration::from_secs(60);
/// Time to clean up after a hostile command: its killed processes count towards the limit until they have exited.
const LEFTOVER_TIME: Duration = Duration::from_secs(20);

/// How often something happened.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Counts {
    opened: AtomicU64,
    ordinary: AtomicU64,
    hostile: AtomicU64,
    /// How often ordinary operations failed, by the error.
    failures: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    /// Ordinary operations that failed.
    pub(super) fn failures(&self) -> u64 {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.values().sum()
    }

    fn fail(&self, error: &anyhow::Error) {
        let mut text: String = format!("{error:#}").replace(|it: char| it.is_ascii_digit(), "#");
        text = text.chars().take(300).collect();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures.entry(text).or_default() += 1;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [opened, ordinary, hostile] = [&self.opened, &self.ordinary, &self.hostile]
            .map(|count| count.load(Ordering::Relaxed));
        write!(
            f,
            "{opened} sandboxes, {ordinary} ordinary and {hostile} hostile commands"
        )?;
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures
            .iter()
            .try_for_each(|(error, count)| write!(f, "\n    failed {count} times: {error}"))
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Opens sandboxes.
pub(super) trait Sandboxes: Send + Sync + 'static {
    type One: Send + Sync;

    fn open(&self) -> impl Future<Output = Result<Self::One>> + Send;

    /// Runs a command line that must succeed.
    fn run(&self, one: &Self::One, line: &str) -> impl Future<Output = Result<()>> + Send;

    /// Transfers a file in and out.
    fn transfer(&self, one: &Self::One, bytes: usize) -> impl Future<Output = Result<()>> + Send;

    fn close(&self, one: Self::One) -> impl Future<Output = Result<()>> + Send;
}

/// Opens, uses and closes one sandbox after the other until `stop`.
pub(super) async fn use_sandboxes<S: Sandboxes>(
    sandboxes: S,
    mut random: Rng,
    counts: Arc<Counts>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let one = match in_time(sandboxes.open()).await {
            Ok(one) => one,
            Err(error) => {
                counts.fail(&error.context("opening"));
                continue;
            }
        };
        add(&counts.opened);
        for _ in 0..random.usize(1..8) {
            let pause = Duration::from_millis(random.u64(..PAUSE_MS));
            if timeout(pause, stop.cancelled()).await.is_ok() {
                break;
            }
            let done = match random.u8(..3) {
                0 => {
                    let line = random.choice(HOSTILE).copied().unwrap_or_default();
                    let line = line.replace('\'', r"'\''");
                    let line = format!("timeout -s KILL 2 bash -c '{line}'");
                    add(&counts.hostile);
                    // Whether it fails does not matter, only that it ends.
                    let ended = timeout(DEADLINE, sandboxes.run(&one, &line)).await;
                    let _ = timeout(LEFTOVER_TIME, clean_up(&sandboxes, &one)).await;
                    ended.map_or_else(|error| Err(error.into()), |_| Ok(()))
                }
                1 => in_time(sandboxes.transfer(&one, random.usize(..1 << 20))).await,
                _ => in_time(sandboxes.run(&one, "echo x > x; cat x")).await,
            };
            add(&counts.ordinary);
            if let Err(error) = done {
                counts.fail(&error);
                break;
            }
        }
        // A sandbox whose supervisor was killed is gone.
        let _ = timeout(DEADLINE, sandboxes.close(one)).await;
    }
}

/// Ends what hostile commands have left, which a server keeps, and removes their files, as soon as a command can start
/// processes.
async fn clean_up<S: Sandboxes>(sandboxes: &S, one: &S::One) {
    while sandboxes
        .run(one, "kill -9 -1; rm -rf big f*; (true)")
        .await
        .is_err()
    {
        sleep(Duration::from_millis(200)).await;
    }
}

async fn in_time<T>(operation: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(DEADLINE, operation).await?
}

/// Sandboxes of `cantle serve`.
pub(super) struct ServerSandboxes {
    pub(super) client: Arc<Client>,
}

impl Sandboxes for ServerSandboxes {
    type One = Made;

    async fn open(&self) -> Result<Made> {
        self.client.create().await
    }

    async fn run(&self, one: &Made, line: &str) -> Result<()> {
        self.client.run(one, line).await.map(drop)
    }

    async fn transfer(&self, one: &Made, bytes: usize) -> Result<()> {
        self.client.upload(one, "f", bytes).await?;
        self.client.download(one, "f").await.map(drop)
    }

    async fn close(&self, one: Made) -> Result<()> {
        self.client.kill(&one).await
    }
}

/// Sandboxes of the library.
struct LibrarySandboxes {
    backend: LocalBackend,
    policy: Policy,
}

impl Sandboxes for LibrarySandboxes {
    type One = Arc<dyn Sandbox>;

    async fn open(&self) -> Result<Arc<dyn Sandbox>> {
        let context = SandboxContext::new(RunId::new(), self.policy.clone());
        Ok(self.backend.open(context).await?)
    }

    async fn run(&self, one: &Arc<dyn Sandbox>, line: &str) -> Result<()> {
        let output = one.run(SpawnRequest::shell(line)).await?;
        anyhow::ensure!(output.exit.status.success(), "{line} failed: {output:?}");
        Ok(())
    }

    async fn transfer(&self, one: &Arc<dyn Sandbox>, bytes: usize) -> Result<()> {
        let path = SandboxPath::new("f")?;
        one.write_bytes(&path, vec![0; bytes].into()).await?;
        one.read_bytes(&path, 1 << 21).await?;
        Ok(())
    }

    async fn close(&self, one: Arc<dyn Sandbox>) -> Result<()> {
        Ok(one.close().await?)
    }
}

/// Part: uses sandboxes in a directory until the input ends, and prints the counts.
///
/// With `on_host_disk`, files are on the disk of the directory, and can fill it.
pub(crate) fn run_library(
    directory: &str,
    seed: u64,
    sandboxes: usize,
    on_host_disk: bool,
) -> Result<()> {
    let mut policy = Policy::workspace();
    for limit in LIMITS {
        policy.limits.set(limit)?;
    }
    if on_host_disk {
        policy.limits.set("disk=none")?;
    }
    let backend = LocalBackend::new().in_directory(directory);
    let (stop, counts) = (CancellationToken::new(), Arc::new(Counts::default()));
    let input_ended = stop.clone();
    std::thread::spawn(move || {
        // Nothing is written to it.
        let _ = std::io::stdin().read(&mut [0]);
        input_ended.cancel();
    });
    let mut random = Rng::with_seed(seed);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..sandboxes {
                let (backend, policy) = (backend.clone(), policy.clone());
                let all = LibrarySandboxes { backend, policy };
                tasks.spawn(use_sandboxes(
                    all,
                    random.fork(),
                    Arc::clone(&counts),
                    stop.clone(),
                ));
            }
            while let Some(task) = tasks.join_next().await {
                task?;
            }
            Ok::<_, anyhow::Error>(())
        })?;
    drop(backend);
    println!("{}", serde_json::to_string(&*counts)?);
    Ok(())
}

/// Removes what killed processes have left in a directory, and returns the number of paths.
pub(super) async fn reclaim(directory: &Path) -> usize {
    let backend = LocalBackend::new().in_directory(directory);
    backend.reclaim(Duration::ZERO).await.removed.len()
}
