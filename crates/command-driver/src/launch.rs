//! Start of a command: program, directory and environment, resolved against the sandbox.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use cantle_core::sandbox::{
    Command, Program, SandboxError, SandboxErrorKind, SandboxPath, SpawnRequest,
};
use cantle_core::secret::SecretText;

/// A command as it is executed.
#[non_exhaustive]
pub struct Launch {
    /// The program and its arguments.
    pub program: Program,
    /// The directory in which it starts; absolute, as seen inside the sandbox.
    pub directory: SandboxPath,
    /// Its whole environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// The request's, as an absolute path; set by the backend.
    pub read_only_except: Option<SandboxPath>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        let names: Vec<_> = self.environment.keys().collect();
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("directory", &self.directory)
            .field("environment", &names)
            .finish()
    }
}

impl Launch {
    /// Resolves a request in a sandbox: `directory` is the request's as an absolute path, `environment`
    /// has the variables of every command, and `shell` runs command lines.
    ///
    /// # Errors
    /// `InvalidInput` if a variable's name or the command is invalid, `NotFound` if there is no shell for
    /// a command line.
    pub fn new(
        request: &SpawnRequest,
        directory: SandboxPath,
        mut environment: BTreeMap<OsString, OsString>,
        shell: Option<&OsStr>,
    ) -> Result<Self, SandboxError> {
        check_environment(&request.environment)?;
        environment
            .entry("PWD".into())
            .or_insert_with(|| os_path(&directory));
        if request.pty.is_some() {
            environment.insert("TERM".into(), "xterm-256color".into());
        }
        for (name, value) in &request.environment {
            environment.insert(name.into(), value.expose().into());
        }
        let search_path = environment.get(OsStr::new("PATH"));
        let search_path = search_path.map(OsString::as_os_str).unwrap_or_default();
        let program = match &request.command {
            Command::Argv(argv) => Program::argv(argv, search_path)?,
            Command::Shell(line) => {
                let shell = shell.ok_or_else(|| {
                    let message = "the sandbox has no shell";
                    SandboxError::new(SandboxErrorKind::NotFound, message)
                        .with_advice("Give a program and its arguments instead of a command line.")
                })?;
                Program::shell(Path::new(shell), line)
            }
        };
        Ok(Self {
            program,
            directory,
            environment,
            read_only_except: None,
        })
    }

    /// The directory as a path.
    pub fn directory_path(&self) -> OsString {
        os_path(&self.directory)
    }

    /// The directory as the kernel takes it.
    ///
    /// # Errors
    /// `InvalidInput` if it contains a NUL byte.
    pub fn directory_c_string(&self) -> Result<CString, SandboxError> {
        c_string(&self.directory_path())
    }

    /// The directory that a read-only command may change, as the kernel takes it.
    ///
    /// # Errors
    /// `InvalidInput` if it contains a NUL byte.
    pub fn read_only_except_c_string(&self) -> Result<Option<CString>, SandboxError> {
        let directory = self.read_only_except.as_ref();
        directory.map(|path| c_string(&os_path(path))).transpose()
    }

    /// The candidates for the program, then its name and its arguments, as the kernel takes them.
    ///
    /// # Errors
    /// `InvalidInput` if one contains a NUL byte.
    pub fn words(&self) -> Result<Vec<CString>, SandboxError> {
        let program = &self.program;
        let words = program.candidates.iter().chain([&program.name]);
        words
            .chain(&program.arguments)
            .map(|word| c_string(word))
            .collect()
    }

    /// The environment as `NAME=value`, as the kernel takes it.
    ///
    /// # Errors
    /// `InvalidInput` if a value contains a NUL byte.
    pub fn variables(&self) -> Result<Vec<CString>, SandboxError> {
        let variables = self.environment.iter().map(|(name, value)| {
            let mut variable = name.clone();
            variable.push("=");
            variable.push(value);
            c_string(&variable)
        });
        variables.collect()
    }
}

/// Checks the names and values of variables.
///
/// # Errors
/// `InvalidInput` if a name is empty or contains `=` or NUL, or a value contains NUL.
pub fn check_environment(variables: &BTreeMap<String, SecretText>) -> Result<(), SandboxError> {
    for (name, value) in variables {
        let message = if name.is_empty() || name.contains(['=', '\0']) {
            format!("`{}` can't be the name of a variable", name.escape_debug())
        } else if value.expose().contains('\0') {
            format!("the value of the variable `{name}` contains a NUL byte")
        } else {
            continue;
        };
        return Err(SandboxError::invalid_input(message));
    }
    Ok(())
}

/// Returns an absolute path as the kernel takes it, which need not be text.
#[must_use]
pub fn os_path(path: &SandboxPath) -> OsString {
    OsString::from_vec([b"/", path.relative_bytes()].concat())
}

/// Returns a text as the kernel takes it.
///
/// # Errors
/// `InvalidInput` if it contains a NUL byte.
pub fn c_string(text: &OsStr) -> Result<CString, SandboxError> {
    CString::new(text.as_bytes()).map_err(|_| {
        let message = "a command, its directory and its variables must be without NUL";
        SandboxError::invalid_input(message)
    })
}
