//! The command line of `cantle runs`.

use std::path::PathBuf;
use std::time::Duration;

use crate::delivery::StoreArgs;
use crate::settings::parse_age;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RunsCommand {
    /// List the kept runs, the latest first
    List {
        #[command(flatten)]
        which: RunFilter,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show the state of a run, its answer and its files, or all of it
    Show {
        /// Id of the run, a prefix of it, or `last`
        run: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        /// Print the run as it was displayed
        #[arg(long, conflicts_with = "json")]
        log: bool,
        /// Print messages to the model, too (with --log)
        #[arg(long, short, requires = "log", hide_short_help = true)]
        verbose: bool,
        /// Print the whole run: as Markdown, its events as JSON lines, a page for browsers, or for other programs
        ///
        /// The values that keys and the run's variables currently have in the environment are redacted.
        #[arg(long, value_name = "FORMAT", conflicts_with_all = ["json", "log"])]
        format: Option<TranscriptFormat>,
        /// Write the formatted run to a file, or store it: `files:`, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX
        #[arg(long, short, value_name = "FILE", requires = "format")]
        output: Option<PathBuf>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Show how two runs differ, from the model to the answer, as a unified diff
    Diff {
        /// Id of the run, a prefix of it, or `last`
        old: String,
        /// The run to compare it with
        new: String,
    },
    /// Resume a run that did not finish, like `cantle run --resume RUN`
    Resume {
        /// Id of the run, a prefix of it, or `last`
        run: String,
    },
    /// Copy the files of a run, or its journal
    ///
    /// The files are those of its working directory; if that is gone, those that the run delivered or changed.
    Export {
        /// Id of the run, a prefix of it, or `last`
        run: String,
        /// Where to: a new or empty directory, or a store: `files:`, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX
        directory: PathBuf,
        /// Copy the journal with its media and those of sub-agents in place of the files
        #[arg(long)]
        journal: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Apply the changes of a run with --workdir to its directory, or complete an interrupted apply
    Apply {
        /// Id of the run, a prefix of it, or `last`
        run: String,
        #[command(flatten)]
        how: ApplyArgs,
    },
    /// Remove runs with their journals and working directories
    Rm {
        /// Ids of the runs, prefixes of them, or `last`
        #[arg(required_unless_present = "filter", conflicts_with = "filter")]
        runs: Vec<String>,
        #[command(flatten)]
        which: RunFilter,
    },
}

/// Some of the kept runs.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(id = "filter", multiple = true)]
pub(crate) struct RunFilter {
    /// Only finished runs
    #[arg(long, conflicts_with = "failed")]
    pub(crate) finished: bool,

    /// Only runs that ended without finishing, or whose process was killed
    #[arg(long)]
    pub(crate) failed: bool,

    /// Only runs without activity for this time, such as 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub(crate) older_than: Option<Duration>,
}

/// The actions of `cantle runs apply` other than applying the changes.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct ApplyArgs {
    /// Print the changes as a patch
    #[arg(long)]
    pub(crate) diff: bool,

    /// Restore the files as they were before the run
    #[arg(long)]
    pub(crate) revert: bool,

    /// Drop the changes
    #[arg(long)]
    pub(crate) reject: bool,
}

/// The format of a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TranscriptFormat {
    /// A transcript
    Markdown,
    /// The events, one JSON object per line
    Json,
    /// A page for browsers
    Html,
    /// A trajectory in the Agent Trajectory Interchange Format, version 1.8
    Atif,
    /// A log of Inspect, version 2
    Inspect,
    /// Conversations as OpenAI's fine-tuning reads them, one JSON object per line
    FineTuning,
}

impl TranscriptFormat {
    /// Returns the extension of a file in this format.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Markdown => "md",
            Self::Json => "json",
            Self::Html => "html",
            Self::Atif => "atif.json",
            Self::Inspect => "inspect.json",
            Self::FineTuning => "jsonl",
        }
    }
}
