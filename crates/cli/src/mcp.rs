//! The MCP servers of `--mcp FILE`. A file is read only if it is named: it says which programs to start.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use cantle::backends::local::LocalBackend;
use cantle::mcp::{McpServer, McpTools};

use crate::environment::variable;
use crate::trust::read_regular;

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
