//! The arguments of `cantle mcp`, and MCP servers as this machine starts them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use async_trait::async_trait;
use cantle::backends::local::LocalBackend;
use cantle::core::policy::HostPattern;
use cantle::core::tool::Progress;
use cantle::mcp::{
    Ecosystem, InstalledPackage, McpServer, McpTools, PackageInstaller, ServerPackage,
};
use cantle::python::{NodeRequest, PackageRequest, PackageSpecifier};

use crate::environment::variable;
use crate::packages;
use crate::settings::layers::with_variable;
use crate::settings::{AllowedHost, Given, SandboxSettings};
use crate::text::without_byte_order_mark;
use crate::trust::read_regular;
use crate::variables::VariableArgs;

/// Serve a sandbox to an MCP client, or try the MCP servers of a file
///
/// Without a subcommand, it speaks MCP over standard input and output, with the tools run_command, run_python, read_file,
/// write_file and list_files. They work in one sandbox, which the first call opens and the end of standard input removes.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    pub(crate) command: Option<McpCommand>,

    #[command(flatten)]
    pub(crate) sandbox: Given<SandboxSettings>,

    #[command(flatten)]
    pub(crate) variables: VariableArgs,

    /// Also offer run_agent, which starts `cantle run` with the client's task
    ///
    /// Its runs have the settings and variables of this command, and the arguments after `--`, such as
    /// `-- --model qwen3 --budget-usd 1`.
    #[arg(long, help_heading = "Model")]
    pub(crate) allow_agent: bool,

    /// Arguments of `cantle run` for run_agent
    #[arg(
        last = true,
        value_name = "RUN_ARGUMENT",
        requires = "allow_agent",
        help_heading = "Model"
    )]
    pub(crate) agent_arguments: Vec<String>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum McpCommand {
    /// Connect to the servers, and list their tools
    List(ServerArgs),
    /// Connect to the servers, and report which fail and why
    Test(ServerArgs),
}

/// Servers to try.
#[derive(Debug, clap::Args)]
#[command(mut_arg("package_host", with_variable))]
pub(crate) struct ServerArgs {
    /// The file, as for `cantle run --mcp`
    pub(crate) file: PathBuf,

    /// Host that installers of packages may reach, as for `cantle run`; can be repeated
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) package_host: Vec<AllowedHost>,
}

/// Reads the servers in a file.
///
/// # Errors
/// If the file can't be read or is invalid, or a variable that it names is not set.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<McpServer>> {
    let shown = path.display();
    let (text, _) = read_regular(path)?.with_context(|| format!("there is no file {shown}"))?;
    parse(path, &text)
}

/// Parses the text of such a file.
///
/// # Errors
/// If it is invalid, or a variable that it names is not set.
pub(crate) fn parse(path: &Path, text: &str) -> anyhow::Result<Vec<McpServer>> {
    let text = without_byte_order_mark(text);
    McpServer::from_json(text, variable).map_err(|error| anyhow!("{}: {error}", path.display()))
}

/// Returns the tools of servers. They are started on this machine, wherever the run's commands run: its programs are
/// those that the file names.
pub(crate) fn tools(servers: Vec<McpServer>, packages: ServerPackages) -> McpTools {
    McpTools::new(servers)
        .sandboxes(LocalBackend::new())
        .host(LocalBackend::new())
        .packages(packages)
}

/// Installs the packages of servers in the store of this user.
#[derive(Clone, Debug)]
pub(crate) struct ServerPackages {
    /// Hosts that installers may reach, besides the index.
    pub(crate) hosts: Vec<HostPattern>,
    /// Whether specifiers are resolved again.
    pub(crate) refresh: bool,
}

#[async_trait]
impl PackageInstaller for ServerPackages {
    async fn install(
        &self,
        package: &ServerPackage,
        progress: &dyn Progress,
    ) -> Result<InstalledPackage, String> {
        let installed = match package.ecosystem {
            Ecosystem::Python => self.install_python(package, progress).await,
            Ecosystem::Npm => self.install_node(package, progress).await,
            _ => Err(anyhow!("packages of this kind can't be installed")),
        };
        installed.map_err(|error| {
            format!(
                "{error}\nHosts of packages are allowed with --package-host HOST, or HOST,private"
            )
        })
    }
}

impl ServerPackages {
    async fn install_python(
        &self,
        package: &ServerPackage,
        progress: &dyn Progress,
    ) -> anyhow::Result<InstalledPackage> {
        let specifier: PackageSpecifier = package.specifier.parse()?;
        let name = package
            .specifier
            .split(|c: char| "[<>=!~ ".contains(c))
            .next();
        let program = package.program.as_deref().or(name).unwrap_or_default();
        if program.contains('/') {
            bail!("`{program}` is not the name of a program");
        }
        let request = PackageRequest::new([specifier])
            .hosts(self.hosts.clone())
            .refresh(self.refresh);
        let set = packages::store()?.prepare(&request, progress).await?;
        let path = set.path().to_owned();
        let program = path.join("bin").join(program);
        Ok(InstalledPackage::new(program, vec![path], set))
    }

    async fn install_node(
        &self,
        package: &ServerPackage,
        progress: &dyn Progress,
    ) -> anyhow::Result<InstalledPackage> {
        let request = NodeRequest::new(&package.specifier)?
            .hosts(self.hosts.clone())
            .refresh(self.refresh);
        let installed = packages::store()?.prepare_node(&request, progress).await?;
        let program = installed.program(package.program.as_deref())?;
        let path = installed.path().to_owned();
        Ok(InstalledPackage::new(program, vec![path], installed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_may_begin_with_a_byte_order_mark() {
        let text = "\u{feff}{\"mcpServers\": {\"here\": {\"command\": \"true\"}}}\r\n";
        let servers = parse(Path::new("mcp.json"), text).unwrap();
        assert_eq!(servers.len(), 1);
    }
}
