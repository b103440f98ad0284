//! Scripts for the sandbox's bash, and short ones that run beside the commands.

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_core::sandbox::{Channel, PtySize};
use serde_json::{Value, json};

use crate::envd::{Envd, EventStream, Fault, ProcessEvent, in_time};
use crate::http::RequestError;

/// The path of bash, on which E2B's own clients rely as well.
const BASH: &str = "/bin/bash";

/// Option of bash that ignores startup files and functions in the environment.
const PRIVILEGED: &str = "-p";

/// Time limit of a script that runs to its end.
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

/// Returns the request that starts bash with a script.
pub(crate) fn start_request<'a>(
    script: &'a str,
    arguments: impl IntoIterator<Item = &'a str>,
    environment: &BTreeMap<&str, &str>,
    stdio: Stdio,
) -> Value {
    let fixed = [PRIVILEGED, "-c", script, "cantle"];
    let arguments: Vec<&str> = fixed.into_iter().chain(arguments).collect();
    let process = json!({ "cmd": BASH, "args": arguments, "envs": environment });
    let (field, stdio) = match stdio {
        Stdio::Pipes { has_input } => ("stdin", Value::Bool(has_input)),
        Stdio::Terminal(size) => ("pty", pty(size)),
    };
    json!({ "process": process, (field): stdio })
}

/// The standard streams of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stdio {
    Pipes { has_input: bool },
    Terminal(PtySize),
}

/// Encodes the size of a terminal.
pub(crate) fn pty(size: PtySize) -> Value {
    json!({ "size": { "cols": size.columns, "rows": size.rows } })
}

/// Starts a script with arguments; the service ends it after `limit`.
pub(crate) async fn start(
    envd: &Envd,
    script: &str,
    arguments: &[&str],
    limit: Option<Duration>,
) -> Result<EventStream, Fault> {
    let environment = BTreeMap::from([("LC_ALL", "C")]);
    let stdio = Stdio::Pipes { has_input: false };
    let request = start_request(script, arguments.iter().copied(), &environment, stdio);
    envd.start(&request, limit).await
}

/// Runs a script to its end.
pub(crate) async fn run(
    envd: &Envd,
    script: &str,
    arguments: &[&str],
) -> Result<ScriptOutput, Fault> {
    let running = async {
        let limit = Some(SCRIPT_TIMEOUT);
        let mut events = start(envd, script, arguments, limit).await?;
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
                ProcessEvent::Ended(status) => output.success = status.success(),
            }
        }
        Ok::<_, Fault>(output)
    };
    in_time(SCRIPT_TIMEOUT, running).await
}
