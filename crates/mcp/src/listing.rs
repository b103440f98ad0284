//! The tools that a server lists: their limits, and their changes.

use std::collections::HashSet;
use std::sync::Arc;

use cantle_core::escape::{join_up_to, shorten};
use rmcp::RoleClient;
use rmcp::model::{PaginatedRequestParams, Tool};
use rmcp::service::Peer;

use crate::call_error::{CallError, call_error};
use crate::config::McpServer;
use crate::limits::{
    MAX_DESCRIPTION_CHARS, MAX_LISTED_BYTES, MAX_LISTED_TOOLS, MAX_NAMED_CHANGES, MAX_PAGES,
    MAX_SCHEMA_BYTES, MAX_SCHEMAS_BYTES, MAX_TOOLS,
};
use crate::names::{CALL, SEARCH, tool_name};
use crate::schema::flattened;

/// Lists the tools, page by page.
pub(crate) async fn list(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, String> {
    let (mut tools, mut bytes) = (Vec::<Tool>::new(), 0);
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let mut params = PaginatedRequestParams::default();
        params.cursor = cursor;
        let page = peer.list_tools(Some(params)).await;
        let page = page.map_err(|error| match call_error(&error) {
            CallError::NotSent | CallError::Lost => "ended the connection".to_owned(),
            CallError::Refused(problem) | CallError::Unknown(problem) => {
                format!("did not list its tools: {problem}")
            }
        })?;
        bytes += serde_json::to_vec(&page.tools).map_or(0, |json| json.len());
        if bytes > MAX_LISTED_BYTES {
            let mib = MAX_LISTED_BYTES >> 20;
            return Err(format!("lists tools of more than {mib} MiB"));
        }
        // Some servers have one page, and answer every cursor with it, their own or an empty one.
        if !page.tools.is_empty() && tools.starts_with(&page.tools) {
            return Ok(tools);
        }
        tools.extend(page.tools);
        if tools.len() > MAX_LISTED_TOOLS {
            return Err(format!("lists more than {MAX_LISTED_TOOLS} tools"));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    Err(format!("lists its tools on more than {MAX_PAGES} pages"))
}

/// Returns those of the listed tools that the entry names, if they are within the limits, with schemas that model
/// providers accept.
pub(crate) fn accepted(config: &McpServer, mut listed: Vec<Tool>) -> Result<Vec<Tool>, String> {
    if let Some(allowed) = &config.tools {
        let missing = |name: &&String| !listed.iter().any(|tool| tool.name == name.as_str());
        if let Some(name) = allowed.iter().find(missing) {
            return Err(format!("has no tool `{name}`, which `tools` names"));
        }
        listed.retain(|tool| allowed.iter().any(|name| tool.name == name.as_str()));
    }
    if listed.len() > MAX_TOOLS {
        return Err(format!(
            "has {} tools, and {MAX_TOOLS} are allowed: name those to use in `tools`",
            listed.len()
        ));
    }
    let mut names = HashSet::new();
    let mut schemas_bytes = 0;
    for tool in &mut listed {
        let name = tool_name(&config.name, &tool.name);
        if !names.insert(name.clone()) {
            return Err(format!("has two tools that would be called `{name}`"));
        }
        // Model providers refuse requests with others, whichever tool is called.
        let kind = tool.input_schema.get("type");
        if kind.is_some_and(|kind| kind != "object") {
            let name = shorten(&tool.name, 64);
            let problem = format!("has a tool `{name}` whose parameters are no object");
            return Err(problem);
        }
        let description = tool.description.as_deref().map_or(0, str::len);
        let schema = serde_json::to_string(&tool.input_schema).map_or(0, |json| json.len());
        let bytes = schema + description.min(MAX_DESCRIPTION_CHARS);
        schemas_bytes += bytes;
        if bytes > MAX_SCHEMA_BYTES || schemas_bytes > MAX_SCHEMAS_BYTES {
            return Err(format!(
                "has descriptions and schemas that are too large (up to {} KiB for a tool, {} KiB together): name the \
                 tools to use in `tools`",
                MAX_SCHEMA_BYTES >> 10,
                MAX_SCHEMAS_BYTES >> 10
            ));
        }
        if let Some(schema) = flattened(&tool.input_schema) {
            tool.input_schema = Arc::new(schema);
        }
    }
    Ok(listed)
}

/// Describes a change of a server's tools for the model, if there is one.
pub(crate) fn changes(server: &str, earlier: &[Tool], later: &[Tool]) -> Option<String> {
    let name = |tool: &Tool| format!("`{}`", tool_name(server, &tool.name));
    let is_known = |tool: &&Tool| earlier.contains(tool);
    let remains = |tool: &&Tool| later.iter().any(|it| it.name == tool.name);
    let changed = later.iter().filter(|tool| !is_known(tool)).map(name);
    let removed = earlier.iter().filter(|tool| !remains(tool)).map(name);
    let (changed, removed): (Vec<_>, Vec<_>) = (changed.collect(), removed.collect());
    let listed = |names: &[String], about: &str| match names.is_empty() {
        true => String::new(),
        false => format!(" {about}: {}.", join_up_to(MAX_NAMED_CHANGES, names)),
    };
    if changed.is_empty() && removed.is_empty() {
        return None;
    }
    Some(format!(
        "The tools of the MCP server `{server}` changed.{}{}",
        listed(
            &changed,
            &format!("New or different (`{SEARCH}` describes them, `{CALL}` calls them)")
        ),
        listed(&removed, "No longer there"),
    ))
}
