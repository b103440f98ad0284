//! What a [`ToolProvider`] and the tool sets it opens must do.
//!
//! The suite opens and closes the provider many times. It calls tools only with arguments they
//! must refuse.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::sandbox::{SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest};
use cantle_core::tool::{DynTool, OpenContext, ToolContext, ToolErrorKind, ToolProvider, ToolSet};
use futures_util::future::poll_fn;
use serde_json::{Map, Value, json};

use super::check::{Checked, Failure, ensure, equal, refused, within};
use super::report::Report;
use super::suite::{self, Case};

/// For opening and closing, which may start a program or look for one on a network.
const OPENING: Duration = Duration::from_secs(30);

/// Longer than a name may be in any dialect.
const NAME_CHARS: usize = 64;

/// Runs every case against `provider`, one after another.
///
/// A provider of tools that need a sandbox is opened without one: it must open all the same, and
/// its tools say what is missing when they are called.
pub async fn tool_provider(provider: &dyn ToolProvider) -> Report {
    suite::run(&Harness(provider), cases(), &[]).await
}

struct Harness<'p>(&'p dyn ToolProvider);

macro_rules! case {
    ($name:ident) => {
        Case::new(stringify!($name), |harness: &Harness<'_>| {
            Box::pin($name(harness.0))
        })
        // What one breaks for good must not be found by others at the same time.
        .alone()
        .deadline(3 * OPENING)
    };
}

fn cases<'p>() -> Vec<Case<Harness<'p>>> {
    vec![
        case!(it_opens_and_closes),
        case!(tool_names_are_valid_and_unique),
        case!(tools_are_described),
        case!(parameters_are_schemas_of_objects),
        case!(tools_are_the_same_each_time),
        case!(arguments_that_are_wrong_are_refused),
        case!(two_tool_sets_are_independent),
        case!(it_opens_again_after_close),
        case!(it_opens_again_after_opening_was_given_up),
        case!(a_cancelled_opening_ends),
        case!(a_sandbox_is_there_exactly_where_it_is_promised),
    ]
}

async fn open(provider: &dyn ToolProvider) -> Checked<Box<dyn ToolSet>> {
    let opening = provider.open(OpenContext::new(RunId::new()));
    Ok(within("the end of `open`", OPENING, opening).await??)
}

async fn close(set: Box<dyn ToolSet>) -> Checked {
    Ok(within("the end of `close`", OPENING, set.close()).await??)
}

/// Opens, checks and closes; what the check finds is the more telling failure.
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
                "`{name}` is no name for a tool: 1 to {NAME_CHARS} of a-z A-Z 0-9 _ -"
            );
            ensure!(names.insert(name), "two tools are named `{name}`");
        }
        Ok(())
    })
    .await
}

async fn tools_are_described(provider: &dyn ToolProvider) -> Checked {
    with_tools(provider, async |tools| {
        let silent = tools
            .iter()
            .find(|tool| tool.spec().description().trim().is_empty());
        equal(
            "a tool without a description",
            silent.map(DynTool::name),
            None,
        )
    })
    .await
}

async fn parameters_are_schemas_of_objects(provider: &dyn ToolProvider) -> Checked {
    with_tools(provider, async |tools| {
        for tool in tools {
            let (name, schema) = (tool.name(), tool.spec().parameters());
            ensure!(
                schema.get("type") == Some(&json!("object")),
                "the parameters of `{name}` are no object: {schema}"
            );
            let properties = properties(tool);
            for required in required(tool) {
                ensure!(
                    properties.contains_key(required),
                    "`{name}` requires `{required}`, which it doesn't describe"
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
    let mut seen = Vec::new();
    for _ in 0..2 {
        let set = open(provider).await?;
        // The order too: a request is cached by its first bytes, and they hold the tools.
        let specs: Vec<_> = set.tools().iter().map(|tool| tool.spec().clone()).collect();
        seen.push(specs);
        close(set).await?;
    }
    equal("the tools, opened again", seen.pop(), seen.pop())
}

async fn arguments_that_are_wrong_are_refused(provider: &dyn ToolProvider) -> Checked {
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

/// Arguments that can't be right, in a model's words.
fn wrong_arguments(tool: &DynTool) -> Vec<(String, String)> {
    let mut wrong: Vec<(String, String)> = ["{\"a\":", "[]", "5", "\"text\"", "yes"]
        .map(|text| ("no object".to_owned(), text.to_owned()))
        .into();
    let properties = properties(tool);
    let mut right = Map::new();
    for name in required(tool) {
        let schema = properties.get(name).unwrap_or(&Value::Null);
        right.insert(name.to_owned(), plausible(schema));
    }
    for name in required(tool) {
        let mut arguments = right.clone();
        arguments.remove(name);
        let text = Value::Object(arguments).to_string();
        wrong.push((format!("no `{name}`"), text));
    }
    for (name, schema) in &properties {
        if let Some(value) = implausible(schema) {
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

/// Something of the right type.
fn plausible(schema: &Value) -> Value {
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

/// Something of a type that is not allowed, which no repair makes one that is; `None` where the
/// schema allows anything.
fn implausible(schema: &Value) -> Option<Value> {
    const LIMITS: [&str; 6] = ["type", "enum", "const", "anyOf", "oneOf", "allOf"];
    let is_limited = |schema: &Value| LIMITS.iter().any(|keyword| schema.get(keyword).is_some());
    if !is_limited(schema) {
        return None;
    }
    if allows(schema, "array") {
        // One value is taken for a list of one.
        let items = &schema["items"];
        let may_be = allows(schema, "boolean") || !is_limited(items) || allows(items, "boolean");
        return (!may_be).then_some(Value::Bool(true));
    }
    Some(json!([[{"no": "such thing"}]]))
}

/// As an agent does it: what `parse` lets through, the tool itself must refuse.
async fn must_refuse(tool: &DynTool, what: &str, arguments: &str) -> Checked {
    let name = tool.name();
    let said = match tool.parse(arguments) {
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
    ensure!(!said.is_empty(), "`{name}` refused {what} without a word");
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
        set.tools()
            .iter()
            .map(|tool| tool.name().to_owned())
            .collect()
    };
    let before = names(&*two);
    let apart = share_no_files(&*one, &*two).await;
    close(one).await?;
    let after = names(&*two);
    let works = match two.sandbox() {
        Some(sandbox) => sandbox.run(SpawnRequest::shell("true")).await.map(drop),
        None => Ok(()),
    };
    close(two).await?;
    apart?;
    equal("the tools of one set when another is closed", after, before)?;
    Ok(works?)
}

/// A file in the sandbox of one is no file in the sandbox of the other.
async fn share_no_files(one: &dyn ToolSet, two: &dyn ToolSet) -> Checked {
    let (Some(one), Some(two)) = (one.sandbox(), two.sandbox()) else {
        return Ok(());
    };
    let file = SandboxPath::new("conformance")?;
    one.write_bytes(&file, "one".into()).await?;
    let found = two.stat(&file).await;
    refused(
        "`stat` of another set's file",
        found,
        &[SandboxErrorKind::NotFound],
    )
}

async fn it_opens_again_after_close(provider: &dyn ToolProvider) -> Checked {
    for _ in 0..3 {
        close(open(provider).await?).await?;
    }
    Ok(())
}

async fn it_opens_again_after_opening_was_given_up(provider: &dyn ToolProvider) -> Checked {
    // As far as it gets at once, a little further each time.
    for polls in 1..=3 {
        let mut opening = pin!(provider.open(OpenContext::new(RunId::new())));
        let mut opened = None;
        for _ in 0..polls {
            if opened.is_none() {
                opened = poll_fn(|cx| {
                    Poll::Ready(match opening.as_mut().poll(cx) {
                        Poll::Ready(opened) => Some(opened),
                        Poll::Pending => None,
                    })
                })
                .await;
                tokio::task::yield_now().await;
            }
        }
        if let Some(set) = opened {
            close(set?).await?;
        }
    }
    close(open(provider).await?).await
}

async fn a_cancelled_opening_ends(provider: &dyn ToolProvider) -> Checked {
    let cx = OpenContext::new(RunId::new());
    cx.cancellation.cancel();
    // It may be refused, or be too quick to notice.
    let opening = within("the end of a cancelled `open`", OPENING, provider.open(cx));
    if let Ok(set) = opening.await? {
        close(set).await?;
    }
    close(open(provider).await?).await
}

async fn a_sandbox_is_there_exactly_where_it_is_promised(provider: &dyn ToolProvider) -> Checked {
    let set = open(provider).await?;
    let there = set.sandbox().is_some();
    close(set).await?;
    equal(
        "whether there is a sandbox",
        there,
        provider.provides_sandbox(),
    )
}
