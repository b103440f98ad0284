//! The arguments of `cantle mcp`, and the MCP servers of `--mcp FILE`. A file is read only if it is named: it says which programs to start.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use cantle::backends::local::LocalBackend;
use cantle::mcp::{McpServer, McpTools};

use crate::environment::variable;
use crate::settings::{Given, SandboxSettings};
use crate::trust::read_regular;
use crate::variables::VariableArgs;

/// Serve a sandbox to an MCP client, or try the MCP servers of a file
///
/// Without a subcommand, it speaks MCP over standard input and output, with the tools run_command, run_python, read_file,
/// write_file and list_files. They work in one sandbox, which the first call opens and the end of standard input removes.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    pub(crate) command: Option<McpCommand>,

    #[command(flatten)]
    pub(crate) sandbox: Given<SandboxSettings>,

    #[command(flatten)]
    pub(crate) variables: VariableArgs,

    /// Also offer run_agent, which starts `cantle run` with the client's task
    ///
    /// Its runs have the sandbox flags of this command, and the arguments after `--`, such as `-- --model qwen3 --budget-usd 1`.
    #[arg(long, help_heading = "Model")]
    pub(crate) allow_agent: bool,

    /// Arguments of `cantle run` for run_agent
    #[arg(last = true, value_name = "RUN_ARGUMENT", requires = "allow_agent")]
    pub(crate) agent_arguments: Vec<String>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum McpCommand {
    /// Connect to the servers, and list their tools
    List {
        /// The file, as for `cantle run --mcp`
        file: PathBuf,
    },
    /// Connect to the servers, and report which fail and why
    Test {
        /// The file, as for `cantle run --mcp`
        file: PathBuf,
    },
}

/// Reads the servers in a file.
///
/// # Errors
/// If the file can't be read or is invalid, or a variable that it names is not set.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<McpServer>> {
    let shown = path.display();
    let (text, _) = read_regular(path)?.with_context(|| format!("there is no file {shown}"))?;
    McpServer::from_json(&text, variable).map_err(|error| anyhow!("{shown}: {error}"))
}

/// Returns the tools of servers. They are started on this machine, wherever the run's commands run: its programs are
/// those that the file names.
pub(crate) fn tools(servers: Vec<McpServer>) -> McpTools {
    McpTools::new(servers)
        .sandboxes(LocalBackend::new())
        .host(LocalBackend::new())
}
