//! What is started in the sandbox for a command: bash with the script that looks after it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use cantle_core::sandbox::{
    Background, Command, SandboxError, SandboxErrorKind, SpawnRequest, Stdin,
};

use crate::envd::{ProcessConfig, Pty, Size, Start};
use crate::quote::quote_all;
use crate::sandbox::Shared;

/// Where bash is in every image that E2B's own clients work with.
pub(crate) const BASH: &str = "/bin/bash";

/// Without the files and functions that its environment names.
pub(crate) const PRIVILEGED: &str = "-p";

const FIND: &str = include_str!("../scripts/find.bash");
const PREPARE: &str = include_str!("../scripts/prepare.bash");
const COMMAND: &str = include_str!("../scripts/command.bash");
const TERMINAL: &str = include_str!("../scripts/terminal.bash");

/// A command as it is sent.
#[derive(Debug)]
pub(super) struct Line {
    script: String,
    words: Vec<String>,
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
        let mut words: Vec<String> = [token, keep, &shared.home, &shared.limits.words]
            .map(str::to_owned)
            .into();
        let directory = shared.place(&request.directory);
        let mut own = vec![directory.as_slice()];
        let argv = argv(&request.command)?;
        own.extend(argv.iter().map(|argument| argument.as_encoded_bytes()));
        if own.iter().any(|word| word.contains(&0)) {
            return Err(invalid("a command can't hold a NUL byte"));
        }
        let texts: Result<Vec<&str>, _> =
            own.iter().map(|word| std::str::from_utf8(word)).collect();
        match texts {
            Ok(texts) => {
                words.push("plain".to_owned());
                words.extend(texts.into_iter().map(str::to_owned));
            }
            Err(_) => words.extend(["quoted".to_owned(), quote_all(own)]),
        }
        let body = if request.pty.is_some() {
            TERMINAL
        } else {
            COMMAND
        };
        Ok(Self {
            script: [FIND, PREPARE, body].concat(),
            words,
            environment: environment(shared, request)?,
            pty: request.pty.map(|size| Pty {
                size: Size {
                    cols: size.columns,
                    rows: size.rows,
                },
            }),
            stdin: match &request.stdin {
                // A terminal has its input anyway.
                _ if request.pty.is_some() => None,
                Stdin::Null => Some(false),
                Stdin::Bytes(bytes) => Some(!bytes.is_empty()),
                _ => Some(true),
            },
        })
    }

    pub(super) fn start(&self) -> Start<'_> {
        let fixed = [PRIVILEGED, "-c", &self.script, "cantle"];
        let words = self.words.iter().map(String::as_str);
        let environment = self.environment.iter();
        Start {
            process: ProcessConfig {
                cmd: BASH,
                args: fixed.into_iter().chain(words).map(Cow::Borrowed).collect(),
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
        // A line may begin with a hyphen.
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

/// The variables of the policy, and those of the request over them.
fn environment(
    shared: &Shared,
    request: &SpawnRequest,
) -> Result<BTreeMap<String, String>, SandboxError> {
    let mut variables = BTreeMap::new();
    if request.pty.is_some() {
        variables.insert("TERM".to_owned(), "xterm-256color".to_owned());
    }
    for (name, value) in shared.environment.iter().chain(&request.environment) {
        check_variable(name, value.expose())?;
        variables.insert(name.clone(), value.expose().to_owned());
    }
    Ok(variables)
}

pub(crate) fn check_variable(name: &str, value: &str) -> Result<(), SandboxError> {
    if name.is_empty() || name.contains(['=', '\0']) {
        let name = name.escape_debug();
        return Err(invalid(&format!(
            "`{name}` can't be the name of a variable"
        )));
    }
    if value.contains('\0') {
        return Err(invalid(&format!("the variable `{name}` holds a NUL byte")));
    }
    Ok(())
}

fn invalid(message: &str) -> SandboxError {
    SandboxError::new(SandboxErrorKind::InvalidInput, message)
}
