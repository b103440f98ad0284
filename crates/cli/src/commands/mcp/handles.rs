//! Sandboxes of MCP clients without sessions (protocol 2026-07-28): results name a handle, and later calls give it as an
//! argument. Each principal has its own, so no handle is valid under another key.

use std::collections::HashMap;
use std::sync::Arc;

use cantle::core::content::{Content, Part};
use cantle::core::tool::{DynTool, ToolContext, ToolError, ToolOutput, ToolSpec};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::tools::SandboxTools;

/// The argument with a handle.
const ARGUMENT: &str = "sandbox";

/// The sandboxes of one principal, by their handles.
struct Handles {
    create: Box<dyn Fn() -> SandboxTools + Send + Sync>,
    sandboxes: Mutex<HashMap<String, SandboxTools>>,
}

/// Returns the tools with an argument for a handle. A call without one gets a new sandbox.
pub(super) fn tools(create: impl Fn() -> SandboxTools + Send + Sync + 'static) -> Vec<DynTool> {
    let tools = create().list();
    let handles = Arc::new(Handles {
        create: Box::new(create),
        sandboxes: Mutex::default(),
    });
    let tools = tools.iter();
    tools
        .map(|tool| with_handle(tool.spec(), &handles))
        .collect()
}

fn with_handle(spec: &ToolSpec, handles: &Arc<Handles>) -> DynTool {
    let mut schema = spec.parameters().clone();
    let properties = schema.pointer_mut("/properties");
    if let Some(properties) = properties.and_then(Value::as_object_mut) {
        let description = "The sandbox, as an earlier result named it. Default: a new, empty one.";
        let argument = json!({"type": "string", "description": description});
        properties.insert(ARGUMENT.to_owned(), argument);
    }
    let spec = ToolSpec::new(spec.name(), spec.description(), schema);
    let (name, handles) = (spec.name().to_owned(), Arc::clone(handles));
    DynTool::from_schema(spec, move |arguments, cx| {
        let (name, handles) = (name.clone(), Arc::clone(&handles));
        async move { handles.call(&name, arguments, cx).await }
    })
    // Those of the sandbox have their own.
    .with_timeout(None)
}

impl Handles {
    async fn call(
        &self,
        name: &str,
        mut arguments: Value,
        cx: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let given = arguments.as_object_mut().and_then(|it| it.remove(ARGUMENT));
        if let Some(handle) = given.as_ref().and_then(Value::as_str) {
            return call(&self.find(handle)?, name, &arguments, cx).await;
        }
        let (tools, handle) = ((self.create)(), new_handle()?);
        // The client does not learn of the sandbox of a call that fails.
        let mut output = call(&tools, name, &arguments, cx).await?;
        let note = format!(
            "(Sandbox `{handle}`: calls with this as `{ARGUMENT}` continue in it, others get a new one.)"
        );
        output.content = with_note(output.content, note);
        self.sandboxes(|all| all.insert(handle, tools));
        Ok(output)
    }

    fn find(&self, handle: &str) -> Result<SandboxTools, ToolError> {
        let found = self.sandboxes(|all| all.get(handle).cloned());
        found.ok_or_else(|| {
            ToolError::failed(format!(
                "Argument `{ARGUMENT}`: you have no such sandbox. One that is not used for some time is closed, with its \
                 files. Leave the argument out to get a new one."
            ))
        })
    }

    /// Acts on the sandboxes. Expired ones are removed first, because the client may never name them.
    fn sandboxes<R>(&self, act: impl FnOnce(&mut HashMap<String, SandboxTools>) -> R) -> R {
        let mut sandboxes = self.sandboxes.lock();
        sandboxes.retain(|_, tools| !tools.is_expired());
        act(&mut sandboxes)
    }
}

async fn call(
    tools: &SandboxTools,
    name: &str,
    arguments: &Value,
    cx: ToolContext,
) -> Result<ToolOutput, ToolError> {
    let tools = tools.list();
    let tool = tools.iter().find(|tool| tool.name() == name);
    let tool = tool.ok_or_else(|| ToolError::failed(format!("There is no tool `{name}`.")))?;
    let arguments = tool.parse(&arguments.to_string())?.arguments;
    tool.call(arguments, cx).await
}

fn new_handle() -> Result<String, ToolError> {
    let number = getrandom::u64();
    let number = number.map_err(|error| ToolError::failed(error.to_string()))?;
    Ok(format!("{number:016x}"))
}

fn with_note(content: Content, note: String) -> Content {
    let mut parts = match content {
        Content::Text(text) => vec![Part::Text(text)],
        Content::Parts(parts) => parts,
    };
    parts.push(Part::Text(note));
    Content::Parts(parts)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cantle::backends::local::LocalBackend;
    use cantle::core::ids::RunId;
    use cantle::core::policy::Policy;
    use tokio::time::{sleep, timeout};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "multi_thread")]
    async fn expired_sandboxes_are_removed_when_a_call_opens_another_one() {
        let create = || {
            let (backend, idle) = (Arc::new(LocalBackend::new()), Duration::from_millis(1));
            SandboxTools::new(backend, Policy::workspace(), None, Some(idle))
        };
        let handles = Handles {
            create: Box::new(create),
            sandboxes: Mutex::default(),
        };
        let call = async || {
            let cx = ToolContext::new(RunId::new(), "call-1");
            handles.call("list_files", json!({}), cx).await.unwrap();
        };
        call().await;
        let first = handles.sandboxes.lock().values().next().cloned();
        let first = first.unwrap();
        let expired = async {
            while !first.is_expired() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(DEADLINE, expired).await.unwrap();
        call().await;
        let left: Vec<_> = handles.sandboxes.lock().drain().collect();
        assert_eq!(left.len(), 1);
        for (_, tools) in left {
            tools.close().await.unwrap();
        }
    }
}
