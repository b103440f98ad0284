//! The command line: its subcommands, flags and help. Nothing is decided here that needs a file or
//! the network; what flags, environment and files add up to is in [`crate::settings`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cantle::core::policy::{HostPattern, Preset};
use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::place::Place;
use crate::policy::Limit;
use crate::provider::{Api, Provider};
use crate::serve::ServeArgs;
use crate::serving::ServingArgs;

/// Runs language-model agents that do their work by executing code.
#[derive(Debug, Parser)]
#[command(
    name = "cantle",
    version,
    after_help = "\
Start here:
  cantle demo                       a whole run over the files here, without any model
  cantle run --help                 what to set for a model, and what a run can be told
  cantle exec -- wc -l /etc/passwd  one command in a sandbox
  cantle runs list                  what ran, and what can be resumed
  cantle serve                      sandboxes for E2B's SDKs
  cantle doctor                     what a sandbox can be kept from on this machine"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    Exec(ExecArgs),
    Demo(DemoArgs),
    Doctor(DoctorArgs),
    /// Shows, resumes and removes runs that are kept
    #[command(subcommand)]
    Runs(RunsCommand),
    Gc(GcArgs),
    Serve(Box<ServeArgs>),
}

/// What can be done with kept runs. A run is named by its id, the beginning of one, or `last`.
#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// Lists the kept runs, the latest first
    List {
        /// Write them as a JSON list
        #[arg(long)]
        json: bool,
    },
    /// Says how a run stands
    Show {
        /// The run
        run: String,
        /// Write it as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Goes on with a run that did not finish: the same as `cantle run --resume RUN`
    Resume {
        /// The run
        run: String,
    },
    /// Removes runs: what they said, and the files they left
    Rm {
        /// The runs
        #[arg(required_unless_present = "finished")]
        runs: Vec<String>,
        /// Remove all that finished
        #[arg(long)]
        finished: bool,
    },
}

/// Removes what sandboxes left behind whose programs were killed.
///
/// Directories and control groups that nobody uses any more, of this machine and this user; never what
/// a run needs that can be resumed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Name what was removed
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// Does a task: a model works on it with commands in a sandbox, and hands over files.
#[derive(Debug, clap::Args)]
#[command(after_long_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// What to do, in words and as one argument; `-` reads it from standard input
    #[arg(required_unless_present = "resume")]
    pub(crate) task: Option<String>,

    /// What else stands there: mostly the rest of a pattern that a shell expanded
    #[arg(hide = true)]
    pub(crate) more: Vec<String>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// A file, directory or quoted pattern to work on; repeat it for more
    ///
    /// It is copied into the sandbox: `data` comes as `data/…`, `data/` as what is in it, and
    /// `'src/**/*.rs'` as the files it matches, below `src`.
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub(crate) input: Vec<PathBuf>,

    /// Where the files that the model hands over go, and then cantle-result.json
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub(crate) output_dir: Option<PathBuf>,

    /// A JSON schema of an object: the run finishes with such an object, printed as JSON
    ///
    /// Where it has a property `paths`, the files named there are handed over.
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) schema: Option<PathBuf>,

    /// A conversation to go on from: JSON as cantle or Stirrup (0.1, 0.2) write it
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) history: Option<PathBuf>,

    /// Go on with a run that did not finish: its id, the beginning of one, or `last`
    ///
    /// Everything is as it was when it began, but for what is said here. Model, instructions, tools and
    /// policy must be the same; limits, budgets and --output-dir may be others.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["task", "input", "history", "skills", "no_keep"],
        help_heading = "Keeping")]
    pub(crate) resume: Option<String>,

    /// Go on in a new sandbox where the run's own is gone; its files are lost
    #[arg(long, requires = "resume", help_heading = "Keeping")]
    pub(crate) fresh_sandbox: bool,

    /// Keep nothing to resume it from
    #[arg(long, env = "CANTLE_NO_KEEP", hide_env_values = true,
        value_parser = FalseyValueParser::new(), help_heading = "Keeping")]
    pub(crate) no_keep: bool,

    /// A directory of skills, each in a directory of its own with a SKILL.md
    ///
    /// They are copied into the sandbox as `skills`; the model is told which there are, and reads what
    /// it needs.
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub(crate) skills: Option<PathBuf>,

    /// Instructions for the model on top of the general ones; `@FILE` reads them from a file
    #[arg(
        long,
        value_name = "TEXT|@FILE",
        env = "CANTLE_SYSTEM_PROMPT",
        hide_env_values = true
    )]
    pub(crate) system_prompt: Option<String>,

    /// Turns (model calls with their commands) that the run may take [default: 30]
    #[arg(long, value_name = "N", env = "CANTLE_MAX_TURNS", hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub(crate) max_turns: Option<u32>,

    /// How long one command may take, such as 300, 90s, 5m or 1h [default: 300]
    #[arg(long, value_name = "TIME", env = "CANTLE_TIMEOUT", hide_env_values = true,
        value_parser = parse_duration, help_heading = "Limits")]
    pub(crate) timeout: Option<Duration>,

    /// US dollars that the run may cost, by what the provider says or the given prices come to
    #[arg(long, value_name = "USD", value_parser = parse_dollars, help_heading = "Limits")]
    pub(crate) budget_usd: Option<f64>,

    /// Tokens that the run may read and write
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Limits")]
    pub(crate) budget_tokens: Option<u64>,

    /// How long the run may take, such as 90s, 30m or 2h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limits")]
    pub(crate) budget_time: Option<Duration>,

    /// Tool calls that the run may make
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Limits")]
    pub(crate) budget_calls: Option<u64>,

    /// Which tool calls somebody at the terminal is asked about [default: never]
    ///
    /// `never`: none; `ask`: all but the last; or a TOML file with rules: `default = "allow"`, and
    /// for each `[[rule]]` a `tool`, `arguments` (patterns by name) and a `permission`: allow, deny
    /// or ask. The first rule that matches decides. Without a terminal, what would be asked is denied.
    #[arg(long, value_name = "never|ask|RULES.toml", help_heading = "Sandbox")]
    pub(crate) approve: Option<String>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    #[command(flatten)]
    pub(crate) display: DisplayArgs,

    /// What was said by a flag, and not by the environment or by default.
    #[arg(skip)]
    pub(crate) by_flag: Vec<String>,
}

/// Where commands run.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct PlaceArgs {
    /// Where commands run [default: local]
    ///
    /// `local`: on this machine, behind walls that its kernel keeps; `docker:IMAGE`, `dockerfile:PATH`:
    /// in a container of an image, or of what a Dockerfile makes; `container:ID`: in one that runs
    /// already; `remote` or `remote:TEMPLATE`: in a sandbox of an E2B-style service, whose key is in
    /// E2B_API_KEY and whose addresses may be in E2B_API_URL and E2B_SANDBOX_URL.
    #[arg(
        long,
        value_name = "WHERE",
        env = "CANTLE_BACKEND",
        hide_env_values = true
    )]
    pub(crate) backend: Option<Place>,
}

/// What commands may do.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct PolicyArgs {
    /// What commands may do [default: workspace]
    ///
    /// `workspace`: read the system's programs, write the working directory, no network; `network`: the
    /// same and the hosts of --allow-host; `read_only`: look and change nothing; `unconfined`: all
    /// that you can do.
    #[arg(long, value_name = "NAME", env = "CANTLE_POLICY", hide_env_values = true,
        value_parser = preset_parser())]
    pub(crate) policy: Option<Preset>,

    /// A host that commands may reach, such as pypi.org or '*.debian.org'; repeat it for more
    #[arg(
        long,
        value_name = "HOST",
        env = "CANTLE_ALLOW_HOST",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) allow_host: Vec<HostPattern>,

    /// How much commands may use, such as memory=2G, processes=64 or cpu_time=5m; repeat it for more
    #[arg(
        long,
        value_name = "NAME=VALUE",
        env = "CANTLE_LIMIT",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) limit: Vec<Limit>,

    /// Run even where this machine can't enforce all of it, and say what it can't
    #[arg(long, env = "CANTLE_BEST_EFFORT", hide_env_values = true,
        action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub(crate) best_effort: Option<bool>,
}

fn preset_parser() -> impl TypedValueParser<Value = Preset> {
    let names = Preset::ALL.iter().map(|preset| preset.as_str());
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// Which model, where, and how much of it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// The model, as its provider names it
    #[arg(
        long,
        value_name = "NAME",
        env = "CANTLE_MODEL",
        hide_env_values = true
    )]
    pub(crate) model: Option<String>,

    /// Who serves it: sets the base URL and which variable holds the key [default: openai]
    #[arg(long, value_enum, env = "CANTLE_PROVIDER", hide_env_values = true)]
    pub(crate) provider: Option<Provider>,

    /// What is spoken there [default: messages with Anthropic, else chat]
    #[arg(long, value_enum, env = "CANTLE_API", hide_env_values = true)]
    pub(crate) api: Option<Api>,

    /// Where it is served: an address that mostly ends in /v1
    #[arg(
        long,
        value_name = "URL",
        env = "CANTLE_BASE_URL",
        hide_env_values = true
    )]
    pub(crate) base_url: Option<String>,

    /// Tokens that one answer may have at most
    #[arg(
        long,
        value_name = "N",
        env = "CANTLE_MAX_TOKENS",
        hide_env_values = true
    )]
    pub(crate) max_tokens: Option<u64>,

    /// Tokens that the whole conversation may have, where you know it
    #[arg(
        long,
        value_name = "N",
        env = "CANTLE_CONTEXT_WINDOW",
        hide_env_values = true
    )]
    pub(crate) context_window: Option<u64>,

    /// Ask for each answer in one piece
    #[arg(long, env = "CANTLE_NO_STREAM", hide_env_values = true,
        action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub(crate) no_stream: Option<bool>,

    #[command(flatten)]
    pub(crate) serving: ServingArgs,

    /// Write down what the model is asked and what it and the tools say, for --replay. Keys are left
    /// out
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub(crate) record: Option<PathBuf>,

    /// Let a recording play the model: what --record wrote, or turns from a file of JSON lines. Needs
    /// no key
    ///
    /// Commands are run; but the model is told what they said when it was recorded, and each request is
    /// compared with the recorded one.
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
}

/// What is shown of a run.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct DisplayArgs {
    /// Write every event to standard output, as a line of JSON each
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,

    /// Show nothing but the result, and what went wrong
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Show commands and their results in full, and what the model thinks
    #[arg(long, short, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

/// Runs one command in a fresh sandbox, and exits with its code.
#[derive(Debug, clap::Args)]
#[command(after_help = EXEC_HELP)]
pub(crate) struct ExecArgs {
    /// How long it may take, such as 300, 90s, 5m or 1h [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// Give it a terminal of its own, as an interactive shell needs: every key goes to it
    #[arg(long, short)]
    pub(crate) tty: bool,

    /// Say on standard error what the sandbox is kept by
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// The program and its arguments, as they are: no shell reads them
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// Surveys a directory with a recorded model: everything but the model is real.
#[derive(Debug, clap::Args)]
#[command(after_help = DEMO_HELP)]
pub(crate) struct DemoArgs {
    /// The directory
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,

    /// Where report.md and chart.svg go
    #[arg(long, value_name = "DIR", default_value = "./cantle-demo")]
    pub(crate) output_dir: PathBuf,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    #[command(flatten)]
    pub(crate) display: DisplayArgs,
}

/// Says what this machine can keep a sandbox from, by opening some, and what follows from it.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Write it as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const RUN_HELP: &str = "\
Which model:
  --provider    base URL                       variable with the key
  openai        https://api.openai.com/v1      OPENAI_API_KEY
  openrouter    https://openrouter.ai/api/v1   OPENROUTER_API_KEY
  litellm       http://127.0.0.1:4000/v1       LITELLM_API_KEY, where the proxy wants one
  anthropic     https://api.anthropic.com/v1   ANTHROPIC_API_KEY
  local         http://127.0.0.1:8080/v1       none

CANTLE_API_KEY is a key for whatever address is in use, and goes before the others. A provider's own \
variable is only used where that provider was named, or the base URL is its own. An address that only the \
cantle.toml of the current directory names gets no key, unless it is on this machine.

Settings come from flags, else from the variables above, else from cantle.toml in the current directory, \
else from $XDG_CONFIG_HOME/cantle/cantle.toml. In these files stand provider, api, base_url, model, \
system_prompt, max_turns, max_tokens, context_window, timeout, no_stream, policy, allow_host, limit, \
best_effort and backend; never a key. Provider and base URL belong together: both are taken from the same place. What \
lets commands do more than --policy workspace is not taken from the current directory's file.

Examples:
  export OPENAI_API_KEY=…
  cantle run --model gpt-5 --input sales.csv --output-dir out 'Chart the sales by region'
  cantle run --model gpt-5 --input 'src/**/*.rs' 'What is not tested in here?'
  git diff | cantle run --provider local --model any --quiet -

Into --output-dir go the files that the model hands over and, last, cantle-result.json: it is there once \
the run has finished.

Runs are kept in $CANTLE_STATE_DIR, else $XDG_STATE_HOME/cantle, else ~/.local/state/cantle (for root \
/var/lib/cantle): one that was \
interrupted, killed or reached a limit goes on with cantle run --resume RUN. What it was doing when it was \
killed is not done twice. No key is kept.

Exit codes: 0 finished, 1 internal error, 2 usage, 3 a limit was reached, 4 cancelled, 5 the model \
failed, 6 the sandbox failed.";

const EXEC_HELP: &str = "\
The command runs in a private, empty directory, with a small environment of its own; standard input, \
output and error are passed through. For a shell, name it: cantle exec -- bash -c 'ls | wc -l'

Exit codes: the command's own; 128 + n where signal n ended it; 124 when its time was over; 130 after \
Ctrl-C; 125 where the sandbox failed, 126 where the program can't be run, 127 where there is none; 2 where \
the command line or a setting makes no sense.";

const DOCTOR_HELP: &str = "\
Nothing is changed, and nothing is asked of the network: keys are looked for in the environment, and a \
container engine is only asked for its version. Exit code 0, or 1 where no sandbox can be opened at all.";

const DEMO_HELP: &str = "\
The files are copied into a sandbox (at most 20,000 files and 100 MB; .git, node_modules, target and the \
output directory are left out), commands count and compare them there, and report.md and chart.svg come \
back. The model's part is a recording: it needs no key and no network.";

/// Reads the command line. Ends the process where there is nothing to do or it makes no sense.
pub(crate) fn parse() -> Command {
    match try_parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => error.exit(),
    }
}

fn try_parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let mut cli = Cli::command();
    let matches = cli.try_get_matches_from_mut(args)?;
    let mut command = Cli::from_arg_matches(&matches)?.command;
    if let Some((_, given)) = matches.subcommand() {
        match &mut command {
            Command::Run(run) => {
                only_what_was_given(&mut run.model, given);
                only_what_is_meant(&mut run.policy, given);
                let by_flag = |id: &&clap::Id| {
                    given.value_source(id.as_str()) == Some(ValueSource::CommandLine)
                };
                run.by_flag = given
                    .ids()
                    .filter(by_flag)
                    .map(ToString::to_string)
                    .collect();
            }
            Command::Exec(exec) => only_what_is_meant(&mut exec.policy, given),
            Command::Demo(demo) => only_what_is_meant(&mut demo.policy, given),
            Command::Serve(serve) => only_what_is_meant(&mut serve.policy, given),
            Command::Doctor(_) | Command::Runs(_) | Command::Gc(_) => {}
        }
    }
    Ok(command)
}

/// Takes out what nobody said, and hosts of the environment where a flag names a policy that has
/// none: the stronger word is the one without them.
fn only_what_is_meant(policy: &mut PolicyArgs, given: &ArgMatches) {
    if given.value_source("best_effort") == Some(ValueSource::DefaultValue) {
        policy.best_effort = None;
    }
    let by_flag = |id| given.value_source(id) == Some(ValueSource::CommandLine);
    if by_flag("policy") && !by_flag("allow_host") && policy.policy != Some(Preset::Network) {
        policy.allow_host.clear();
    }
}

/// Takes out what nobody said. A provider and a base URL belong together: one that a flag names is
/// not combined with the other from the environment, or a key would go where it was not meant to.
fn only_what_was_given(model: &mut ModelArgs, given: &ArgMatches) {
    if given.value_source("no_stream") == Some(ValueSource::DefaultValue) {
        model.no_stream = None;
    }
    if given.value_source("stateful") == Some(ValueSource::DefaultValue) {
        model.serving.stateful = None;
    }
    let by_flag = |id| given.value_source(id) == Some(ValueSource::CommandLine);
    match (by_flag("provider"), by_flag("base_url")) {
        (true, false) => model.base_url = None,
        (false, true) => model.provider = None,
        _ => {}
    }
}

/// The command line `cantle run --resume RUN`.
pub(crate) fn resuming(run: &str) -> Command {
    match try_parse(["cantle", "run", "--resume", run].map(OsString::from)) {
        Ok(command) => command,
        Err(error) => error.exit(),
    }
}

/// An amount of money above zero.
fn parse_dollars(text: &str) -> Result<f64, String> {
    let dollars = text.trim().trim_start_matches('$').parse::<f64>().ok();
    dollars
        .filter(|dollars| dollars.is_finite() && *dollars > 0.0)
        .ok_or_else(|| "expected US dollars above 0, such as 1.50".to_owned())
}

/// A time such as `300`, `90s`, `1.5m` or `1h`; seconds where no unit stands.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 300, 90s, 5m or 1h".to_owned();
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.strip_prefix(digits).unwrap_or_default() {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(expected()),
    };
    let number: f64 = digits.parse().map_err(|_| expected())?;
    match Duration::try_from_secs_f64(number * unit) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests;
