//! Tools that run Python in the session's sandbox and keep its files in a store with owners.
//!
//! [`tools`] returns `run_python`, `load_file`, `list_files`, `get_file_link`, `read_document`,
//! `create_document`, `upload_file` and `delete_file`. The files belong to the principal of the call; without one
//! a call is refused. Names, results and messages are those of the code_executor service.

#![forbid(unsafe_code)]

mod python;
mod stored;

use cantle_core::principal::Level;
use cantle_core::tool::{DynTool, ToolError, ToolOutput};
use cantle_files::{Files, FilesError};
use serde_json::Value;

/// Returns the tools over a store of files. Their sandbox is that of the session.
pub fn tools(files: &Files) -> Vec<DynTool> {
    let mut tools = vec![python::run_python(files)];
    tools.extend(stored::tools(files));
    let levels = tools.into_iter().map(|tool| {
        let deletes = tool.name() == "delete_file";
        tool.with_level(if deletes { Level::User } else { Level::Guest })
    });
    levels.collect()
}

fn json(value: &Value) -> ToolOutput {
    ToolOutput::text(value.to_string())
}

/// The message without its cause, which may name the store's addresses.
fn failed(error: FilesError) -> ToolError {
    ToolError::failed(error.to_string()).with_source(error)
}
