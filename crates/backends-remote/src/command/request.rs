//! The request that starts a command: bash with the wrapper script.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use cantle_command_driver::check_environment;
use cantle_core::sandbox::{Background, Command, SandboxError, SpawnRequest, Stdin};
use serde_json::Value;

use super::FIND_SCRIPT;
use crate::quote::quote_all;
use crate::script::{Stdio, start_request};
use crate::shared::Shared;

const PREPARE: &str = include_str!("../scripts/prepare.bash");
const COMMAND: &str = include_str!("../scripts/command.bash");
const TERMINAL: &str = include_str!("../scripts/terminal.bash");

/// Builds the request that starts a command.
pub(super) fn build(
    shared: &Shared,
    request: &SpawnRequest,
    token: &str,
) -> Result<Value, SandboxError> {
    let keep = match request.background {
        Background::Keep => "keep",
        Background::Kill => "",
    };
    let directory = shared.absolute_path(&request.directory);
    let mut command = vec![directory.as_slice()];
    let argv = argv(&request.command)?;
    command.extend(argv.into_iter().map(OsStr::as_encoded_bytes));
    if command.iter().any(|argument| argument.contains(&0)) {
        return Err(invalid("a command can't hold a NUL byte"));
    }
    let texts: Result<Vec<&str>, _> = command.iter().copied().map(str::from_utf8).collect();
    let quoted;
    let (encoding, command) = match texts {
        Ok(texts) => ("plain", texts),
        Err(_) => {
            quoted = quote_all(command);
            ("quoted", vec![&*quoted])
        }
    };
    let fixed = [token, keep, &shared.home, &shared.limits.ulimits, encoding];
    let body = if request.pty.is_some() {
        TERMINAL
    } else {
        COMMAND
    };
    let script = [FIND_SCRIPT, PREPARE, body].concat();
    let environment = environment(shared, request)?;
    let arguments = fixed.into_iter().chain(command);
    let stdio = match request.pty {
        Some(size) => Stdio::Terminal(size),
        None => Stdio::Pipes {
            has_input: has_input(&request.stdin),
        },
    };
    Ok(start_request(&script, arguments, &environment, stdio))
}

/// Whether a command has input.
pub(super) fn has_input(stdin: &Stdin) -> bool {
    match stdin {
        Stdin::Null => false,
        Stdin::Bytes(bytes) => !bytes.is_empty(),
        _ => true,
    }
}

fn argv(command: &Command) -> Result<Vec<&OsStr>, SandboxError> {
    match command {
        // The command line may begin with a hyphen.
        Command::Shell(line) => {
            let shell = ["bash", "-c", "--"].map(OsStr::new);
            Ok(shell.into_iter().chain([line.as_os_str()]).collect())
        }
        Command::Argv(argv) if argv.first().is_none_or(|name| name.is_empty()) => {
            Err(invalid("a command must begin with the name of a program"))
        }
        Command::Argv(argv) => Ok(argv.iter().map(OsString::as_os_str).collect()),
    }
}

/// Merges the variables of the policy and the request, which has precedence.
fn environment<'v>(
    shared: &'v Shared,
    request: &'v SpawnRequest,
) -> Result<BTreeMap<&'v str, &'v str>, SandboxError> {
    check_environment(&request.environment)?;
    let terminal = request.pty.map(|_| ("TERM", "xterm-256color"));
    let variables = shared.environment.iter().chain(&request.environment);
    let variables = variables.map(|(name, value)| (name.as_str(), value.expose()));
    Ok(terminal.into_iter().chain(variables).collect())
}

fn invalid(message: &str) -> SandboxError {
    SandboxError::invalid_input(message)
}
