//! The process started in the sandbox for a command: bash with the wrapper script.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use cantle_command_driver::check_environment;
use cantle_core::sandbox::{
    Background, Command, SandboxError, SandboxErrorKind, SpawnRequest, Stdin,
};

use crate::envd::{ProcessConfig, Pty, Size, Start};
use crate::quote::quote_all;
use crate::sandbox::Shared;

/// The path of bash, on which E2B's own clients rely as well.
pub(crate) const BASH: &str = "/bin/bash";

/// Option of bash that ignores startup files and functions in the environment.
pub(crate) const PRIVILEGED: &str = "-p";

const FIND: &str = include_str!("../scripts/find.bash");
const PREPARE: &str = include_str!("../scripts/prepare.bash");
const COMMAND: &str = include_str!("../scripts/command.bash");
const TERMINAL: &str = include_str!("../scripts/terminal.bash");

/// A command's wrapper script, arguments and variables.
#[derive(Debug)]
pub(super) struct Line {
    script: String,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    pub(super) pty: Option<Pty>,
    stdin: Option<bool>,
}

impl Line {
    pub(super) fn new(
        shared: &Shared,
        request: &SpawnRequest,
        token: &str,
    ) -> Result<Self, SandboxError> {
        let keep = match request.background {
            Background::Keep => "keep",
            Background::Kill => "",
        };
        let mut arguments: Vec<String> = [token, keep, &shared.home, &shared.limits.ulimits]
            .map(str::to_owned)
            .into();
        let directory = shared.absolute_path(&request.directory);
        let mut command = vec![directory.as_slice()];
        let argv = argv(&request.command)?;
        command.extend(argv.iter().map(|argument| argument.as_encoded_bytes()));
        if command.iter().any(|argument| argument.contains(&0)) {
            return Err(invalid("a command can't hold a NUL byte"));
        }
        let texts: Result<Vec<&str>, _> = command
            .iter()
            .map(|argument| std::str::from_utf8(argument))
            .collect();
        match texts {
            Ok(texts) => {
                arguments.push("plain".to_owned());
                arguments.extend(texts.into_iter().map(str::to_owned));
            }
            Err(_) => arguments.extend(["quoted".to_owned(), quote_all(command)]),
        }
        let body = if request.pty.is_some() {
            TERMINAL
        } else {
            COMMAND
        };
        Ok(Self {
            script: [FIND, PREPARE, body].concat(),
            arguments,
            environment: environment(shared, request)?,
            pty: request.pty.map(|size| Pty {
                size: Size {
                    cols: size.columns,
                    rows: size.rows,
                },
            }),
            stdin: match &request.stdin {
                // A terminal always has input.
                _ if request.pty.is_some() => None,
                Stdin::Null => Some(false),
                Stdin::Bytes(bytes) => Some(!bytes.is_empty()),
                _ => Some(true),
            },
        })
    }

    pub(super) fn start(&self) -> Start<'_> {
        let fixed = [PRIVILEGED, "-c", &self.script, "cantle"];
        let arguments = self.arguments.iter().map(String::as_str);
        let environment = self.environment.iter();
        Start {
            process: ProcessConfig {
                cmd: BASH,
                args: fixed
                    .into_iter()
                    .chain(arguments)
                    .map(Cow::Borrowed)
                    .collect(),
                envs: environment
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect(),
                cwd: None,
            },
            pty: self.pty,
            stdin: self.stdin,
        }
    }
}

fn argv(command: &Command) -> Result<Vec<Cow<'_, OsStr>>, SandboxError> {
    let text = |text: &'static str| Cow::Borrowed(OsStr::new(text));
    match command {
        // The command line may begin with a hyphen.
        Command::Shell(line) => Ok(vec![
            text("bash"),
            text("-c"),
            text("--"),
            Cow::Borrowed(line.as_os_str()),
        ]),
        Command::Argv(argv) if argv.first().is_none_or(|name| name.is_empty()) => {
            Err(invalid("a command must begin with the name of a program"))
        }
        Command::Argv(argv) => Ok(argv
            .iter()
            .map(OsString::as_os_str)
            .map(Cow::Borrowed)
            .collect()),
    }
}

/// Merges the variables of the policy and the request, which has precedence.
fn environment(
    shared: &Shared,
    request: &SpawnRequest,
) -> Result<BTreeMap<String, String>, SandboxError> {
    check_environment(&request.environment)?;
    let mut variables = BTreeMap::new();
    if request.pty.is_some() {
        variables.insert("TERM".to_owned(), "xterm-256color".to_owned());
    }
    for (name, value) in shared.environment.iter().chain(&request.environment) {
        variables.insert(name.clone(), value.expose().to_owned());
    }
    Ok(variables)
}

fn invalid(message: &str) -> SandboxError {
    SandboxError::new(SandboxErrorKind::InvalidInput, message)
}
