//! The binary: from its start to its first request.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Result;

use crate::process::median;
use crate::report::Report;

const RUNS: usize = 21;

pub(crate) fn measure(report: &mut Report, cantle: &Path) -> Result<()> {
    for (policy, goal) in [("unconfined", 5.0), ("workspace", 12.0)] {
        report.at_most(
            format!("cantle run under `{policy}`: start to first request"),
            to_first_request(cantle, policy)?,
            "ms",
            goal,
        );
    }
    Ok(())
}

fn to_first_request(cantle: &Path, policy: &str) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        let mut child = Command::new(cantle)
            .args(["run", "--base-url", &url, "--model", "bench"])
            .args(["--policy", policy, "the task"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CANTLE_API_KEY", "sk-bench")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (mut connection, _) = listener.accept()?;
        let mut byte = [0];
        connection.read_exact(&mut byte)?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        child.kill()?;
        child.wait()?;
    }
    Ok(median(&mut times))
}
