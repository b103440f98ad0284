//! The longer parts of help texts.

use crate::settings::file;

/// Returns the help of `cantle run`, with the settings as they are declared.
pub(super) fn of_run() -> String {
    RUN_HELP.replacen("SETTINGS", &file::names().join(", "), 1)
}

const RUN_HELP: &str = "\
Providers:
  --provider    base URL                       variable of the key
  openai        https://api.openai.com/v1      OPENAI_API_KEY
  openrouter    https://openrouter.ai/api/v1   OPENROUTER_API_KEY
  litellm       http://127.0.0.1:4000/v1       LITELLM_API_KEY, if the proxy needs one
  anthropic     https://api.anthropic.com/v1   ANTHROPIC_API_KEY
  local         http://127.0.0.1:8080/v1       none

CANTLE_API_KEY is a key for any address, and takes precedence over the others. A provider's own variable is \
used only if the provider is named, or the base URL is its own. An address on this machine that only the \
cantle.toml of the current directory names gets no key.

Settings:
A flag overrides its variable, which overrides cantle.toml in the current directory, which overrides \
$XDG_CONFIG_HOME/cantle/cantle.toml. The keys of these files are SETTINGS; \
an API key is not one of them. Provider and base URL are taken from the \
same place, and so are prices. Until `cantle trust` covers the file in the current directory, it can only \
lower limits, and set effort and temperature.

Examples:
  export OPENAI_API_KEY=…
  cantle run --model gpt-5 --input sales.csv --output-dir out 'Chart the sales by region'
  cantle run --model gpt-5 --input 'src/**/*.rs' 'Which functions have no test?'
  git diff | cantle run --provider local --model any --quiet 'Review this change'

Output files are saved in --output-dir; cantle-result.json is written last, once the run has finished.

Runs are kept in $CANTLE_STATE_DIR, by default in $XDG_STATE_HOME/cantle or ~/.local/state/cantle (for \
root /var/lib/cantle). A run that was interrupted, killed or stopped by a limit can be resumed with cantle \
run --resume RUN; a command that was running when it was killed is not repeated. A finished run keeps its \
working directory for --continue (--keep-days, --keep-size). Keys are not kept.

Exit codes: 0 finished or answered in text, 1 internal error, 2 usage error, 3 a limit was reached (turns, a budget, the \
context window, the output limit), the run made no progress, or some of its files or changes were not delivered, \
4 cancelled, 5 the model provider failed, 6 the sandbox failed.";

pub(super) const EXEC_HELP: &str = "\
The command runs in a private, empty directory with a minimal environment; its standard streams are \
passed through. To use a shell, name it: cantle exec -- bash -c 'ls | wc -l'

Exit codes: the command's own; 128 + n if signal n ended it; 124 after a timeout; 130 after Ctrl-C; 125 if \
the sandbox failed; 126 if the program can't be executed; 127 if it does not exist; 2 for an invalid \
command line or setting.";

pub(super) const DOCTOR_HELP: &str = "\
Nothing is changed and the network is not used: the report names the keys in the environment, and a \
container engine is only asked for its version. The exit code is 0, or 1 if no policy can be enforced in full.";

pub(super) const DEMO_HELP: &str = "\
The files are copied into a sandbox (at most 20,000 files and 100 MB, without .git, node_modules, target \
and the output directory). Commands count and compare them there, and report.md and chart.svg are the \
output files. The model is a recording, so no key and no network are needed.";
