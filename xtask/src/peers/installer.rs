//! Installation of peers below `target/peers`, with a log for each.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;

use crate::guard::Guarded;
use crate::lane::Lane;
use crate::shell;

/// Lines of a log that an error shows.
const TAIL: usize = 8;
/// Time limit of one step. The longest, a large environment over a slow connection, takes a twentieth of it.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The directory of installed peers, which this program has locked.
pub struct Installer {
    directory: PathBuf,
    /// The lane that the peers are for.
    pub lane: Lane,
    /// Held while this program runs: two of them would install into each other.
    _lock: File,
}

impl Installer {
    /// Waits for another run in the same target directory to end.
    pub fn open(target: &Path, lane: Lane) -> Result<Installer> {
        let directory = target.join("peers");
        fs::create_dir_all(directory.join("logs"))
            .with_context(|| format!("failed to create {}", directory.display()))?;
        let lock = File::create(directory.join("lock"))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            eprintln!("waiting for another `cargo xtask test` in this target directory");
            rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        }
        Ok(Installer {
            directory,
            lane,
            _lock: lock,
        })
    }

    /// Returns the directory of a peer, which `build` fills. It is built again if `recipe`, a text that
    /// names all its inputs, has changed.
    pub fn cached(
        &self,
        peer: &str,
        recipe: &str,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let directory = self.directory.join(peer);
        let stamp = directory.join("recipe");
        if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == recipe) {
            return Ok(directory);
        }
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("failed to remove {}", directory.display()))?;
        }
        fs::create_dir_all(&directory)?;
        let start = Instant::now();
        eprintln!("[{peer}] preparing");
        build(&directory)?;
        // Last, so that an interrupted build is repeated.
        fs::write(stamp, recipe)?;
        eprintln!(
            "[{peer}] prepared in {:.1} s",
            start.elapsed().as_secs_f32()
        );
        Ok(directory)
    }

    /// Runs one step of an installation. Its output goes to the peer's log, the end of which is in the error.
    pub fn step(&self, peer: &str, command: &Command) -> Result<()> {
        let path = self.log(peer);
        let line = shell::line(command);
        match Guarded::spawn_into(command, &path)?.wait_at_most(DEADLINE)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("`{line}` failed ({status}):\n{}", tail(&path)),
            None => bail!(
                "`{line}` took over {} s:\n{}",
                DEADLINE.as_secs(),
                tail(&path)
            ),
        }
    }

    /// A directory with the program of a Rust package below `bin`, built with `arguments`.
    pub fn cargo_install(
        &self,
        peer: &str,
        package: &str,
        version: &str,
        arguments: &[&str],
    ) -> Result<PathBuf> {
        let recipe = format!("{package} {version} {}", arguments.join(" "));
        self.cached(peer, &recipe, |directory| {
            let build = directory.join("build");
            let mut install = shell::cargo();
            install
                .args(["install", package, "--version", version, "--locked"])
                .args(arguments)
                .arg("--root")
                .arg(directory)
                .env("CARGO_TARGET_DIR", &build);
            self.step(peer, &install)?;
            Ok(fs::remove_dir_all(build)?)
        })
    }

    /// A directory with npm packages, among which may be flags for their installation.
    pub fn npm(&self, peer: &str, packages: &[&str]) -> Result<PathBuf> {
        if shell::probe("npm", &["--version"]).is_none() {
            bail!("there is no npm");
        }
        self.cached(peer, &packages.join(" "), |directory| {
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--no-save"])
                .args(["--fetch-retries=1", "--prefix"])
                .arg(directory)
                .args(packages)
                .current_dir(directory);
            self.step(peer, &npm)
        })
    }

    pub fn log(&self, peer: &str) -> PathBuf {
        self.directory.join("logs").join(format!("{peer}.log"))
    }
}

/// The end of a log, indented.
pub fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let shown = &lines[lines.len().saturating_sub(TAIL)..];
    shown.iter().map(|line| format!("    {line}\n")).collect()
}
