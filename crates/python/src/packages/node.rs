//! Packages of npm: installed once, by the npm of a sandbox, as package sets are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_core::ids::RunId;
use cantle_core::policy::{HostPattern, Network, Policy};
use cantle_core::sandbox::{Sandbox, SandboxContext, SandboxExt as _, SpawnRequest};
use cantle_core::tool::Progress;
use serde::Deserialize;
use serde::de::IgnoredAny;
use url::Url;

use super::installer::TIMEOUT;
use super::{PackageError, PackageStore, store};

/// Prints the user, and the registry of npm without settings.
const DESCRIBE: &str = "id -u && id -g && npm config get registry";
/// Maximum size of a package's description.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// A package of npm with its dependencies. It is not removed while this exists.
#[derive(Clone, Debug)]
pub struct NodePackage {
    name: String,
    path: PathBuf,
    _in_use: Arc<File>,
}

/// The part of a `package.json` about programs.
#[derive(Deserialize)]
struct Description {
    #[serde(default)]
    bin: Option<Programs>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Programs {
    Named(BTreeMap<String, IgnoredAny>),
    /// One with the name of the package.
    One(IgnoredAny),
}

impl NodePackage {
    /// Returns the directory, which a sandbox has to show.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a program: the named one, that of the package's name, or the only one.
    ///
    /// # Errors
    /// If the package has no such program.
    pub fn program(&self, name: Option<&str>) -> Result<PathBuf, PackageError> {
        let own = self.name.rsplit('/').next().unwrap_or_default();
        let programs = match self.describe().and_then(|description| description.bin) {
            Some(Programs::Named(programs)) => programs.into_keys().collect(),
            Some(Programs::One(_)) => vec![own.to_owned()],
            None => Vec::new(),
        };
        let wanted = name.unwrap_or(own);
        let found = match &programs[..] {
            [only] if name.is_none() => Some(only),
            all => all.iter().find(|program| *program == wanted),
        };
        match found {
            Some(program) if !program.contains('/') && !program.starts_with('.') => {
                Ok(self.path.join("node_modules/.bin").join(program))
            }
            _ => Err(PackageError::failed(format!(
                "the package `{}` has no program `{wanted}`",
                self.name
            ))),
        }
    }

    fn describe(&self) -> Option<Description> {
        let path = self.path.join("node_modules").join(&self.name);
        let path = path.join("package.json");
        // The package wrote it: a pipe would block.
        if !std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            return None;
        }
        let file = File::open(path).ok()?;
        let mut text = String::new();
        file.take(MAX_DESCRIPTION_BYTES)
            .read_to_string(&mut text)
            .ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Returns the name of a package in `name@version` or `@scope/name@version`, if it is one of a registry.
fn name_of(specifier: &str) -> Option<&str> {
    let (scope, name) = match specifier.strip_prefix('@') {
        Some(rest) => rest
            .split_once('/')
            .map(|(scope, name)| (Some(scope), name))?,
        None => (None, specifier),
    };
    let (name, version) = name.split_once('@').unwrap_or((name, "latest"));
    let is_word = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(allowed)
    };
    let is_version = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.+^~<>=*|, ".contains(c);
        !text.is_empty() && text.chars().all(allowed)
    };
    let is_valid = scope.is_none_or(is_word) && is_word(name) && is_version(version);
    let length = scope.map_or(0, |scope| scope.len() + 2) + name.len();
    is_valid.then(|| specifier.get(..length))?
}

impl PackageStore {
    /// Returns a package of npm, such as `server@1.2`, and installs it first if that is necessary, with its dependencies, for the Node.js of
    /// this machine's sandboxes. Its scripts run in a sandbox that reaches only the registry and `hosts`.
    ///
    /// # Errors
    /// If the specifier is no package of a registry, there is no npm, or it fails.
    pub async fn prepare_node(
        &self,
        specifier: &str,
        hosts: &[HostPattern],
        progress: &dyn Progress,
    ) -> Result<NodePackage, PackageError> {
        let name = name_of(specifier).ok_or_else(|| {
            let shown: String = specifier.escape_debug().take(80).collect();
            PackageError::invalid(format!("`{shown}` is no package of a registry"))
        })?;
        let key = super::digest(&("npm", 1, specifier));
        let found = |in_use: Arc<File>, path: PathBuf| NodePackage {
            name: name.to_owned(),
            path,
            _in_use: in_use,
        };
        let open = || {
            let (layout, key) = (self.layout.clone(), key.clone());
            store::blocking(move || Ok(layout.in_use(&key)?.map(|file| (file, layout.set(&key)))))
        };
        if let Some((in_use, path)) = open().await? {
            return Ok(found(in_use, path));
        }
        let _lock = self.layout.lock(progress).await?;
        if let Some((in_use, path)) = open().await? {
            return Ok(found(in_use, path));
        }
        progress.output(&format!("Installing the npm package: {specifier}\n"));
        let sandbox = self.node_sandbox(None, Vec::new()).await?;
        let described = run(&*sandbox, SpawnRequest::shell(DESCRIBE)).await;
        sandbox.close().await?;
        let described = described?;
        let lines: Vec<&str> = described.lines().collect();
        let [user, group, registry] = lines[..] else {
            return Err(PackageError::failed("npm names no registry"));
        };
        let registry = of_this_machine().unwrap_or_else(|| registry.to_owned());
        let (Ok(user), Ok(group)) = (user.parse(), group.parse()) else {
            return Err(PackageError::failed("the sandbox names no user"));
        };
        let mut reached = hosts.to_vec();
        reached.push(host_of(&registry)?);
        let (layout, set) = (self.layout.clone(), key.clone());
        let directory = store::blocking(move || layout.begin(&set, (user, group))).await?;
        let sandbox = self.node_sandbox(Some(&directory), reached).await?;
        let target = directory.display().to_string();
        let argv = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            &target,
            "--",
        ];
        let command = SpawnRequest::argv(argv.into_iter().chain([specifier]))
            .with_env("npm_config_registry", registry)
            .with_env("npm_config_update_notifier", "false")
            .with_timeout(TIMEOUT);
        let installed = run(&*sandbox, command).await;
        sandbox.close().await?;
        let (layout, described) = (self.layout.clone(), specifier.to_owned());
        let in_use = store::blocking(move || match installed {
            Ok(_) => layout.finish(&key, &described),
            Err(error) => {
                // Otherwise garbage collection does it; the first error is the one to report.
                let _ = std::fs::remove_dir_all(layout.set(&key));
                Err(error)
            }
        });
        Ok(found(in_use.await?, directory))
    }

    async fn node_sandbox(
        &self,
        write_root: Option<&Path>,
        hosts: Vec<HostPattern>,
    ) -> Result<Arc<dyn Sandbox>, PackageError> {
        let mut policy = Policy::workspace();
        if !hosts.is_empty() {
            policy.network = Some(Network::Hosts(hosts));
        }
        if let (Some(roots), Some(root)) = (&mut policy.write_roots, write_root) {
            roots.push(root.to_owned());
        }
        let context = SandboxContext::new(RunId::new(), policy);
        Ok(self.backend.open(context).await?)
    }
}

/// Runs a command and returns what it prints.
async fn run(sandbox: &dyn Sandbox, command: SpawnRequest) -> Result<String, PackageError> {
    let output = sandbox.run(command).await?;
    match output.exit.status.success() {
        true => Ok(output.stdout.text()),
        false => Err(PackageError::of_output("installing with npm", &output)),
    }
}

/// Returns the registry that npm is configured with here.
fn of_this_machine() -> Option<String> {
    let from_file = || {
        let home = std::env::var_os("HOME")?;
        let text = std::fs::read_to_string(Path::new(&home).join(".npmrc")).ok()?;
        let value = text.lines().find_map(|line| {
            line.split_once('=')
                .filter(|(key, _)| key.trim() == "registry")
        });
        value.map(|(_, value)| value.trim().to_owned())
    };
    std::env::var("npm_config_registry").ok().or_else(from_file)
}

fn host_of(registry: &str) -> Result<HostPattern, PackageError> {
    let url = Url::parse(registry.trim()).ok();
    let host = url
        .as_ref()
        .and_then(|url| Some((url.host_str()?, url.port())));
    let pattern = host.and_then(|(host, port)| match port {
        Some(port) => format!("{host}:{port}").parse().ok(),
        None => host.parse().ok(),
    });
    pattern.ok_or_else(|| PackageError::invalid("the registry of npm is no URL with a host name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_that_is_no_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let name = "server".to_owned();
        let own = directory.path().join("node_modules").join(&name);
        std::fs::create_dir_all(&own).unwrap();
        let description = own.join("package.json");
        let package = NodePackage {
            name,
            path: directory.path().to_owned(),
            _in_use: Arc::new(tempfile::tempfile().unwrap()),
        };
        std::fs::write(&description, r#"{"bin": {"serve": "x"}}"#).unwrap();
        assert!(package.program(None).unwrap().ends_with(".bin/serve"));
        std::fs::remove_file(&description).unwrap();
        let pipe = std::process::Command::new("mkfifo")
            .arg(&description)
            .status();
        assert!(pipe.unwrap().success());
        assert!(package.program(None).is_err());
    }

    #[test]
    fn a_specifier_is_a_package_of_a_registry_and_never_an_option() {
        for (specifier, name) in [
            ("server", Some("server")),
            ("server@1.2.3", Some("server")),
            ("@scope/server@^2", Some("@scope/server")),
            ("@scope/server", Some("@scope/server")),
            ("--global", None),
            ("@scope", None),
            ("../x", None),
            ("git+ssh://example.org/x", None),
            ("x@file:../y", None),
            ("x@npm:y", None),
            ("", None),
        ] {
            assert_eq!(name_of(specifier), name, "{specifier}");
        }
    }
}
