//! Finding and installing packages, each step in a sandbox of its own.
//!
//! Packages that are built from source run code of theirs in `resolve` already. So what that step says is only a list of
//! packages with digests, and another sandbox installs them.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::{HostName, HostPattern, Network, Policy};
use cantle_core::sandbox::{
    Backend, Sandbox, SandboxContext, SandboxError, SandboxExt as _, SandboxPath, SpawnRequest,
    Stdin,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::PackageError;
use super::index::PackageIndex;
use super::request::{PackageRequest, PackageSpecifier, PythonTarget};
use super::{MAX_PACKAGES, PinnedPackage, Resolution, SetInstaller};
use crate::discovery::find_python;

/// The program of all steps.
const PROGRAM: &str = include_str!("install.py");
/// The file that a step writes.
const RESULT: &str = "result.json";
/// Maximum duration of a step.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Maximum size of what a step says.
pub(super) const MAX_RESULT_BYTES: u64 = 32 << 20;
/// Maximum number of hosts of an index's files.
const MAX_HOSTS: usize = 32;

/// The description of a Python by itself.
#[derive(Deserialize)]
struct Description {
    #[serde(flatten)]
    target: PythonTarget,
    user: (u32, u32),
    /// The index that its pip has without settings.
    default_index: Option<String>,
}

/// Installs packages for one request.
pub(super) struct Installer<'r> {
    backend: &'r dyn Backend,
    request: &'r PackageRequest,
    /// The Python that runs the steps.
    program: String,
    /// The user that runs the steps.
    user: (u32, u32),
    /// This machine's Python.
    target: Option<PythonTarget>,
    uv: Option<PathBuf>,
    index: PackageIndex,
    hosts: Vec<HostPattern>,
}

impl PackageRequest {
    /// Returns a digest that identifies the request.
    pub(super) fn id(&self) -> String {
        super::digest(&(
            1,
            &self.specifiers,
            &self.python,
            &self.target,
            self.index.places(),
        ))
    }

    /// Returns the specifiers for display.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.specifiers.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Checks that the hosts of direct references are allowed.
    pub(super) fn check_references(&self) -> Result<(), PackageError> {
        for url in self.specifiers.iter().filter_map(PackageSpecifier::url) {
            let host = url.host_str().unwrap_or_default();
            let name = host.parse::<HostName>();
            let port = url.port_or_known_default().unwrap_or(443);
            let allows = |name: &HostName| self.hosts.iter().any(|it| it.matches(name, port));
            if !name.is_ok_and(|name| allows(&name)) {
                return Err(PackageError::invalid(format!(
                    "`{url}` is not from the package index, so its host {host} has to be allowed by name"
                )));
            }
        }
        Ok(())
    }

    /// Returns the pattern, marked as the request's hosts say.
    fn marked(&self, pattern: HostPattern) -> HostPattern {
        let name = pattern.to_string();
        let (name, port) = name.split_once(':').unwrap_or((&name, "443"));
        let (Ok(host), Ok(port)) = (name.parse::<HostName>(), port.parse()) else {
            return pattern;
        };
        let private = |it: &HostPattern| it.allows_private_addresses() && it.matches(&host, port);
        match self.hosts.iter().any(private) {
            true => pattern.with_private_addresses(),
            false => pattern,
        }
    }
}

impl<'r> Installer<'r> {
    /// Finds the Python, the installer and the hosts.
    pub(super) async fn start(
        backend: &'r dyn Backend,
        request: &'r PackageRequest,
    ) -> Result<Self, PackageError> {
        let mut installer = Self {
            backend,
            request,
            program: String::new(),
            user: (0, 0),
            target: None,
            // It can't install for a Python that it can't run.
            uv: request.target.is_none().then(find_uv).flatten(),
            index: request.index.clone(),
            hosts: Vec::new(),
        };
        let sandbox = installer.sandbox(None).await?;
        // Another Python than this machine's is described, and is no program here.
        let python = request.python.as_deref();
        let python = python.filter(|_| request.target.is_none());
        let described = describe(&*sandbox, python).await;
        sandbox.close().await?;
        let (program, described) = described?;
        installer.program = program;
        installer.user = described.user;
        installer.target = Some(described.target);
        let default = described.default_index.as_deref();
        installer.index.set_default(default)?;
        installer.find_hosts().await?;
        Ok(installer)
    }

    /// Finds the hosts that the other steps reach: those of the index, of its files, and allowed ones.
    async fn find_hosts(&mut self) -> Result<(), PackageError> {
        let request = self.request;
        let known = self.index.hosts()?.into_iter();
        self.hosts = known.map(|host| request.marked(host)).collect();
        let indexed = request.specifiers.iter().filter(|it| it.url().is_none());
        let names: Vec<_> = indexed.map(PackageSpecifier::name).collect();
        if self.index.is_remote() && !names.is_empty() {
            let found: Vec<String> = self.step(None, "hosts", json!({ "names": names })).await?;
            // Those that are no names, such as addresses, are never reached.
            let found = found.iter().filter_map(|host| host.parse().ok());
            let found = found.take(MAX_HOSTS).map(|host| request.marked(host));
            self.hosts.extend(found);
        }
        self.hosts.extend(request.hosts.iter().cloned());
        Ok(())
    }

    /// Runs a step in a new sandbox.
    async fn step<T: DeserializeOwned>(
        &self,
        write_root: Option<&Path>,
        name: &str,
        mut arguments: Value,
    ) -> Result<T, PackageError> {
        let shared = json!({"uv": self.uv, "target": self.request.target});
        for fields in [self.index.sources(), shared] {
            if let (Some(all), Value::Object(fields)) = (arguments.as_object_mut(), fields) {
                all.extend(fields);
            }
        }
        let sandbox = self.sandbox(write_root).await?;
        let done = run_step(&*sandbox, &self.program, name, &arguments).await;
        let closed = sandbox.close().await;
        let done = done?;
        closed?;
        Ok(done)
    }

    async fn sandbox(&self, write_root: Option<&Path>) -> Result<Arc<dyn Sandbox>, PackageError> {
        let index = &self.index;
        let mut policy = install_policy(&self.hosts, write_root);
        if let Some(roots) = &mut policy.read_roots {
            roots.paths.extend(self.request.read_roots.iter().cloned());
            roots.paths.extend(index.read_roots());
            roots.paths.extend(self.uv.clone());
        }
        policy.strictness = self.request.strictness;
        let mut variables = vec![("PIP_CONFIG_FILE", "/dev/null"), ("UV_NO_CONFIG", "1")];
        if let Some(certificate) = index.certificate.as_deref().and_then(Path::to_str) {
            for name in ["PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"] {
                variables.push((name, certificate));
            }
        }
        for (name, value) in variables {
            let value = value.to_owned().into();
            policy.environment.insert(name.to_owned(), value);
        }
        let context = SandboxContext::new(RunId::new(), policy);
        Ok(self.backend.open(context).await?)
    }
}

impl SetInstaller for Installer<'_> {
    type Content = Resolution;

    fn owner(&self) -> (u32, u32) {
        self.user
    }

    /// Finds the packages and their digests.
    async fn resolve(&self) -> Result<Resolution, PackageError> {
        let arguments = json!({ "specifiers": self.request.specifiers });
        let mut packages: Vec<PinnedPackage> = self.step(None, "resolve", arguments).await?;
        packages.sort();
        let is_valid = packages.iter().all(PinnedPackage::is_valid);
        if !is_valid || packages.is_empty() || packages.len() > MAX_PACKAGES {
            let message = "the installer's list of packages is not usable: a package has no digest or no version, or there \
                           are too many";
            return Err(PackageError::failed(message));
        }
        let (target, program) = match (&self.request.target, &self.target) {
            (Some(target), _) => (target.clone(), None),
            (None, Some(own)) => (own.clone(), own.executable.canonicalize().ok()),
            (None, None) => return Err(PackageError::failed("there is no Python")),
        };
        Ok(Resolution {
            target,
            program,
            packages,
        })
    }

    /// Installs packages into a directory.
    async fn install(&self, directory: &Path, resolution: &Resolution) -> Result<(), PackageError> {
        let arguments = json!({ "directory": directory, "packages": resolution.packages });
        self.step(Some(directory), "install", arguments).await
    }
}

impl PythonTarget {
    /// Describes the Python of a sandbox, to request packages for it.
    ///
    /// # Errors
    /// If there is none, or the sandbox fails.
    pub async fn of(sandbox: &dyn Sandbox, python: Option<&str>) -> Result<Self, PackageError> {
        let (_, described) = describe(sandbox, python).await?;
        Ok(described.target)
    }
}

/// Returns the program of a sandbox's Python and its description.
async fn describe(
    sandbox: &dyn Sandbox,
    python: Option<&str>,
) -> Result<(String, Description), PackageError> {
    let python = find_python(sandbox, python).await?;
    let program = python.map_err(PackageError::failed)?.program;
    let described: Description = run_step(sandbox, &program, "describe", &Value::Null).await?;
    if !described.target.is_valid() {
        let message = "the sandbox's Python describes itself in a form that is not understood";
        return Err(PackageError::failed(message));
    }
    Ok((program, described))
}

/// Runs a step in a sandbox, and returns its result.
async fn run_step<T: DeserializeOwned>(
    sandbox: &dyn Sandbox,
    program: &str,
    step: &str,
    arguments: &Value,
) -> Result<T, PackageError> {
    let command = SpawnRequest::argv([program, "-c", PROGRAM, step])
        .with_stdin(Stdin::Bytes(arguments.to_string().into()))
        .with_timeout(TIMEOUT);
    let output = sandbox.run(command).await?;
    if !output.exit.status.success() {
        let doing = match step {
            "install" => "installing the packages",
            _ => "finding the packages",
        };
        return Err(PackageError::of_output(doing, &output));
    }
    let result = SandboxPath::new(RESULT).map_err(SandboxError::from)?;
    let result = sandbox.read_bytes(&result, MAX_RESULT_BYTES).await?;
    serde_json::from_slice(&result).map_err(|error| {
        PackageError::failed(format!("the result of `{step}` is invalid: {error}"))
    })
}

/// Returns the policy of a sandbox that reaches the hosts and writes a directory.
pub(super) fn install_policy(hosts: &[HostPattern], write_root: Option<&Path>) -> Policy {
    let mut policy = Policy::workspace();
    if !hosts.is_empty() {
        policy.network = Some(Network::Hosts(hosts.to_vec()));
    }
    if let (Some(roots), Some(root)) = (&mut policy.write_roots, write_root) {
        roots.push(root.to_owned());
    }
    policy
}

/// Returns the program uv of this machine. A script that looks for it is not one: it needs more than itself.
fn find_uv() -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&directories).map(|directory| directory.join("uv"));
    let programs = found.filter_map(|path| path.canonicalize().ok());
    programs.into_iter().find(|path| {
        let mut magic = [0; 4];
        let opened = std::fs::File::open(path);
        opened.is_ok_and(|mut file| file.read_exact(&mut magic).is_ok()) && magic == *b"\x7fELF"
    })
}
