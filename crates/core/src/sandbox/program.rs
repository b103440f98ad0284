//! The program to execute for a command: a shell, or a program looked up as `execvp` does.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use super::{SandboxError, SandboxErrorKind};

/// A program with its arguments and candidate paths in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Program {
    /// Paths to try in order. Empty only if the search path is.
    pub candidates: Vec<OsString>,
    /// The name as requested, which is also `argv[0]`.
    pub name: OsString,
    /// The arguments after the name.
    pub arguments: Vec<OsString>,
    /// The search path, unless the name has a slash.
    pub search_path: Option<OsString>,
}

impl Program {
    /// Creates the program for a command line of `shell`.
    pub fn shell(shell: &Path, line: &OsStr) -> Self {
        Self {
            candidates: vec![shell.into()],
            // Some shells choose their mode by `argv[0]`.
            name: shell.file_name().unwrap_or_default().into(),
            // `--` because a line may begin with a hyphen.
            arguments: vec!["-c".into(), "--".into(), line.into()],
            search_path: None,
        }
    }

    /// Creates a program from its arguments. A name without a slash is looked up in `search_path`.
    ///
    /// # Errors
    /// [`SandboxErrorKind::InvalidInput`] if the name is missing or empty.
    pub fn argv(argv: &[OsString], search_path: &OsStr) -> Result<Self, SandboxError> {
        let program = argv.split_first().filter(|(name, _)| !name.is_empty());
        let (name, arguments) = program.ok_or_else(|| {
            SandboxError::invalid_input("a command must begin with the name of a program")
        })?;
        let has_path = name.as_encoded_bytes().contains(&b'/');
        let candidates = if has_path {
            vec![name.clone()]
        } else {
            // An empty entry is the directory in which the command starts.
            std::env::split_paths(search_path)
                .map(|entry| Path::new(".").join(entry).join(name).into())
                .collect()
        };
        Ok(Self {
            candidates,
            name: name.clone(),
            arguments: arguments.to_vec(),
            search_path: (!has_path).then(|| search_path.to_owned()),
        })
    }

    /// Creates the error for a program that could not be executed.
    pub fn exec_error(&self, error: io::Error) -> SandboxError {
        let kind = error.kind();
        let name = self.name.to_string_lossy();
        if let (io::ErrorKind::NotFound, Some(search_path)) = (kind, &self.search_path) {
            let directories = search_path.to_string_lossy();
            let message = format!("there is no program `{name}` in {directories}");
            return SandboxError::new(SandboxErrorKind::NotFound, message)
                .with_advice("Give the program's path, or install it first.");
        }
        let error = SandboxError::io(format!("failed to start `{name}`"), error);
        match kind {
            io::ErrorKind::ArgumentListTooLong => error.with_advice(
                "Write long content to a file first and give the command the file's path.",
            ),
            io::ErrorKind::NotFound => error.with_advice(
                "Check the path. A script's first line (`#!`) must name a program that exists.",
            ),
            io::ErrorKind::PermissionDenied => error
                .with_advice("It must be a file that is executable (`chmod +x`), not a directory."),
            _ => error,
        }
    }
}
