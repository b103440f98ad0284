//! Short helper scripts, run beside the commands.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use cantle_core::sandbox::Channel;
use tokio::time::timeout;

use super::line::{BASH, PRIVILEGED};
use crate::envd::{Envd, EventStream, Fault, ProcessConfig, ProcessEvent, ProcessExit, Start};
use crate::http::RequestError;

/// Time limit of a script.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum output of a script in bytes.
const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// Result of a script.
#[derive(Debug)]
pub(crate) struct ScriptOutput {
    pub(crate) success: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Starts a script with arguments.
pub(crate) async fn start(
    envd: &Envd,
    script: &str,
    arguments: &[&str],
) -> Result<EventStream, Fault> {
    let fixed = [PRIVILEGED, "-c", script, "cantle"];
    let arguments = fixed.iter().chain(arguments).copied().map(Cow::Borrowed);
    let start = Start {
        process: ProcessConfig {
            cmd: BASH,
            args: arguments.collect(),
            envs: BTreeMap::from([("LC_ALL", "C")]),
            cwd: None,
        },
        pty: None,
        stdin: Some(false),
    };
    envd.start(&start, Some(SCRIPT_TIMEOUT)).await
}

/// Runs a script to its end.
pub(crate) async fn run(
    envd: &Envd,
    script: &str,
    arguments: &[&str],
) -> Result<ScriptOutput, Fault> {
    let running = async {
        let mut events = start(envd, script, arguments).await?;
        let mut output = ScriptOutput {
            success: false,
            stdout: Vec::new(),
            stderr: String::new(),
        };
        while let Some(event) = events.next().await? {
            match event {
                ProcessEvent::Started(_) => {}
                ProcessEvent::Output(Channel::Stdout, bytes) => {
                    if output.stdout.len() + bytes.len() > MAX_OUTPUT_BYTES {
                        return Err(RequestError::new("a script's output is too long").into());
                    }
                    output.stdout.extend_from_slice(&bytes);
                }
                ProcessEvent::Output(Channel::Stderr, bytes) => {
                    if output.stderr.len() < 1000 {
                        output.stderr.push_str(&String::from_utf8_lossy(&bytes));
                    }
                }
                ProcessEvent::Ended(exit) => output.success = exit == ProcessExit::Code(0),
            }
        }
        Ok(output)
    };
    match timeout(SCRIPT_TIMEOUT, running).await {
        Ok(output) => output,
        Err(_) => Err(RequestError::timed_out(SCRIPT_TIMEOUT).into()),
    }
}
