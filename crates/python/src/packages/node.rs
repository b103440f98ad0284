//! Packages of npm: installed once, by the npm of a sandbox, as package sets are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use cantle_core::ids::RunId;
use cantle_core::policy::HostPattern;
use cantle_core::sandbox::{
    Backend, Sandbox, SandboxContext, SandboxError, SandboxExt as _, SandboxPath, SpawnRequest,
};
use cantle_core::tool::Progress;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::index::host_of;
use super::installer::{MAX_RESULT_BYTES, TIMEOUT, install_policy};
use super::store::InstalledSet;
use super::{PackageError, PackageStore, SetContent, SetInstaller};

/// Prints Node's program and description, the user, and the registry of npm without settings.
const DESCRIBE: &str = "command -v node && \
    node -p 'JSON.stringify({version: process.version, platform: process.platform + \"-\" + process.arch})' && \
    id -u && id -g && npm config get registry";
/// Finds the packages without running code of theirs.
const RESOLVE: &str =
    "npm install --package-lock-only --ignore-scripts --no-audit --no-fund --prefix .";
/// Installs what the lock file says.
const INSTALL: &str = "cp package.json package-lock.json \"$0\" && \
    exec npm ci --no-audit --no-fund --prefix \"$0\"";
/// The file of a package that names its dependencies.
const MANIFEST: &str = "package.json";
/// npm's file of resolved packages.
const LOCK: &str = "package-lock.json";
/// Maximum size of a package's description.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// A request for a package of npm.
#[must_use]
#[derive(Clone, Debug)]
pub struct NodeRequest {
    name: String,
    version: String,
    hosts: Vec<HostPattern>,
    refresh: bool,
}

/// A package of npm with its dependencies. It is not removed while this exists.
#[derive(Clone, Debug)]
pub struct NodePackage {
    name: String,
    set: InstalledSet<NodeContent>,
}

/// Node.js as it describes itself: packages have native parts for a version and a platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeTarget {
    version: String,
    platform: String,
}

/// The file of a program. An upgrade replaces it at the same path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProgramFile {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

impl ProgramFile {
    fn of(executable: &Path) -> Option<Self> {
        let path = executable.canonicalize().ok()?;
        let found = path.metadata().ok()?;
        Some(Self {
            path,
            bytes: found.len(),
            modified: found.modified().ok()?,
        })
    }
}

/// The packages of npm in a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeContent {
    target: NodeTarget,
    /// Node's path in the sandbox, and its file.
    executable: PathBuf,
    program: Option<ProgramFile>,
    /// npm's lock file, with the versions and digests of all packages.
    lock: Value,
}

impl SetContent for NodeContent {
    fn key(&self) -> String {
        let mut packages = self.lock.get("packages").cloned().unwrap_or_default();
        if let Some(packages) = packages.as_object_mut() {
            // The request: others may resolve to the same packages.
            packages.remove("");
        }
        super::digest(&("npm", 2, &self.target, packages))
    }

    fn is_current(&self) -> bool {
        ProgramFile::of(&self.executable) == self.program
    }
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
        &self.set.path
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
                Ok(self.path().join("node_modules/.bin").join(program))
            }
            _ => Err(PackageError::failed(format!(
                "the package `{}` has no program `{wanted}`",
                self.name
            ))),
        }
    }

    fn describe(&self) -> Option<Description> {
        let path = self.path().join("node_modules").join(&self.name);
        let path = path.join(MANIFEST);
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

impl NodeRequest {
    /// Requests a package, such as `server@1.2` or `@scope/server`, for the Node.js of this machine's sandboxes, from the registry
    /// that npm is configured with here.
    ///
    /// # Errors
    /// If the specifier is no package of a registry.
    pub fn new(specifier: &str) -> Result<Self, PackageError> {
        let (name, version) = parts_of(specifier).ok_or_else(|| {
            let shown: String = specifier.escape_debug().take(80).collect();
            PackageError::invalid(format!("`{shown}` is no package of a registry"))
        })?;
        Ok(Self {
            name: name.to_owned(),
            version: version.to_owned(),
            hosts: Vec::new(),
            refresh: false,
        })
    }

    /// Allows hosts besides the registry.
    pub fn hosts(mut self, hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        self.hosts = hosts.into_iter().collect();
        self
    }

    /// Resolves the specifier again, even if that was done before.
    pub fn refresh(mut self, refresh: bool) -> Self {
        self.refresh = refresh;
        self
    }
}

/// Returns name and version of `name@version` or `@scope/name@version`, if it is a package of a registry.
fn parts_of(specifier: &str) -> Option<(&str, &str)> {
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
    let name = specifier.get(..length).filter(|_| is_valid)?;
    Some((name, version))
}

impl PackageStore {
    /// Returns a package of npm with its dependencies, and installs it first if that is necessary. Its scripts run in a sandbox that
    /// reaches only the registry and allowed hosts.
    ///
    /// # Errors
    /// If there is no npm, or it fails.
    pub async fn prepare_node(
        &self,
        request: &NodeRequest,
        progress: &dyn Progress,
    ) -> Result<NodePackage, PackageError> {
        let (name, version) = (request.name.clone(), &request.version);
        let configured = configured(std::env::var("npm_config_registry").ok(), of_file);
        let id = super::digest(&("npm", 2, &name, version, &configured));
        let names = format!("the npm package: {name}@{version}");
        let installer = NodeInstaller::start(&*self.backend, request, configured);
        let id = (id, request.refresh);
        // On the heap, because futures of callers contain it.
        let set = Box::pin(self.prepare_set(id, &names, installer, progress)).await?;
        Ok(NodePackage { name, set })
    }
}

/// Installs a package with the npm of sandboxes.
struct NodeInstaller<'r> {
    backend: &'r dyn Backend,
    manifest: Value,
    executable: PathBuf,
    target: NodeTarget,
    user: (u32, u32),
    registry: String,
    hosts: Vec<HostPattern>,
}

impl<'r> NodeInstaller<'r> {
    /// Finds Node and the registry.
    async fn start(
        backend: &'r dyn Backend,
        request: &NodeRequest,
        configured: Option<String>,
    ) -> Result<Self, PackageError> {
        let sandbox = open(backend, None, &[]).await?;
        let described = run(&*sandbox, SpawnRequest::shell(DESCRIBE)).await;
        sandbox.close().await?;
        let described = described?;
        let lines: Vec<&str> = described.lines().collect();
        let [executable, target, user, group, default] = lines[..] else {
            return Err(PackageError::failed("npm names no registry"));
        };
        let (Ok(target), Ok(user), Ok(group)) =
            (serde_json::from_str(target), user.parse(), group.parse())
        else {
            let message = "the sandbox's Node.js describes itself in a form that is not understood";
            return Err(PackageError::failed(message));
        };
        let registry = configured.unwrap_or_else(|| default.to_owned());
        let mut hosts = request.hosts.clone();
        let host = Url::parse(registry.trim())
            .ok()
            .and_then(|url| host_of(&url).ok());
        let invalid = || PackageError::invalid("the registry of npm is no URL with a host name");
        hosts.push(host.ok_or_else(invalid)?);
        let dependencies = BTreeMap::from([(&request.name, &request.version)]);
        Ok(Self {
            backend,
            // Without a name, the lock file has that of the sandbox's directory.
            manifest: json!({"name": "set", "private": true, "dependencies": dependencies}),
            executable: executable.into(),
            target,
            user: (user, group),
            registry,
            hosts,
        })
    }

    /// Runs npm with the files in a new sandbox, and returns the lock file that it leaves.
    async fn npm(
        &self,
        write_root: Option<&Path>,
        files: &[(&str, &Value)],
        command: SpawnRequest,
    ) -> Result<Value, PackageError> {
        let sandbox = open(self.backend, write_root, &self.hosts).await?;
        let done = async {
            for (name, content) in files {
                let path = SandboxPath::new(*name).map_err(SandboxError::from)?;
                let content = Bytes::from(content.to_string());
                sandbox.write_bytes(&path, content).await?;
            }
            let command = command
                .with_env("npm_config_registry", self.registry.clone())
                .with_env("npm_config_update_notifier", "false")
                .with_timeout(TIMEOUT);
            run(&*sandbox, command).await?;
            let lock = SandboxPath::new(LOCK).map_err(SandboxError::from)?;
            let lock = sandbox.read_bytes(&lock, MAX_RESULT_BYTES).await?;
            serde_json::from_slice(&lock).map_err(|error| {
                PackageError::failed(format!("the lock file of npm is invalid: {error}"))
            })
        };
        let done = done.await;
        let closed = sandbox.close().await;
        let done = done?;
        closed?;
        Ok(done)
    }
}

impl SetInstaller for NodeInstaller<'_> {
    type Content = NodeContent;

    fn owner(&self) -> (u32, u32) {
        self.user
    }

    async fn resolve(&self) -> Result<NodeContent, PackageError> {
        let files = [(MANIFEST, &self.manifest)];
        let lock = self.npm(None, &files, SpawnRequest::shell(RESOLVE)).await?;
        Ok(NodeContent {
            target: self.target.clone(),
            executable: self.executable.clone(),
            program: ProgramFile::of(&self.executable),
            lock,
        })
    }

    async fn install(&self, directory: &Path, content: &NodeContent) -> Result<(), PackageError> {
        let files = [(MANIFEST, &self.manifest), (LOCK, &content.lock)];
        let target = directory.display().to_string();
        let command = SpawnRequest::argv(["sh", "-c", INSTALL, &target]);
        self.npm(Some(directory), &files, command).await?;
        Ok(())
    }
}

/// Opens a sandbox that reaches the hosts and writes a directory.
async fn open(
    backend: &dyn Backend,
    write_root: Option<&Path>,
    hosts: &[HostPattern],
) -> Result<Arc<dyn Sandbox>, PackageError> {
    let context = SandboxContext::new(RunId::new(), install_policy(hosts, write_root));
    Ok(backend.open(context).await?)
}

/// Runs a command and returns what it prints.
async fn run(sandbox: &dyn Sandbox, command: SpawnRequest) -> Result<String, PackageError> {
    let output = sandbox.run(command).await?;
    match output.exit.status.success() {
        true => Ok(output.stdout.text()),
        false => Err(PackageError::of_output("installing with npm", &output)),
    }
}

/// Returns the registry that npm is configured with here: that of its variable, or of its file. As for npm, an empty one
/// is none.
fn configured(variable: Option<String>, file: impl FnOnce() -> Option<String>) -> Option<String> {
    let is_set = |registry: &String| !registry.trim().is_empty();
    let variable = variable.filter(is_set);
    variable.or_else(|| file().filter(is_set))
}

/// Returns the registry in the user's file.
fn of_file() -> Option<String> {
    let home = std::env::var_os("HOME")?;
    let text = std::fs::read_to_string(Path::new(&home).join(".npmrc")).ok()?;
    let value = text.lines().find_map(|line| {
        line.split_once('=')
            .filter(|(key, _)| key.trim() == "registry")
    });
    value.map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::store::Layout;
    use super::*;

    fn content(executable: &Path) -> NodeContent {
        NodeContent {
            target: NodeTarget {
                version: "v22.1.0".to_owned(),
                platform: "linux-x64".to_owned(),
            },
            executable: executable.to_owned(),
            program: ProgramFile::of(executable),
            lock: json!({"packages": {"node_modules/server": {"version": "1.0"}}}),
        }
    }

    #[test]
    fn an_empty_registry_is_none() {
        for (variable, file, expected) in [
            (Some("https://v"), Some("https://f"), Some("https://v")),
            (Some(""), Some("https://f"), Some("https://f")),
            (Some(" "), Some(""), None),
            (None, Some("https://f"), Some("https://f")),
            (None, None, None),
        ] {
            let found = configured(variable.map(str::to_owned), || file.map(str::to_owned));
            assert_eq!(found.as_deref(), expected, "{variable:?} {file:?}");
        }
    }

    #[test]
    fn a_description_that_is_no_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("sets")).unwrap();
        let layout = Layout::new(directory.path().to_owned());
        let content = content(&directory.path().join("node"));
        let path = layout.begin(&content.key(), (0, 0)).unwrap();
        let own = path.join("node_modules/server");
        std::fs::create_dir_all(&own).unwrap();
        let description = own.join(MANIFEST);
        let package = NodePackage {
            name: "server".to_owned(),
            set: layout.complete(content).unwrap(),
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
    fn a_replaced_node_resolves_again_and_another_version_is_another_set() {
        let directory = tempfile::tempdir().unwrap();
        let executable = directory.path().join("node");
        std::fs::write(&executable, "old").unwrap();
        let first = content(&executable);
        assert!(first.is_current());
        std::fs::write(&executable, "newer").unwrap();
        assert!(!first.is_current());
        let mut second = content(&executable);
        assert!(second.is_current());
        assert_eq!(second.key(), first.key());
        second.target.version = "v24.0.0".to_owned();
        assert_ne!(second.key(), first.key());
        let mut third = content(&executable);
        third.lock = json!({"packages": {"node_modules/server": {"version": "1.1"}}});
        assert_ne!(third.key(), first.key());
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
            let parts = parts_of(specifier);
            assert_eq!(parts.map(|(name, _)| name), name, "{specifier}");
        }
    }
}
