//! The tools of a server, as the agent calls them.

use std::sync::Arc;

use cantle_core::escape::shorten;
use cantle_core::tool::{DynTool, ToolError, ToolSpec};
use rmcp::model::Tool;
use serde_json::{Map, Value};

use crate::connection::Server;
use crate::limits::MAX_DESCRIPTION_CHARS;
use crate::names::tool_name;

/// Returns the tools that a server listed last.
pub(crate) fn dyn_tools(server: &Arc<Server>) -> Vec<DynTool> {
    let tools = server.tools();
    tools.iter().map(|tool| dyn_tool(server, tool)).collect()
}

fn dyn_tool(server: &Arc<Server>, tool: &Tool) -> DynTool {
    let schema = Value::Object(Map::clone(&tool.input_schema));
    let name = tool.name.to_string();
    let description = match tool.description.as_deref().map(str::trim) {
        Some(text) if !text.is_empty() => shorten(text, MAX_DESCRIPTION_CHARS),
        _ => format!(
            "Tool `{}` of the MCP server `{}`.",
            shorten(&name, 64),
            server.config.name
        ),
    };
    let spec = ToolSpec::new(tool_name(&server.config.name, &name), description, schema);
    let server = Arc::clone(server);
    let tool = DynTool::from_schema(spec, move |arguments, cx| {
        let (server, name) = (Arc::clone(&server), name.clone());
        async move {
            if server.surroundings.offline {
                return Err(ToolError::failed("No MCP server is called in a replay."));
            }
            let Value::Object(arguments) = arguments else {
                return Err(ToolError::failed("The arguments are not an object."));
            };
            let call = Box::pin(server.call(&name, arguments, &cx));
            match cx.cancellation.run_until_cancelled(call).await {
                Some(result) => result,
                // The dropped call has told the server to stop.
                None => Err(ToolError::cancelled()),
            }
        }
    });
    // The connection has its own, which pauses while the user is asked.
    tool.with_timeout(None)
}
