//! The arguments of `cantle exec`.

use std::ffi::OsString;
use std::time::Duration;

use super::help::EXEC_HELP;
use crate::publish::PublishArg;
use crate::settings::{Given, SandboxSettings, parse_duration};
use crate::variables::VariableArgs;

/// Run one command in a new sandbox, and exit with its code
#[derive(Debug, clap::Args)]
#[command(after_help = EXEC_HELP)]
pub(crate) struct ExecArgs {
    /// Maximum duration, such as 300, 90s, 5m or 1h [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// Allocate a terminal for the command, as interactive programs need
    #[arg(long, short)]
    pub(crate) tty: bool,

    /// Forward TCP connections from a port of this machine to the same port of the sandbox; can be repeated [default ADDR: 127.0.0.1]
    #[arg(long, value_name = "[ADDR:]PORT")]
    pub(crate) publish: Vec<PublishArg>,

    /// Report to standard error how the sandbox is isolated
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// The program and its arguments; no shell interprets them
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) sandbox: Given<SandboxSettings>,

    #[command(flatten)]
    pub(crate) variables: VariableArgs,
}
