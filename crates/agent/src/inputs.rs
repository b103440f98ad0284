//! Input files: from paths on the host to files in the sandbox.
//!
//! A file keeps its name. A directory keeps its name with its contents; with a trailing `/` (or as
//! `.`), only its contents are copied. A pattern (`*`, `?`, `[…]`, `**`) stands for the files that it
//! matches, each under its path below the literal part of the pattern.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use cantle_core::sandbox::{HostTree, Sandbox, SandboxExt as _, SandboxPath};
use globset::GlobBuilder;
use walkdir::WalkDir;

use crate::error::{SessionError, SessionErrorKind};

/// A file or directory to copy, and its target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Input {
    from: PathBuf,
    to: SandboxPath,
    /// The files below `from` that a pattern matches; `None` for everything.
    matches: Option<Vec<PathBuf>>,
}

/// Resolves paths and patterns. Reads directories, and therefore blocks.
pub(crate) fn resolve(inputs: &[PathBuf]) -> Result<Vec<Input>, SessionError> {
    let mut resolved = Vec::new();
    for input in inputs {
        if is_pattern(input) && !input.exists() {
            resolved.push(matches(input)?);
        } else {
            resolved.push(plain(input)?);
        }
    }
    let mut targets: HashMap<SandboxPath, PathBuf> = HashMap::new();
    for (from, to) in resolved.iter().flat_map(Input::targets) {
        if let Some(other) = targets.insert(to.clone(), from.clone())
            && other != from
        {
            return Err(error(format!(
                "the inputs `{}` and `{}` would both be `{to}` in the sandbox; give one of them another name, or put both in one directory",
                other.display(),
                from.display(),
            )));
        }
    }
    Ok(resolved)
}

impl Input {
    /// Returns the named files and directories with their targets.
    fn targets(&self) -> Vec<(PathBuf, SandboxPath)> {
        match &self.matches {
            None if self.to.is_base() => Vec::new(),
            None => vec![(self.from.clone(), self.to.clone())],
            Some(files) => {
                let target = |file: &PathBuf| {
                    let to = self.to.join(file.as_os_str().as_encoded_bytes()).ok()?;
                    Some((self.from.join(file), to))
                };
                files.iter().filter_map(target).collect()
            }
        }
    }

    /// Returns what is to be copied.
    fn tree(&self) -> HostTree {
        let tree = HostTree::new(&self.from);
        let Some(files) = &self.matches else {
            return tree;
        };
        let files = files.iter().flat_map(|file| file.ancestors());
        let wanted: HashSet<PathBuf> = files.map(Path::to_owned).collect();
        tree.with_filter(move |path, _| wanted.contains(path))
    }
}

fn error(message: String) -> SessionError {
    SessionError::new(SessionErrorKind::Input, message)
}

fn plain(input: &Path) -> Result<Input, SessionError> {
    let unreadable = |cause: std::io::Error| {
        error(format!(
            "the input `{}` can't be read: {cause}",
            input.display()
        ))
        .with_source(cause)
    };
    let metadata = std::fs::metadata(input).map_err(unreadable)?;
    let bytes = input.as_os_str().as_encoded_bytes();
    let contents_only = metadata.is_dir()
        && (bytes.ends_with(b"/") || input.components().all(|part| part == Component::CurDir));
    let to = if contents_only {
        SandboxPath::working_directory()
    } else {
        // Paths such as `..` have no file name.
        let real;
        let name = match input.file_name() {
            Some(name) => name,
            None => {
                real = input.canonicalize().map_err(unreadable)?;
                real.file_name().unwrap_or_default()
            }
        };
        SandboxPath::from_os(name).map_err(|cause| error(cause.to_string()))?
    };
    Ok(Input {
        from: input.to_owned(),
        to,
        matches: None,
    })
}

fn is_pattern(input: &Path) -> bool {
    input
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b"*?[".contains(byte))
}

fn matches(pattern: &Path) -> Result<Input, SessionError> {
    let mut base: PathBuf = pattern
        .components()
        .take_while(|part| !is_pattern(Path::new(part.as_os_str())))
        .collect();
    let below = pattern.strip_prefix(&base).unwrap_or(pattern);
    let glob = below
        .to_str()
        .ok_or_else(|| error("a pattern must be UTF-8".to_owned()))?;
    let glob = GlobBuilder::new(glob)
        .literal_separator(true)
        .build()
        .map_err(|cause| {
            error(format!(
                "`{}` is not a valid pattern: {cause}",
                pattern.display()
            ))
        })?;
    // Without `**`, a pattern has as many components as the paths that it matches.
    let deep = glob.glob().contains("**");
    let matcher = glob.compile_matcher();
    if base.as_os_str().is_empty() {
        base.push(".");
    }
    let depth = if deep {
        usize::MAX
    } else {
        below.components().count()
    };
    let mut found = Vec::new();
    for entry in WalkDir::new(&base).min_depth(1).max_depth(depth) {
        let entry = match entry {
            Ok(entry) => entry,
            // Only the directory in which the pattern starts must be readable.
            Err(cause) if cause.depth() > 0 => continue,
            Err(cause) => {
                let cause = cause
                    .into_io_error()
                    .unwrap_or_else(|| ErrorKind::Other.into());
                let message = format!("`{}` can't be read: {cause}", base.display());
                return Err(error(message).with_source(cause));
            }
        };
        let path = entry.path();
        let Ok(relative) = path.strip_prefix(&base) else {
            continue;
        };
        if matcher.is_match(relative) && path.is_file() {
            found.push(relative.to_owned());
        }
    }
    if found.is_empty() {
        return Err(error(format!(
            "the pattern `{}` matches no file",
            pattern.display()
        )));
    }
    Ok(Input {
        from: base,
        to: SandboxPath::working_directory(),
        matches: Some(found),
    })
}

/// Copies the inputs into a sandbox. Returns the paths of the files there, and a warning for each
/// file that was skipped.
pub(crate) async fn upload(
    inputs: &[Input],
    sandbox: &dyn Sandbox,
) -> Result<(Vec<String>, Vec<String>), SessionError> {
    let mut files = Vec::new();
    let mut warnings = Vec::new();
    for input in inputs {
        let uploaded = sandbox
            .upload_tree(input.tree(), &input.to)
            .await
            .map_err(|cause| {
                let message = format!(
                    "failed to copy `{}` into the sandbox: {cause}",
                    input.from.display()
                );
                SessionError::new(SessionErrorKind::Input, message).with_source(cause)
            })?;
        files.extend(uploaded.files.iter().map(|file| file.to.to_string()));
        warnings.extend(uploaded.refused.iter().map(|refusal| {
            format!(
                "input `{}` was passed over: {}",
                refusal.source, refusal.reason
            )
        }));
    }
    files.sort();
    files.dedup();
    Ok((files, warnings))
}
