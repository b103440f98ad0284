//! The command line of `cantle files`.

use std::path::PathBuf;

use cantle_files::FileId;

use crate::delivery::StoreArgs;

/// List, copy, store and remove files of a store, such as that of `cantle serve --tools`
#[derive(Debug, clap::Args)]
#[command(mut_args(|arg| arg.global(true)))]
pub(crate) struct StoredFilesArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(subcommand)]
    pub(crate) command: FilesCommand,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum FilesCommand {
    /// List the files of an owner, the newest first
    Ls {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Copy a stored file to a new file
    Get {
        /// Id of the file
        id: FileId,
        /// Where to: a new file, or `-` for standard output [default: its name, in the current directory]
        file: Option<PathBuf>,
    },
    /// Store files, and print their ids
    Put {
        /// Files to store
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Remove stored files
    Rm {
        /// Ids of the files
        #[arg(required = true)]
        ids: Vec<FileId>,
    },
    /// Remove objects that interrupted uploads have left in the store
    Gc,
}
