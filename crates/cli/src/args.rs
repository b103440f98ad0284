//! The command line: subcommands, flags and help texts.
//!
//! Flags that can also be set in `cantle.toml` are declared in [`crate::settings`].

mod chat;
mod exec;
mod files;
mod help;
mod runs;
mod serve;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser as _};

pub(crate) use self::chat::ChatArgs;
pub(crate) use self::exec::ExecArgs;
pub(crate) use self::files::{FilesCommand, StoredFilesArgs};
use self::help::{DEMO_HELP, DOCTOR_HELP};
pub(crate) use self::runs::{ApplyArgs, RunFilter, RunsCommand, TranscriptFormat};
pub(crate) use self::serve::{Preparation, ServeArgs, ServedToolsArgs, TemplateArg};
use crate::delivery::StoreArgs;
use crate::environment::variable;
use crate::mcp::McpArgs;
use crate::settings::{
    BudgetArgs, Given, KeepSettings, PolicySettings, PythonSettings, Settings, parse_duration,
};
use crate::variables::VariableArgs;

/// Settings of a run that can't change when it is resumed.
const FIXED_BY_RESUME: &[&str] = &[
    "tools",
    "search",
    "package",
    "package_host",
    "refresh_packages",
    "profile",
];

/// Runs language-model agents that work by executing code in sandboxes
#[derive(Debug, clap::Parser)]
#[command(
    name = "cantle",
    version,
    after_help = "\
Start here:
  cantle demo                       a complete run on the files here, without a model
  cantle chat                       a conversation about the files here
  cantle run --help                 how to choose a model, and all options of a run
  cantle exec -- wc -l /etc/passwd  one command in a sandbox
  cantle runs list                  kept runs, and which can be resumed
  cantle serve                      sandboxes for E2B's SDKs
  cantle config                     every setting, and where it comes from
  cantle doctor                     which sandbox policies this machine can enforce"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    Chat(Box<ChatArgs>),
    Exec(ExecArgs),
    Python(PythonArgs),
    Demo(DemoArgs),
    Doctor(DoctorArgs),
    /// List, show, compare, export, apply, resume and remove kept runs
    #[command(subcommand)]
    Runs(RunsCommand),
    Files(StoredFilesArgs),
    Gc(GcArgs),
    Mcp(Box<McpArgs>),
    Serve(Box<ServeArgs>),
    Config(Box<ConfigArgs>),
    Trust(TrustArgs),
    /// Print a script that completes commands and flags in a shell
    ///
    /// bash: source <(cantle completions bash); zsh and fish: save it where they look for functions
    Completions {
        shell: clap_complete::Shell,
    },
    /// Write manual pages to a directory
    #[command(hide = true)]
    Man {
        directory: PathBuf,
    },
}

/// Print every setting, its value and where it comes from
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: Given<Settings>,
}

/// Trust a directory, so that its cantle.toml, AGENTS.md and mcp.json take effect
///
/// Without trust, settings can only lower limits, and set effort and temperature, and MCP servers are not started, because the
/// files may have come with a cloned repository. Prints the settings, servers and files that take effect from now on. A file
/// that changes has to be trusted again.
#[derive(Debug, clap::Args)]
pub(crate) struct TrustArgs {
    /// The directory [default: the current one]
    pub(crate) directory: Option<PathBuf>,

    /// Stop trusting the directory
    #[arg(long, conflicts_with = "list")]
    pub(crate) remove: bool,

    /// List the trusted directories
    #[arg(long, conflicts_with = "directory")]
    pub(crate) list: bool,
}

/// Remove what killed processes left behind
///
/// Removes directories, control groups and containers of this machine and this user that no process uses any more, except
/// those of runs that can be resumed. It also removes working directories of finished runs that are too old or too large
/// together, packages that were not used for 30 days, and output files that no store took for --keep-days.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// List what was removed
    #[arg(long, short)]
    pub(crate) verbose: bool,

    #[command(flatten)]
    pub(crate) settings: Given<KeepSettings>,
}

/// Run a task: a model works on it with commands in a sandbox and delivers files
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = help::of_run())]
pub(crate) struct RunArgs {
    /// The task, as one argument; `-` reads it from standard input
    #[arg(required_unless_present = "resume")]
    pub(crate) task: Option<String>,

    /// Further arguments, usually of an unquoted pattern; they are refused with advice.
    #[arg(hide = true)]
    pub(crate) more: Vec<String>,

    #[command(flatten)]
    pub(crate) settings: Given<Settings>,

    #[command(flatten)]
    pub(crate) variables: VariableArgs,

    /// Record model calls and tool results to a file for --replay; keys are removed
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "replay",
        help_heading = "Model"
    )]
    pub(crate) record: Option<PathBuf>,

    /// Replay a recording instead of calling a model: a file of --record, or turns as JSON lines
    ///
    /// Commands are executed, but the model receives the recorded results, and each request is compared
    /// with the recorded one. No key is needed.
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub(crate) replay: Option<PathBuf>,

    /// Image that is part of the task: PNG, JPEG, GIF, WebP or BMP; can be repeated
    ///
    /// The model sees it at once. Large images are scaled down; the model can view the files of --input in full.
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) image: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) inputs: InputArgs,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) workdir: WorkdirArgs,

    /// Directory for output files and cantle-result.json [default: cantle-out/RUN, made with the first file]
    ///
    /// Or a store: `files:`, the stored files, or s3://BUCKET/PREFIX or az://CONTAINER/PREFIX, where each run has a
    /// prefix of its own.
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub(crate) output_dir: Option<PathBuf>,

    /// Replace files of the output directory that no earlier run delivered
    ///
    /// Without it, such a file stays, and the new one is saved beside it as NAME.1.
    #[arg(long, help_heading = "Files")]
    pub(crate) overwrite: bool,

    /// JSON schema of an object: the run finishes with such an object, printed as JSON
    ///
    /// The files in its property `paths`, if there is one, are delivered as output files.
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) schema: Option<PathBuf>,

    /// Conversation to continue: JSON written by cantle or by Stirrup (0.1, 0.2)
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) history: Option<PathBuf>,

    /// Directory of skills, each in a subdirectory with a SKILL.md
    ///
    /// They are copied into the sandbox as `skills`; the model gets a list and reads those it needs.
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub(crate) skills: Option<PathBuf>,

    /// File of sub-agents, to which the model can delegate tasks
    ///
    /// A TOML table for each: under its name a `description` of what it can do, and settings that differ from
    /// those of the run, such as `model`, `system_prompt`, `tools` or `max_turns`. `share_sandbox = true` lets it
    /// work on the run's files, `background = true` while the run continues; `budget_tokens` and the like limit each call.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "replay"], help_heading = "Sandbox")]
    pub(crate) sub_agents: Option<PathBuf>,

    /// File of MCP servers whose tools the model can call: JSON with `mcpServers`
    ///
    /// Servers with a `command` are started on this machine, each in a sandbox of its own without network,
    /// unless its entry has `policy` or `"where": "host"`. Sub-agents don't have the tools. Without this flag, mcp.json of the
    /// current directory or of --workdir is used if `cantle trust` covers it.
    #[arg(long, value_name = "FILE", help_heading = "Sandbox")]
    pub(crate) mcp: Option<PathBuf>,

    /// Resume a run that did not finish: its id, a prefix of it, or `last`
    ///
    /// All settings are as they were, except those given by flags. Model, instructions, tools and policy must
    /// not change; limits, budgets and --output-dir may.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["task", "files", "image", "history", "skills", "sub_agents", "mcp"],
        help_heading = "Resuming")]
    pub(crate) resume: Option<String>,

    /// Give an earlier run another task: its id, a prefix of it, or `last`
    ///
    /// The model sees the conversation so far. Settings are as they were, except those given by flags. The run's sandbox
    /// is used again if it is kept; otherwise the delivered files are copied into a new one. With --workdir, a new copy of
    /// the directory is taken.
    #[arg(long = "continue", value_name = "RUN", conflicts_with_all = ["resume", "history", "record", "replay"],
        help_heading = "Resuming")]
    pub(crate) earlier: Option<String>,

    /// Use a new sandbox: with --resume if that of the run is gone, whose files are lost; with --continue in any case
    #[arg(long, help_heading = "Resuming")]
    pub(crate) fresh_sandbox: bool,

    /// Do not keep the run for resuming
    #[arg(long, env = "CANTLE_NO_KEEP", hide_env_values = true,
        value_parser = FalseyValueParser::new(), help_heading = "Resuming")]
    pub(crate) no_keep: bool,

    #[command(flatten)]
    pub(crate) budget: BudgetArgs,

    /// Which tool calls need approval at the terminal [default: never]
    ///
    /// `never`: none; `ask`: all but the finish call; or a TOML file of rules: `default = "allow"`, and in each
    /// `[[rule]]` a `tool`, `arguments` (patterns by name) and a `permission`: allow, deny or ask. The first
    /// matching rule applies. `ask` and rules that ask need a terminal.
    #[arg(long, value_name = "never|ask|RULES.toml", help_heading = "Sandbox")]
    pub(crate) approve: Option<String>,

    #[command(flatten)]
    pub(crate) display: DisplayArgs,

    /// Send spans to this OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318
    ///
    /// Without it, to the one that OTEL_EXPORTER_OTLP_ENDPOINT names. Messages, arguments and results are left out, unless
    /// OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is `true`.
    #[arg(long, value_name = "URL", help_heading = "Output")]
    pub(crate) otlp: Option<String>,
}

impl RunArgs {
    /// Returns an error if a flag sets what a resumed or continued run can't change. These are no conflicts of clap, which
    /// would also refuse variables: they don't apply to such a run, and `CANTLE_NO_KEEP=0` sets nothing.
    pub(crate) fn conflict(&self) -> Option<String> {
        let (argument, fixed) = match (&self.resume, &self.earlier) {
            (Some(_), _) => ("--resume", FIXED_BY_RESUME),
            (None, Some(_)) => ("--continue", &["profile"][..]),
            (None, None) => return None,
        };
        let mut fixed = fixed.iter().copied();
        let given = fixed.find(|name| self.settings.has_flag(name));
        let name = given.or(self.no_keep.then_some("no_keep"))?;
        let flag = name.replace('_', "-");
        Some(format!(
            "the argument '{argument} <RUN>' cannot be used with '--{flag}'"
        ))
    }
}

/// Files that a run gets.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Files")]
pub(crate) struct InputArgs {
    /// Input file, directory or quoted pattern; can be repeated
    ///
    /// Inputs are copied into the sandbox: `data` as `data/…`, `data/` as its content, and `'src/**/*.rs'`
    /// as the matching files, relative to `src`. Files that .gitignore excludes are left out. `files:ID` is a stored file.
    #[arg(long, value_name = "PATH", group = "files")]
    pub(crate) input: Vec<PathBuf>,

    /// Leave out input files that match a pattern, as in a .gitignore; can be repeated
    #[arg(long, value_name = "PATTERN", requires = "files")]
    pub(crate) exclude: Vec<String>,

    /// Copy input files that .gitignore excludes, too, and .git
    #[arg(long, requires = "files")]
    pub(crate) no_ignore: bool,

    /// Copy input files that look like secrets, such as .env and private keys
    ///
    /// Without it, they are left out of directories and patterns, and named.
    #[arg(long, requires = "files")]
    pub(crate) include_secrets: bool,

    /// Leave out AGENTS.md, the notes of a project for agents
    ///
    /// Otherwise the model gets that of the current directory, or of --workdir, as a message; if `cantle trust` covers
    /// it, as part of its instructions.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) no_agents_md: bool,
}

/// A directory to work on.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Files")]
pub(crate) struct WorkdirArgs {
    /// Directory to work on, in a copy: its changes are shown as a diff at the end, and applied if you agree
    ///
    /// The copy leaves out the files that --input would. A change is applied only if the file is as it was copied.
    /// Without a terminal, nothing is applied unless --apply is given; `cantle runs apply RUN` does it later.
    #[arg(long, value_name = "DIR", group = "files")]
    pub(crate) workdir: Option<PathBuf>,

    /// Work on the directory of --workdir itself, not on a copy: commands change it at once
    ///
    /// For the local backend with mount namespaces. What other programs load or execute, such as .git, .github and AGENTS.md,
    /// is read-only, and files that look like secrets are hidden. There is no diff to decide on, and limits of disk
    /// space don't apply in the directory.
    #[arg(long, requires = "workdir", conflicts_with_all = ["apply", "diff", "reject"])]
    pub(crate) in_place: bool,

    /// Apply the changes of --workdir without a question
    ///
    /// You are still asked about files that programs may load or execute, such as .github and AGENTS.md; without a terminal,
    /// they are left out.
    #[arg(long, conflicts_with = "reject")]
    pub(crate) apply: bool,

    /// Write the changes of --workdir to a file, as a patch for `git apply`
    #[arg(long, value_name = "FILE")]
    pub(crate) diff: Option<PathBuf>,

    /// Apply none of the changes of --workdir, and don't ask
    #[arg(long)]
    pub(crate) reject: bool,
}

/// How a run is displayed.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct DisplayArgs {
    /// Write every event to standard output as a line of JSON
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,

    /// Display only the result and errors
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Display commands and results in full, and the model's reasoning
    #[arg(long, short, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

/// Run a Python program in a new sandbox, and exit with its code
///
/// Its output is passed through. It has an empty working directory and no input, and uses the packages of the sandbox's
/// Python, or those of --package. Without FILE, at a terminal, lines are executed as they are entered, and variables are
/// kept. Exit codes are those of `cantle exec`; --check exits with 1 after a syntax error.
#[derive(Debug, clap::Args)]
pub(crate) struct PythonArgs {
    /// The program; `-` reads it from standard input
    pub(crate) file: Option<PathBuf>,

    /// Only check the syntax of the program
    #[arg(long)]
    pub(crate) check: bool,

    /// Python to use: a name or a path in the sandbox [default: python3]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) python: Option<String>,

    /// Maximum duration, such as 300, 90s, 5m or 1h [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// Report to standard error how the sandbox is isolated
    #[arg(long, short)]
    pub(crate) verbose: bool,

    #[command(flatten)]
    pub(crate) settings: Given<PythonSettings>,

    #[command(flatten)]
    pub(crate) variables: VariableArgs,
}

/// Survey a directory with a recorded model; everything but the model is real
#[derive(Debug, clap::Args)]
#[command(after_help = DEMO_HELP)]
pub(crate) struct DemoArgs {
    /// The directory
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,

    /// Directory for report.md and chart.svg
    #[arg(long, value_name = "DIR", default_value = "./cantle-demo")]
    pub(crate) output_dir: PathBuf,

    #[command(flatten)]
    pub(crate) policy: Given<PolicySettings>,

    #[command(flatten)]
    pub(crate) display: DisplayArgs,
}

/// Report which sandbox policies this machine can enforce, by opening sandboxes
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

// Without a doc comment, the description is that of `RunArgs`.
#[derive(Debug, clap::Parser)]
#[command(name = "cantle run", bin_name = "cantle run")]
pub(crate) struct RunCli {
    #[command(flatten)]
    pub(crate) args: Box<RunArgs>,
}

/// Parses the command line. Exits after `--help` and on errors.
pub(crate) fn parse() -> Command {
    let mut args = std::env::args_os().skip(1).peekable();
    // Building the other subcommands takes longer than parsing this one.
    if args.peek().is_some_and(|name| name == "run") {
        return run_command(args);
    }
    Cli::try_parse().unwrap_or_else(|error| exit(error)).command
}

/// Exits after `--help`, and with an error of the command line. One about the value of a variable names the variable.
fn exit(mut error: clap::Error) -> ! {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (arg, value) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
    );
    if let (Some(arg), Some(value)) = (arg, value)
        && let Some(name) = variable_with(&arg, &value)
    {
        let named = ContextValue::String(format!("{name} ({arg})"));
        error.insert(ContextKind::InvalidArg, named);
    }
    error.exit()
}

/// Returns the variable of an argument, such as `--max-turns <N>`, if it has this value and no argument does.
fn variable_with(arg: &str, value: &str) -> Option<String> {
    let flag = arg.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let flag = flag.replace('-', "_").to_uppercase();
    let mut line = std::env::args_os();
    if line.any(|given| given.to_string_lossy().contains(value)) {
        return None;
    }
    // `--listen` is a flag of `cantle serve` only.
    let mut names = ["CANTLE_", "CANTLE_SERVE_"]
        .map(|start| format!("{start}{flag}"))
        .into_iter();
    names.find(|name| variable(name).is_some_and(|set| set.contains(value)))
}

/// Returns the script that completes command lines in a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cantle", &mut script);
    script
}

/// Writes a manual page for each command.
pub(crate) fn write_manual(directory: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Cli::command(), directory)
}

/// Returns the command line `cantle run --resume RUN`.
pub(crate) fn resume_command(run: &str) -> Command {
    run_command(["run", "--resume", run])
}

fn run_command<A: Into<OsString> + Clone>(line: impl IntoIterator<Item = A>) -> Command {
    let args = RunCli::try_parse_from(line)
        .unwrap_or_else(|error| exit(error))
        .args;
    if let Some(conflict) = args.conflict() {
        let mut command = RunCli::command();
        command.error(ErrorKind::ArgumentConflict, conflict).exit();
    }
    Command::Run(args)
}

#[cfg(test)]
mod tests;
