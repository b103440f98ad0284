//! What of a request is executed: a shell with a command line, or a program by its name or path, looked
//! for as `execvp` does.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use super::{SandboxError, SandboxErrorKind};

/// A program with its arguments, and where it may be inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Program {
    /// Where it may be; the first that can be executed is taken. Never empty, unless the search path is.
    pub candidates: Vec<OsString>,
    /// As it was asked for, and as it is told its own name.
    pub name: OsString,
    /// What follows its name.
    pub arguments: Vec<OsString>,
    /// Where it was looked for, unless it was given with its path.
    pub search_path: Option<OsString>,
}

impl Program {
    /// A command line for this shell.
    #[must_use]
    pub fn shell(shell: &Path, line: &OsStr) -> Self {
        Self {
            candidates: vec![shell.into()],
            // Some shells are told by it what to be.
            name: shell.file_name().unwrap_or_default().into(),
            // A line may begin with a hyphen.
            arguments: vec!["-c".into(), "--".into(), line.into()],
            search_path: None,
        }
    }

    /// A program and its arguments; one without a slash in its name is looked for in the directories of
    /// `search_path`.
    ///
    /// # Errors
    /// [`SandboxErrorKind::InvalidInput`] where there is no name.
    pub fn argv(argv: &[OsString], search_path: &OsStr) -> Result<Self, SandboxError> {
        let (name, arguments) = match argv.split_first() {
            Some((name, arguments)) if !name.is_empty() => (name, arguments),
            _ => {
                let message = "a command must begin with the name of a program";
                return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
            }
        };
        let has_path = name.as_encoded_bytes().contains(&b'/');
        let candidates = if has_path {
            vec![name.clone()]
        } else {
            // An empty entry is the directory that the command starts in.
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

    /// What is said where it could not be executed.
    #[must_use]
    pub fn not_executed(&self, error: io::Error) -> SandboxError {
        let kind = error.kind();
        let name = self.name.to_string_lossy();
        if let (io::ErrorKind::NotFound, Some(search_path)) = (kind, &self.search_path) {
            let places = search_path.to_string_lossy();
            let message = format!("there is no program `{name}` in {places}");
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
            io::ErrorKind::PermissionDenied => {
                error.with_advice("Make it executable first (`chmod +x`).")
            }
            _ => error,
        }
    }
}
