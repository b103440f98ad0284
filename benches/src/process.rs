//! Resource usage of this process, and parts run in child processes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// Returns the CPU time of all threads of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Returns the peak resident memory of this process, in MB (10^6 bytes).
pub(crate) fn peak_memory_mb() -> Result<f64> {
    status_mb(std::process::id(), "VmHWM:")
}

/// Returns the resident memory of this process, in MB.
pub(crate) fn memory_mb() -> Result<f64> {
    memory_mb_of(std::process::id())
}

/// Returns the resident memory of a process, in MB.
pub(crate) fn memory_mb_of(pid: u32) -> Result<f64> {
    status_mb(pid, "VmRSS:")
}

pub(crate) fn status_mb(pid: u32, name: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with(name))
        .context("the kernel does not say it")?;
    let kilobytes: f64 = line
        .split_whitespace()
        .nth(1)
        .context("no value")?
        .parse()?;
    Ok(kilobytes * 1024.0 / 1e6)
}

/// Returns the descendants of a process, except its own zombies and processes with this name.
pub(crate) fn descendants(of: u32, without: Option<&str>) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The process may have ended.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        // `PID (NAME) STATE PARENT …`; the name may contain any character.
        let (start, rest) = stat.rsplit_once(") ").unwrap_or_default();
        let name = start.split_once(" (").unwrap_or_default().1.to_owned();
        let mut rest = rest.split(' ');
        let (state, parent) = (rest.next(), rest.next());
        let parent: u32 = parent.and_then(|parent| parent.parse().ok()).unwrap_or(0);
        if !(state == Some("Z") && parent == of) {
            all.push((pid, parent, name));
        }
    }
    let mut found = vec![of];
    let mut at = 0;
    while let Some(ancestor) = found.get(at).copied() {
        let children = all.iter().filter(|(_, parent, _)| *parent == ancestor);
        found.extend(children.map(|(pid, ..)| *pid));
        at += 1;
    }
    let is_other = |pid: &u32| {
        let mut all = all.iter();
        all.any(|(one, _, name)| one == pid && without != Some(name))
    };
    Ok(found.into_iter().skip(1).filter(is_other).collect())
}

/// Returns a command that runs one part with this program.
pub(crate) fn part(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdout(Stdio::piped());
    Ok(command)
}

/// Runs a part and parses its last output line as JSON.
pub(crate) fn run_part(arguments: &[&str]) -> Result<Value> {
    run_part_in(&std::env::temp_dir(), arguments)
}

/// Runs a part with `directory` for temporary files.
pub(crate) fn run_part_in(directory: &Path, arguments: &[&str]) -> Result<Value> {
    let output = part(arguments)?.env("TMPDIR", directory).output()?;
    ensure!(
        output.status.success(),
        "{arguments:?} failed: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let text = String::from_utf8(output.stdout)?;
    Ok(serde_json::from_str(
        text.lines().last().context("the part printed nothing")?,
    )?)
}

/// Returns the median.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
