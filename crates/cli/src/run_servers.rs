//! The MCP servers of a run: those of `--mcp FILE`, or else of the `mcp.json` of a trusted directory.
//!
//! Such a file says which programs to start. So one that the user did not name counts only if `cantle trust` covers it, with
//! the files of its directory that it names.

use std::path::{Path, PathBuf};

use anyhow::bail;
use cantle::mcp::{McpServer, McpTools};

use crate::args::RunArgs;
use crate::in_place::InPlace;
use crate::mcp::{self, ServerPackages};
use crate::packages;
use crate::saved_settings::SavedSettings;
use crate::settings::PackageSourceSettings;
use crate::settings::layers::Layers;
use crate::trust::{ProjectFiles, canonical, read_regular};

pub(crate) const FILE_NAME: &str = "mcp.json";

/// The MCP servers of a run.
#[derive(Debug, Default)]
pub(crate) struct RunServers {
    /// `None` if neither a flag nor a directory names any.
    servers: Option<Vec<McpServer>>,
    /// The directory that they come from, if no flag names them.
    pub(crate) directory: Option<PathBuf>,
}

impl RunServers {
    /// Returns the servers of a new run in a directory, or of one that continues with these settings of an earlier one. Adds
    /// a remark about a file that the user did not name.
    ///
    /// # Errors
    /// If a file that counts can't be read or is invalid.
    pub(crate) fn find(
        args: &RunArgs,
        directory: &Path,
        earlier: Option<&SavedSettings>,
        remarks: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        if let Some(file) = &args.mcp {
            return Self::named(file);
        }
        let directory = match earlier {
            Some(earlier) => earlier.mcp_directory.as_deref(),
            None => Some(directory),
        };
        let Some(directory) = directory else {
            return Ok(Self::default());
        };
        Ok(match of_directory(directory, args)? {
            None => Self::default(),
            Some(Ok(servers)) => {
                let names: Vec<_> = servers.iter().map(McpServer::name).collect();
                remarks.push(format!(
                    "{FILE_NAME} adds the tools of {}",
                    names.join(", ")
                ));
                Self {
                    servers: Some(servers),
                    directory: Some(directory.to_owned()),
                }
            }
            Some(Err(reason)) => {
                remarks.push(format!(
                    "ignored {FILE_NAME}, because {reason}. Read it and the files that it names; `cantle trust` makes it count"
                ));
                Self::default()
            }
        })
    }

    /// Returns the servers of a run that is resumed with them.
    ///
    /// # Errors
    /// If their file can't be read, is invalid, or no longer counts.
    pub(crate) fn of_resumed(saved: &SavedSettings, args: &RunArgs) -> anyhow::Result<Self> {
        let Some(directory) = &saved.mcp_directory else {
            return match &saved.mcp {
                Some(file) => Self::named(file),
                None => Ok(Self::default()),
            };
        };
        let shown = directory.join(FILE_NAME);
        let shown = shown.display();
        match of_directory(directory, args)? {
            Some(Ok(servers)) => Ok(Self {
                servers: Some(servers),
                directory: None,
            }),
            Some(Err(reason)) => bail!("the run has the tools of {shown}, but {reason}"),
            None => bail!("the run has the tools of {shown}, which is gone"),
        }
    }

    fn named(file: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            servers: Some(mcp::read(file)?),
            directory: None,
        })
    }

    /// Returns their tools. A replay calls none of them.
    ///
    /// # Errors
    /// If a host of packages is not valid, or a server asks for a workspace that the run does not share.
    pub(crate) fn tools(
        self,
        source: &PackageSourceSettings,
        layers: &Layers,
        in_place: Option<&InPlace>,
        is_replay: bool,
    ) -> anyhow::Result<Option<McpTools>> {
        let Some(servers) = self.servers else {
            return Ok(None);
        };
        if in_place.is_none()
            && let Some(server) = servers.iter().find(|it| it.wants_workspace())
        {
            bail!(
                "mcpServers.{}.policy.workspace needs --workdir DIR --in-place: other runs work in their own sandbox, \
                 which servers don't see",
                server.name()
            );
        }
        let packages = ServerPackages {
            hosts: packages::hosts(source, layers)?,
            refresh: packages::is_refresh(source, layers),
        };
        let mut tools = mcp::tools(servers, packages);
        if let Some(in_place) = in_place {
            let (read_only, hidden) = in_place.protected();
            tools = tools.workspace(&in_place.directory, read_only, hidden);
        }
        Ok(Some(if is_replay { tools.offline() } else { tools }))
    }
}

/// Reads the `mcp.json` of a directory, if it has one; returns why it does not count, if it doesn't.
fn of_directory(
    directory: &Path,
    args: &RunArgs,
) -> anyhow::Result<Option<Result<Vec<McpServer>, String>>> {
    let path = directory.join(FILE_NAME);
    let Some((text, metadata)) = read_regular(&path)? else {
        return Ok(None);
    };
    let trust_directory = args.settings.trusts_directory();
    let mut files = ProjectFiles::default();
    files.add_content(Path::new(FILE_NAME), text.as_bytes(), &metadata);
    // The files that it names are not even opened before the file itself is trusted.
    if let Some(reason) = files.distrust(directory, trust_directory) {
        return Ok(Some(Err(reason)));
    }
    let servers = mcp::parse(&path, &text)?;
    add_named(&servers, directory, &mut files)?;
    Ok(Some(match files.distrust(directory, trust_directory) {
        Some(reason) => Err(reason),
        None => Ok(servers),
    }))
}

/// Reads the `mcp.json` of the current directory, which the user is about to trust, and adds it with the files that it
/// names.
///
/// # Errors
/// If it or one of them can't be read, or it is invalid.
pub(crate) fn to_be_trusted(files: &mut ProjectFiles) -> anyhow::Result<Option<Vec<McpServer>>> {
    let path = Path::new(FILE_NAME);
    let Some(text) = files.read(path)? else {
        return Ok(None);
    };
    let servers = mcp::parse(path, &text)?;
    add_named(&servers, Path::new("."), files)?;
    Ok(Some(servers))
}

/// Adds the files of a directory that are programs or arguments of servers. Relative paths begin where the server is
/// started, which is an empty directory unless its entry says otherwise.
fn add_named(
    servers: &[McpServer],
    directory: &Path,
    files: &mut ProjectFiles,
) -> anyhow::Result<()> {
    let directory = canonical(directory)?;
    for server in servers {
        let start = Path::new(server.directory().unwrap_or("/"));
        for word in server.argv() {
            let word = word.expose();
            let value = word.split_once('=').map(|(_, value)| value);
            for name in [Some(word), value].into_iter().flatten() {
                let real = start.join(name).canonicalize().unwrap_or_default();
                if let Ok(path) = real.strip_prefix(&directory)
                    && real.is_file()
                {
                    files.add_file(&real, path)?;
                }
            }
        }
    }
    Ok(())
}
