//! Tools that run Python and shell commands in the session's sandbox and keep its files in a store with owners.
//!
//! [`tools`] returns `run_python`, `run_shell`, `load_file`, `list_files`, `get_file_link`, `read_document`,
//! `create_document`, `upload_file` and `delete_file`. The files belong to the principal of the call; without one
//! a call is refused. Names, results and messages are those of the code_executor service.

#![forbid(unsafe_code)]

mod output;
mod python;
mod shell;
mod stored_files;

use cantle_core::tool::{DynTool, ToolOutput};
use cantle_files::Files;
use serde_json::Value;

/// Returns the tools over a store of files. Their sandbox is that of the session.
///
/// `run_shell` needs a backend that can make a command read-only
/// ([`SpawnRequest::read_only_except`](cantle_core::sandbox::SpawnRequest::read_only_except)); elsewhere its calls fail. It refuses
/// the names of programs that change something, such as `rm`, with the service's message: see
/// [`tools_without_patterns`].
pub fn tools(files: &Files) -> Vec<DynTool> {
    tools_with(files, true)
}

/// Returns the tools, of which `run_shell` refuses no program by its name. The kernel keeps files as they are all the same.
pub fn tools_without_patterns(files: &Files) -> Vec<DynTool> {
    tools_with(files, false)
}

/// The tools that need no sandbox: they work on stored files only.
pub const WITHOUT_SANDBOX: [&str; 5] = [
    "list_files",
    "get_file_link",
    "read_document",
    "create_document",
    "delete_file",
];

fn tools_with(files: &Files, checks_patterns: bool) -> Vec<DynTool> {
    let mut tools = vec![python::run_python(files), shell::run_shell(checks_patterns)];
    tools.extend(stored_files::tools(files));
    tools
}

fn json(value: &Value) -> ToolOutput {
    ToolOutput::text(value.to_string())
}
