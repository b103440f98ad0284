//! The manifest: the tools in the words of the orchestrator.

use cantle_core::tool::DynTool;
use serde_json::{Value, json};

use super::ToolService;

pub(super) fn of(service: &ToolService) -> Value {
    let tools = service.tools.iter().map(|tool| {
        json!({
            "name": format!("{}.{}", service.module, tool.name()),
            "description": tool.spec().description(),
            "parameters": parameters(tool),
            "required_permission": tool.properties().level,
        })
    });
    json!({
        "module_name": service.module,
        "description": service.description,
        "tools": tools.collect::<Vec<_>>(),
    })
}

fn parameters(tool: &DynTool) -> Vec<Value> {
    let schema = tool.spec().parameters();
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|it| it.iter().any(|it| it == name));
    let properties = schema.get("properties").and_then(Value::as_object);
    let parameters = properties.into_iter().flatten().map(|(name, schema)| {
        let mut parameter = json!({
            "name": name,
            "type": type_of(schema),
            "description": schema.get("description").cloned().unwrap_or_default(),
            "required": is_required(name),
        });
        if let (Some(values), Some(fields)) = (schema.get("enum"), parameter.as_object_mut()) {
            fields.insert("enum".to_owned(), values.clone());
        }
        parameter
    });
    parameters.collect()
}

/// The type of a parameter, without `null`, which optional ones may be.
fn type_of(schema: &Value) -> &str {
    let types = match schema.get("type") {
        Some(Value::Array(types)) => types.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    let mut names = types.iter().filter_map(Value::as_str);
    names.find(|name| *name != "null").unwrap_or("object")
}
