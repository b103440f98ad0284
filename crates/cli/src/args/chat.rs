//! The command line of `cantle chat`: that of a run, without what makes no sense in a conversation.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::RunArgs;

/// Flags of `cantle run` that a conversation does not have.
const WITHOUT: [&str; 8] = [
    "record",
    "replay",
    "resume",
    "no_keep",
    "json",
    "quiet",
    "schema",
    "overwrite",
];

/// The arguments of `cantle chat`.
#[derive(Clone, Debug)]
pub(crate) struct ChatArgs(pub(crate) RunArgs);

impl Args for ChatArgs {
    fn augment_args(command: Command) -> Command {
        let mut command = RunArgs::augment_args(command)
            // Another argument, since a run's can't be made optional again.
            .mut_arg("task", |task| {
                let name = task.get_id().clone();
                Arg::new(name).value_name("MESSAGE").index(1).help("The first message")
            })
            .mut_arg("more", |more| more.index(2))
            .after_long_help(None::<&str>)
            .about(
                "Hold a conversation at the terminal: each message is a task that continues it",
            )
            .long_about(
                "Hold a conversation at the terminal: each message is a task that continues it.\n\nTakes the \
                 flags of `cantle run`. Ctrl-C cancels a message; pressed twice, it ends the conversation. What you type while the model works \
                 is sent with its next turn. `/help` lists the commands.",
            );
        for name in WITHOUT {
            command = command.mut_arg(name, |arg| arg.hide(true));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ChatArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        if let Some(name) = WITHOUT.iter().find(|name| is_given(name)) {
            let message = format!("cantle chat has no --{}\n", name.replace('_', "-"));
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, message));
        }
        let args = RunArgs::from_arg_matches(matches)?;
        if args.no_keep {
            let message = "cantle chat keeps its messages, which /model, /approve and --continue need: unset \
                           CANTLE_NO_KEEP\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        match args.conflict() {
            Some(conflict) => {
                let message = conflict + "\n";
                Err(clap::Error::raw(ErrorKind::ArgumentConflict, message))
            }
            None => Ok(Self(args)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}
