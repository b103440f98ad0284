//! Input files: from paths on the host to files in the sandbox.
//!
//! A file keeps its name. A directory keeps its name with its contents; with a trailing `/` (or as
//! `.`), only its contents are copied. A pattern (`*`, `?`, `[…]`, `**`) stands for the files that it
//! matches, each under its path below the literal part of the pattern. [`InputOptions`] decides which files
//! of directories and patterns are left out.

mod entries;
mod ignore_rules;

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use cantle_core::escape::join_up_to;
use cantle_core::sandbox::{HostTree, Sandbox, SandboxExt as _, SandboxPath};
use globset::GlobBuilder;

use self::entries::list;
pub use self::entries::{InputEntries, InputOptions};
pub use self::ignore_rules::IgnoreRules;
use crate::error::{SessionError, SessionErrorKind};

/// Maximum number of files that a warning names.
const MAX_NAMED: usize = 10;

/// A file or directory to copy, and its target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Input {
    from: PathBuf,
    to: SandboxPath,
    /// The files below `from` that a pattern matches.
    matches: Option<Vec<PathBuf>>,
    /// The entries below `from` that are copied; `None` for a file.
    entries: Option<HashSet<PathBuf>>,
    /// Files that were left out because they look like secrets.
    secrets: Vec<PathBuf>,
}

/// Resolves paths and patterns. Reads directories, and therefore blocks.
pub(crate) fn resolve(
    inputs: &[PathBuf],
    options: &InputOptions,
) -> Result<Vec<Input>, SessionError> {
    let mut resolved = Vec::new();
    for input in inputs {
        if is_pattern(input) && !input.exists() {
            resolved.push(matches(input, options)?);
        } else {
            resolved.push(plain(input, options)?);
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
        match self.entries.clone() {
            Some(entries) => tree.with_filter(move |path, _| entries.contains(path)),
            None => tree,
        }
    }

    /// Returns a warning that names the files that look like secrets.
    fn secrets_warning(&self) -> Option<String> {
        if self.secrets.is_empty() {
            return None;
        }
        let from = self.from.display();
        let named = join_up_to(MAX_NAMED, self.secrets.iter().map(|path| path.display()));
        Some(format!(
            "input `{from}`: left out files that look like secrets: {named} (--include-secrets, \
             `InputOptions::include_secrets`)"
        ))
    }
}

fn error(message: String) -> SessionError {
    SessionError::new(SessionErrorKind::Input, message)
}

fn plain(input: &Path, options: &InputOptions) -> Result<Input, SessionError> {
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
    let (entries, secrets) = if metadata.is_dir() {
        let InputEntries { paths, secrets } = list(input, None, options)?;
        let entries = paths.into_iter().map(|(path, _)| path).collect();
        (Some(entries), secrets)
    } else {
        (None, Vec::new())
    };
    Ok(Input {
        from: input.to_owned(),
        to,
        matches: None,
        entries,
        secrets,
    })
}

fn is_pattern(input: &Path) -> bool {
    input
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b"*?[".contains(byte))
}

fn matches(pattern: &Path, options: &InputOptions) -> Result<Input, SessionError> {
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
    let depth = (!deep).then(|| below.components().count());
    let InputEntries { paths, secrets } = list(&base, depth, options)?;
    let is_match = |path: &PathBuf| matcher.is_match(path);
    let is_file = |path: &PathBuf| base.join(path).is_file();
    let files = paths.into_iter().filter(|(_, is_directory)| !is_directory);
    let found: Vec<_> = files
        .map(|(path, _)| path)
        .filter(|path| is_match(path) && is_file(path))
        .collect();
    let secrets: Vec<_> = secrets.into_iter().filter(is_match).collect();
    if found.is_empty() {
        let left_out = match &*secrets {
            [] => "",
            _ => " except some that look like secrets",
        };
        return Err(error(format!(
            "the pattern `{}` matches no file{left_out}",
            pattern.display()
        )));
    }
    let ancestors = found.iter().flat_map(|file| file.ancestors());
    let entries = ancestors.map(Path::to_owned).collect();
    Ok(Input {
        from: base,
        to: SandboxPath::working_directory(),
        matches: Some(found),
        entries: Some(entries),
        secrets,
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
        warnings.extend(input.secrets_warning());
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
