//! Suite for a [`ToolProvider`] and the tool sets it opens.
//!
//! It opens and closes the provider many times, and calls tools only with invalid arguments.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::sandbox::{SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest};
use cantle_core::tool::{DynTool, OpenContext, ToolContext, ToolErrorKind, ToolProvider, ToolSet};
use futures_util::FutureExt as _;
use serde_json::{Map, Value, json};

use super::check::{Checked, Failure, ensure, equal, refused, within};
use super::report::Report;
use super::suite::{self, cases};

/// Limit for opening and closing, which may start a program or connect to a server.
const OPENING: Duration = Duration::from_secs(30);

/// Maximum length of a tool name, shared by all dialects.
const NAME_CHARS: usize = 64;

/// Runs every case against `provider`, one after another.
///
/// Providers whose tools need a sandbox are opened without one. Opening must succeed; the tools
/// report the missing sandbox when called.
pub async fn tool_provider(provider: &dyn ToolProvider) -> Report {
    // A case that breaks the provider permanently must not affect concurrent cases.
    let cases = cases()
        .into_iter()
        .map(|case| case.alone().deadline(3 * OPENING));
    suite::run(&ProviderHarness(provider), cases.collect(), &[]).await
}

pub(super) struct ProviderHarness<'p>(&'p dyn ToolProvider);

impl ProviderHarness<'_> {
    pub(super) async fn check(
        &self,
        check: impl AsyncFnOnce(&dyn ToolProvider) -> Checked,
    ) -> Checked {
        check(self.0).await
    }
}

cases! { cases for ProviderHarness:
    it_opens_and_closes,
    tool_names_are_valid_and_unique,
    tools_are_described,
    parameters_are_schemas_of_objects,
    tools_are_the_same_each_time,
    wrong_arguments_are_refused,
    two_tool_sets_are_independent,
    it_opens_again_after_close,
    it_opens_again_after_a_dropped_open,
    a_cancelled_open_ends,
    a_sandbox_exists_exactly_if_declared,
}

async fn open(provider: &dyn ToolProvider) -> Checked<Box<dyn ToolSet>> {
    let opening = provider.open(OpenContext::new(RunId::new()));
    Ok(within("the end of `open`", OPENING, opening).await??)
}

async fn close(set: Box<dyn ToolSet>) -> Checked {
    Ok(within("the end of `close`", OPENING, set.close()).await??)
}

/// Opens, checks and closes a tool set. The check's failure takes precedence.
async fn with_tools(
    provider: &dyn ToolProvider,
    check: impl AsyncFnOnce(&[DynTool]) -> Checked,
) -> Checked {
    let set = open(provider).await?;
    let checked = check(&set.tools()).await;
    let closed = close(set).await;
    checked.and(closed)
}

async fn it_opens_and_closes(provider: &dyn ToolProvider) -> Checked {
    ensure!(!provider.name().is_empty(), "the provider has no name");
    close(open(provider).await?).await
}

async fn tool_names_are_valid_and_unique(provider: &dyn ToolProvider) -> Checked {
    with_tools(provider, async |tools| {
        let mut names = BTreeSet::new();
        for name in tools.iter().map(DynTool::name) {
            let valid = |it: u8| it.is_ascii_alphanumeric() || it == b'_' || it == b'-';
            ensure!(
                (1..=NAME_CHARS).contains(&name.len()) && name.bytes().all(valid),
                "`{name}` is not a valid tool name: 1 to {NAME_CHARS} of a-z A-Z 0-9 _ -"
            );
            ensure!(names.insert(name), "two tools are named `{name}`");
        }
        Ok(())
    })
    .await
}

async fn tools_are_described(provider: &dyn ToolProvider) -> Checked {
    with_tools(provider, async |tools| {
        let is_empty = |tool: &&DynTool| tool.spec().description().trim().is_empty();
        let undescribed = tools.iter().find(is_empty).map(DynTool::name);
        equal("a tool without a description", undescribed, None)
    })
    .await
}

async fn parameters_are_schemas_of_objects(provider: &dyn ToolProvider) -> Checked {
    with_tools(provider, async |tools| {
        for tool in tools {
            let (name, schema) = (tool.name(), tool.spec().parameters());
            ensure!(
                schema.get("type") == Some(&json!("object")),
                "the parameters of `{name}` are not an object: {schema}"
            );
            let properties = properties(tool);
            for required in required(tool) {
                ensure!(
                    properties.contains_key(required),
                    "`{name}` requires `{required}`, which has no schema"
                );
            }
        }
        Ok(())
    })
    .await
}

fn properties(tool: &DynTool) -> Map<String, Value> {
    let properties = tool.spec().parameters().get("properties");
    properties
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

fn required(tool: &DynTool) -> impl Iterator<Item = &str> {
    let required = tool.spec().parameters().get("required");
    let required = required.and_then(Value::as_array).into_iter().flatten();
    required.filter_map(Value::as_str)
}

async fn tools_are_the_same_each_time(provider: &dyn ToolProvider) -> Checked {
    let mut spec_lists = Vec::new();
    for _ in 0..2 {
        let set = open(provider).await?;
        // The order matters: prompt caches match request prefixes, which contain the tools.
        let specs: Vec<_> = set.tools().iter().map(|tool| tool.spec().clone()).collect();
        spec_lists.push(specs);
        close(set).await?;
    }
    let [first, again] = [spec_lists.pop(), spec_lists.pop()];
    equal("the tools, opened again", first, again)
}

async fn wrong_arguments_are_refused(provider: &dyn ToolProvider) -> Checked {
    with_tools(provider, async |tools| {
        for tool in tools {
            for (what, arguments) in wrong_arguments(tool) {
                must_refuse(tool, &what, &arguments).await?;
            }
        }
        Ok(())
    })
    .await
}

/// Returns descriptions and JSON texts of invalid arguments.
fn wrong_arguments(tool: &DynTool) -> Vec<(String, String)> {
    let mut wrong: Vec<(String, String)> = ["{\"a\":", "[]", "5", "\"text\"", "yes"]
        .map(|text| ("a non-object".to_owned(), text.to_owned()))
        .into();
    let properties = properties(tool);
    let mut right = Map::new();
    for name in required(tool) {
        let schema = properties.get(name).unwrap_or(&Value::Null);
        right.insert(name.to_owned(), valid_value(schema));
    }
    for name in required(tool) {
        let mut arguments = right.clone();
        arguments.remove(name);
        let text = Value::Object(arguments).to_string();
        wrong.push((format!("no `{name}`"), text));
    }
    for (name, schema) in &properties {
        if let Some(value) = invalid_value(schema) {
            let mut arguments = right.clone();
            arguments.insert(name.clone(), value);
            let text = Value::Object(arguments).to_string();
            wrong.push((format!("a wrong type for `{name}`"), text));
        }
    }
    wrong
}

fn allows(schema: &Value, name: &str) -> bool {
    match &schema["type"] {
        Value::String(one) => one == name,
        Value::Array(several) => several.iter().any(|it| it == name),
        _ => false,
    }
}

/// Returns a value of the right type.
fn valid_value(schema: &Value) -> Value {
    let values = [
        ("string", json!("text")),
        ("integer", json!(1)),
        ("number", json!(1)),
        ("boolean", json!(true)),
        ("array", json!([])),
        ("object", json!({})),
    ];
    let mut fitting = values.into_iter().filter(|(name, _)| allows(schema, name));
    fitting.next().map_or(Value::Null, |(_, value)| value)
}

/// Returns a value of a wrong type that argument repair can't correct; `None` if the schema allows
/// anything.
fn invalid_value(schema: &Value) -> Option<Value> {
    const LIMITS: [&str; 6] = ["type", "enum", "const", "anyOf", "oneOf", "allOf"];
    let is_limited = |schema: &Value| LIMITS.iter().any(|keyword| schema.get(keyword).is_some());
    if !is_limited(schema) {
        return None;
    }
    if allows(schema, "array") {
        // Argument repair turns a single value into a list.
        let items = &schema["items"];
        let repairable =
            allows(schema, "boolean") || !is_limited(items) || allows(items, "boolean");
        return (!repairable).then_some(Value::Bool(true));
    }
    Some(json!([[{"no": "such thing"}]]))
}

/// Calls the tool as an agent does: either `parse` or the tool must refuse the arguments.
async fn must_refuse(tool: &DynTool, what: &str, arguments: &str) -> Checked {
    let name = tool.name();
    let message = match tool.parse(arguments) {
        Err(error) => error.to_string(),
        Ok(parsed) => {
            let cx = ToolContext::new(RunId::new(), "call");
            match tool.call(parsed.arguments, cx).await {
                Err(error) if error.kind() == ToolErrorKind::InvalidArguments => error.to_string(),
                Err(error) => {
                    return Err(Failure::new(format!(
                        "`{name}` with {what} failed with {:?} ({error}); expected {:?}",
                        error.kind(),
                        ToolErrorKind::InvalidArguments
                    )));
                }
                Ok(_) => return Err(Failure::new(format!("`{name}` ran with {what}"))),
            }
        }
    };
    ensure!(
        !message.is_empty(),
        "`{name}` refused {what} without a message"
    );
    Ok(())
}

async fn two_tool_sets_are_independent(provider: &dyn ToolProvider) -> Checked {
    let one = open(provider).await?;
    let two = match open(provider).await {
        Ok(two) => two,
        Err(failure) => {
            close(one).await?;
            return Err(failure);
        }
    };
    let names = |set: &dyn ToolSet| -> Vec<String> {
        let tools = set.tools();
        tools.iter().map(|tool| tool.name().to_owned()).collect()
    };
    let before = names(&*two);
    let isolation = share_no_files(&*one, &*two).await;
    close(one).await?;
    let after = names(&*two);
    let works = match two.sandbox() {
        Some(sandbox) => sandbox.run(SpawnRequest::shell("true")).await.map(drop),
        None => Ok(()),
    };
    close(two).await?;
    isolation?;
    equal("the tools of one set when another is closed", after, before)?;
    Ok(works?)
}

/// Checks that a file in one set's sandbox is missing in the other's.
async fn share_no_files(one: &dyn ToolSet, two: &dyn ToolSet) -> Checked {
    let (Some(one), Some(two)) = (one.sandbox(), two.sandbox()) else {
        return Ok(());
    };
    let file = SandboxPath::new("conformance")?;
    one.write_bytes(&file, "one".into()).await?;
    let found = two.stat(&file).await;
    let kinds = [SandboxErrorKind::NotFound];
    refused("`stat` of another set's file", found, &kinds)
}

async fn it_opens_again_after_close(provider: &dyn ToolProvider) -> Checked {
    for _ in 0..3 {
        close(open(provider).await?).await?;
    }
    Ok(())
}

async fn it_opens_again_after_a_dropped_open(provider: &dyn ToolProvider) -> Checked {
    // Drops the future after one, two and three polls.
    for polls in 1..=3 {
        let mut opening = pin!(provider.open(OpenContext::new(RunId::new())));
        let mut opened = None;
        for _ in 0..polls {
            if opened.is_none() {
                opened = opening.as_mut().now_or_never();
                tokio::task::yield_now().await;
            }
        }
        if let Some(set) = opened {
            close(set?).await?;
        }
    }
    close(open(provider).await?).await
}

async fn a_cancelled_open_ends(provider: &dyn ToolProvider) -> Checked {
    let cx = OpenContext::new(RunId::new());
    cx.cancellation.cancel();
    // `open` may fail or succeed before noticing the cancellation.
    let opening = within("the end of a cancelled `open`", OPENING, provider.open(cx));
    if let Ok(set) = opening.await? {
        close(set).await?;
    }
    close(open(provider).await?).await
}

async fn a_sandbox_exists_exactly_if_declared(provider: &dyn ToolProvider) -> Checked {
    let set = open(provider).await?;
    let has_sandbox = set.sandbox().is_some();
    close(set).await?;
    let is_declared = provider.provides_sandbox();
    equal("whether there is a sandbox", has_sandbox, is_declared)
}
