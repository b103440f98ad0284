//! Commands: `bash -c true` with and without a sandbox.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest,
};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use crate::process::median;
use crate::report::Report;

const PAIRS: usize = 300;
/// Number of path resolutions per measurement.
const PATHS: usize = 1000;

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
        let sandbox = LocalBackend::new().open(cx).await?;
        let (mut raw, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            let started = Instant::now();
            let mut command = std::process::Command::new("bash");
            command.args(["-c", "true"]).stdin(Stdio::null());
            let output = command.output()?;
            ensure!(output.status.success());
            raw.push(started.elapsed().as_secs_f64() * 1000.0);

            let started = Instant::now();
            let output = sandbox.run(SpawnRequest::shell("true")).await?;
            ensure!(output.exit.status.success());
            ours.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        let (raw, ours) = (median(&mut raw), median(&mut ours));
        report.add("raw `bash -c true`", raw, "ms");
        report.add("sandbox `true`", ours, "ms");
        report.at_most("unconfined sandbox / raw", ours / raw, "x", 1.25);

        let path: SandboxPath = "four-kilobytes".parse()?;
        sandbox.write_bytes(&path, vec![0; 4096].into()).await?;
        let host = std::path::PathBuf::from(sandbox.info().working_directory.to_string());
        let host = host.join("four-kilobytes");
        let (mut plain, mut checked) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            let started = Instant::now();
            ensure!(tokio::fs::read(&host).await?.len() == 4096);
            plain.push(started.elapsed().as_secs_f64() * 1000.0);
            let started = Instant::now();
            ensure!(sandbox.read_bytes(&path, 4096).await?.len() == 4096);
            checked.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        let ratio = median(&mut checked) / median(&mut plain);
        report.at_most("Sandbox::read of 4 KiB / tokio::fs::read", ratio, "x", 1.5);
        let microseconds = resolution(&host)?;
        report.at_most("a checked path, opened and closed", microseconds, "us", 3.0);
        sandbox.close().await?;
        Ok(())
    })
}

/// Returns the microseconds for parsing a path and resolving it beneath the sandbox's directory.
fn resolution(file: &Path) -> Result<f64> {
    let directory = file.parent().context("a file is in a directory")?;
    let name = file.file_name().and_then(OsStr::to_str).context("a name")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(directory, flags, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut rounds = Vec::new();
    for _ in 0..PAIRS {
        let started = Instant::now();
        for _ in 0..PATHS {
            let path: SandboxPath = name.parse()?;
            openat2(
                &directory,
                path.relative_bytes(),
                flags,
                Mode::empty(),
                resolve,
            )?;
        }
        rounds.push(started.elapsed().as_secs_f64() * 1e6 / PATHS as f64);
    }
    Ok(median(&mut rounds))
}
