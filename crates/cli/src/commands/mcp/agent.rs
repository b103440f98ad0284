//! `run_agent`: an MCP client starts a run of Cantle's own agent, as `cantle run` does.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use cantle::core::escape::shorten;
use cantle::core::tool::{DynTool, ToolContext, ToolError, ToolOutput};
use clap::Parser as _;
use rustix::process::{Pid, Signal, kill_process};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

use crate::args::RunCli;
use crate::config::RunConfig;
use crate::mcp::McpArgs;

/// Time for a cancelled run to end by itself; less than `serve_stdio` grants calls.
const GRACE: Duration = Duration::from_secs(10);
/// Maximum characters of the errors of a run that failed.
const MAX_ERROR_CHARS: usize = 4_000;

#[derive(Deserialize, JsonSchema)]
struct AgentParams {
    /// The task, with everything that the agent has to know.
    task: String,
}

/// Returns the tool. Its runs have the settings and variables of this command, and its further arguments.
///
/// # Errors
/// If `cantle run` does not accept them, or no model is configured.
pub(super) fn run_agent(args: &McpArgs) -> anyhow::Result<DynTool> {
    let mut line: Vec<OsString> = vec!["run".into(), "--quiet".into()];
    // All other flags of `cantle mcp` are flags of `cantle run`, too.
    let flags = std::env::args_os().skip(2).take_while(|word| word != "--");
    line.extend(flags.filter(|word| word != "--allow-agent"));
    line.extend(args.agent_arguments.iter().map(OsString::from));
    line.push("--".into());
    let parsed = RunCli::try_parse_from(line.iter().cloned().chain(["task".into()]));
    let RunCli { args: run } = parsed.context("the arguments after `--` are for `cantle run`")?;
    if let Some(conflict) = run.conflict() {
        bail!("the arguments after `--` are for `cantle run`: {conflict}");
    }
    RunConfig::resolve(&run.settings, run.replay.as_deref())
        .map_err(|failure| failure.error)
        .context("--allow-agent needs the settings that `cantle run` needs")?;
    let program = std::env::current_exe().context("failed to find this program")?;
    let description = "Starts an agent that works on the task in a sandbox of its own with a model, and returns its answer and \
                       the files it delivered. It may take minutes and cost money.";
    let tool = DynTool::from_fn("run_agent", description, move |params: AgentParams, cx| {
        let mut command = Command::new(&program);
        command.args(&line).arg(params.task);
        perform(command, cx)
    });
    // The budget of a run limits its time.
    Ok(tool.with_timeout(None))
}

async fn perform(mut command: Command, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let failed = |error: std::io::Error| ToolError::failed(format!("The run failed: {error}"));
    let child = command.spawn().map_err(failed)?;
    let id = child.id();
    let mut output = Box::pin(child.wait_with_output());
    let output = tokio::select! {
        output = &mut output => output.map_err(failed)?,
        () = cx.cancellation.cancelled() => {
            if let Some(pid) = id.and_then(|id| Pid::from_raw(id.cast_signed())) {
                // It may have just ended.
                let _ = kill_process(pid, Signal::TERM);
            }
            let _ = timeout(GRACE, output).await;
            return Err(ToolError::cancelled());
        }
    };
    let answer = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(ToolOutput::text(answer.trim_end()));
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Ok(ToolOutput::failure(format!(
        "The run ended with {}.\n{}\n{}",
        output.status,
        shorten(errors.trim(), MAX_ERROR_CHARS),
        answer.trim_end()
    )))
}
