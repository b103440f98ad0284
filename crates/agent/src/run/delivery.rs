//! The files of a run that has ended: those that its finish call names are saved, those that an answer in text leaves
//! behind are listed.

use std::collections::HashSet;
use std::time::Duration;

use cantle_core::event::{EventKind, Finish};
use cantle_core::sandbox::{
    FileKind, RefusedFile, Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SandboxPath,
    SavedOutputs,
};
use serde_json::Value;

use super::execute::RunLifecycle;
use crate::error::{RunError, RunErrorKind};
use crate::journal::DeliveredFiles;

const NO_TARGET: &str = "the caller has neither a sandbox nor an output directory to receive it";

/// Maximum number of undelivered files that are named.
const MAX_UNDELIVERED: usize = 20;

/// Maximum number of entries among which they are looked for.
const MAX_ENTRIES: usize = 100_000;

/// Deadline of looking for them.
const LIST_DEADLINE: Duration = Duration::from_secs(10);

impl RunLifecycle {
    /// Saves the files that a finish call names in its `paths`.
    pub(super) async fn save_outputs(&self, finish: &Finish) -> Result<SavedOutputs, RunError> {
        let paths = finish.params.get("paths").and_then(Value::as_array);
        let paths = paths.into_iter().flatten();
        let paths: Vec<String> = paths.filter_map(Value::as_str).map(str::to_owned).collect();
        let delivered = tokio::select! {
            delivered = self.deliver(&paths) => delivered,
            () = self.scope.cancellation.cancelled() => return Err(RunError::cancelled()),
        };
        let outputs = delivered.map_err(|error| {
            let kind = match error.kind() {
                SandboxErrorKind::Gone => RunErrorKind::SandboxGone,
                _ => RunErrorKind::Internal,
            };
            let message =
                format!("the task is finished, but its files could not be saved: {error}");
            RunError::new(kind, message)
        })?;
        for file in outputs.saved.iter().filter(|file| file.renamed) {
            let message = format!(
                "The name of the output file `{}` is taken, so it was saved as `{}`.",
                file.source,
                file.path.display()
            );
            self.scope.hub.emit(EventKind::Warning { message });
        }
        for event in DeliveredFiles::from(&outputs).events() {
            self.scope.hub.emit(event);
        }
        Ok(outputs)
    }

    /// Copies files to the output directory, or else to the sandbox of the calling run, unless that is the same.
    async fn deliver(&self, names: &[String]) -> Result<SavedOutputs, SandboxError> {
        let resources = &self.resources;
        let parent = resources.run_options.parent.as_ref();
        let parent = parent.filter(|parent| !parent.shares_sandbox);
        let parent_sandbox = parent.and_then(|parent| parent.sandbox.as_deref());
        let mut outputs = SavedOutputs::default();
        let Some(sandbox) = resources.sandbox.as_deref() else {
            return Ok(outputs);
        };
        if let Some(target) = &self.scope.outputs {
            let (files, refused) = named_files(sandbox, names).await?;
            let options = target.options.clone();
            outputs = sandbox.save_outputs(&files, &target.path, options).await?;
            outputs.refused.extend(refused);
        } else if let Some(parent_sandbox) = parent_sandbox {
            let (files, refused) = named_files(sandbox, names).await?;
            outputs = sandbox.copy_outputs_to(&files, parent_sandbox).await?;
            outputs.refused.extend(refused);
        } else if parent.is_some() {
            let refused = names.iter().map(|name| RefusedFile::new(name, NO_TARGET));
            outputs.refused = refused.collect();
        }
        Ok(outputs)
    }

    /// Lists files of the sandbox that a run without a finish call leaves behind, and warns of them.
    pub(super) async fn undelivered(&self) -> Vec<String> {
        let resources = &self.resources;
        let parent = resources.run_options.parent.as_ref();
        // The caller still has the files of a sandbox that it shares.
        let is_shared = parent.is_some_and(|parent| parent.shares_sandbox);
        let Some(sandbox) = resources.sandbox.as_ref().filter(|_| !is_shared) else {
            return Vec::new();
        };
        let base = SandboxPath::working_directory();
        let walk = tokio::time::timeout(LIST_DEADLINE, sandbox.walk(&base, MAX_ENTRIES)).await;
        let walk = walk.ok().and_then(Result::ok).unwrap_or_default();
        let given = resources.input_files.iter().chain(&resources.skill_files);
        let given: HashSet<&str> = given.map(String::as_str).collect();
        // Results and outputs that Cantle saved are below `.cantle`.
        let is_new =
            |file: &String| !file.starts_with(".cantle/") && !given.contains(file.as_str());
        let files = walk.entries.iter();
        let files = files.filter(|(_, entry)| entry.kind == FileKind::File);
        let files = files.map(|(path, _)| path.to_string());
        let mut files: Vec<_> = files.filter(is_new).collect();
        // Results are rarely deep.
        files.sort_by_key(|file| file.matches('/').count());
        files.truncate(MAX_UNDELIVERED);
        if !files.is_empty() {
            let message = format!(
                "The model answered in text and did not deliver these files: {}",
                files.join(", ")
            );
            self.scope.hub.emit(EventKind::Warning { message });
        }
        files
    }
}

/// Returns the files that these names stand for, and those that are refused. A name that stands for no file is one of
/// the files: it is refused, with the reason, where it is read.
async fn named_files(
    sandbox: &dyn Sandbox,
    names: &[String],
) -> Result<(Vec<String>, Vec<RefusedFile>), SandboxError> {
    let matched = sandbox.matching_files(names).await?;
    let refused = matched.refused.into_iter();
    let (named, refused): (Vec<_>, _) = refused.partition(|it| names.contains(&it.source));
    let named = named.into_iter().map(|it| it.source);
    Ok((matched.files.into_iter().chain(named).collect(), refused))
}
