//! Finish tools.
//!
//! A run ends when one of them succeeds; its parameters are the run's result.

use std::marker::PhantomData;

use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{Sandbox, SandboxExt as _, SandboxPath, reserved_name};
use cantle_core::tool::{
    DynTool, Tool, ToolContext, ToolError, ToolOutput, ToolProperties, ToolSpec,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum number of reserved names in one refusal.
const MAX_NAMED: usize = 20;

/// The finish tool of an agent that works on files: `finish {reason, paths}`.
///
/// It fails if something in `paths` [stands for no file](cantle_core::sandbox::SandboxExt::matching_files), or a file has
/// a [reserved name](reserved_name), so that a run does not end with missing results.
/// Without a sandbox the paths are not checked.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a unit")]
pub struct Finish;

/// The reason for finishing, and the result files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct FinishParams {
    /// Your final answer to the user, complete on its own: results, caveats, or why it could not be done.
    pub reason: String,
    /// Files to deliver to the user, relative to the working directory. A directory stands for all its files; patterns
    /// such as `charts/*.png` work.
    #[serde(default)]
    pub paths: Vec<String>,
}

impl Tool for Finish {
    type Params = FinishParams;

    fn name(&self) -> &str {
        "finish"
    }

    fn description(&self) -> &str {
        "Ends the task and delivers the answer. Call it once, alone in its turn, when the task is done and \
         checked, or can't be done."
    }

    fn properties(&self) -> ToolProperties {
        ToolProperties {
            accepts_text: true,
            repeatable: true,
            ..ToolProperties::default()
        }
    }

    async fn call(&self, params: FinishParams, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let refused = refusal(&params.paths, cx.sandbox.as_deref()).await?;
        let output = refused.unwrap_or_else(|| ToolOutput::text(params.reason));
        Ok(output.with_metadata(Metadata::uses(1)))
    }
}

/// Returns the refusal of a finish call whose paths can't all be delivered. Without a sandbox they are not checked.
async fn refusal(
    paths: &[String],
    sandbox: Option<&dyn Sandbox>,
) -> Result<Option<ToolOutput>, ToolError> {
    let Some(sandbox) = sandbox else {
        return Ok(None);
    };
    let matched = sandbox.matching_files(paths).await?;
    let missing = matched.refused.iter();
    let missing: Vec<_> = missing
        .map(|it| format!("`{}` ({})", it.source, it.reason))
        .collect();
    if !missing.is_empty() {
        return Ok(Some(ToolOutput::failure(format!(
            "Not finished, because these can't be delivered: {}. Write what is missing, correct the \
             paths, and finish again.",
            missing.join(", ")
        ))));
    }
    let files = matched.files.iter();
    let reserved = files.filter(|file| is_reserved(sandbox, file));
    let reserved: Vec<_> = reserved
        .take(MAX_NAMED)
        .map(|file| format!("`{file}`"))
        .collect();
    let is_refused = !reserved.is_empty();
    Ok(is_refused.then(|| {
        ToolOutput::failure(format!(
            "Not finished, because files of these names can't be delivered: {}. Programs on the user's \
             machine read such files. Copy them to other names, say in the reason what they are, and finish \
             again.",
            reserved.join(", ")
        ))
    }))
}

/// Returns whether a path below the working directory has a reserved name.
fn is_reserved(sandbox: &dyn Sandbox, path: &str) -> bool {
    let Ok(path) = SandboxPath::new(path) else {
        return false;
    };
    let below = path.strip_prefix(&sandbox.info().working_directory);
    reserved_name(&below.unwrap_or(path).to_string()).is_some()
}

/// A finish tool with custom parameters, which are the run's structured result.
///
/// The texts of a list `paths` are files to deliver: as those of [`Finish`], they are checked in the session's sandbox.
///
/// ```
/// use cantle_core::tool::DynTool;
/// use cantle_tools::FinishWith;
///
/// /// The answer.
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Answer {
///     /// How many lines there are.
///     lines: u64,
/// }
///
/// let finish = DynTool::from(FinishWith::<Answer>::new("answer", "Gives the answer."));
/// assert!(finish.parse(r#"{"lines": "many"}"#).is_err());
/// ```
#[derive(Debug)]
pub struct FinishWith<T> {
    name: String,
    description: String,
    params: PhantomData<fn() -> T>,
}

impl<T> FinishWith<T> {
    /// Creates a finish tool with this name and description for the model.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            params: PhantomData,
        }
    }
}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> From<FinishWith<T>> for DynTool {
    fn from(tool: FinishWith<T>) -> Self {
        let typed = Self::from_fn(tool.name, tool.description, |_: T, _| async {
            Ok(ToolOutput::text(""))
        });
        Self::from_schema(typed.spec().clone(), move |params, cx| {
            let typed = typed.clone();
            async move {
                // Checks what only the type knows.
                typed.call(params.clone(), cx.clone()).await?;
                finish(&params, &cx).await
            }
        })
    }
}

/// Creates a finish tool whose parameters are described by a JSON schema of an object.
///
/// Arguments are validated as by [`DynTool::from_schema`]. The texts of a list `paths` are files to deliver: as those of
/// [`Finish`], they are checked in the session's sandbox.
pub fn finish_schema(
    name: impl Into<String>,
    description: impl Into<String>,
    schema: Value,
) -> DynTool {
    let spec = ToolSpec::new(name, description, schema);
    DynTool::from_schema(spec, |params, cx| async move { finish(&params, &cx).await })
}

/// Finishes, unless the parameters have a list `paths` that can't be delivered as a whole.
async fn finish(params: &Value, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
    let paths = params.get("paths").and_then(Value::as_array);
    let paths = paths.into_iter().flatten().filter_map(Value::as_str);
    let paths: Vec<_> = paths.map(str::to_owned).collect();
    let refused = refusal(&paths, cx.sandbox.as_deref()).await?;
    let output = refused.unwrap_or_else(|| ToolOutput::text("Finished."));
    Ok(output.with_metadata(Metadata::uses(1)))
}
