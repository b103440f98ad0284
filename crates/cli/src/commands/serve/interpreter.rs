//! The code interpreter of served sandboxes, and its packages.

use std::sync::Arc;

use async_trait::async_trait;
use cantle::backends::local::LocalBackend;
use cantle::core::code::{CodeInterpreter, CodeSession};
use cantle::core::policy::Policy;
use cantle::core::sandbox::{Backend, Sandbox, SandboxContext, SandboxError, SandboxHandle};
use cantle::core::tool::Requirements;
use cantle::python::{Interpreter, PackageSpecifier};

use super::print;
use crate::exit::{Failure, FailureExt as _};
use crate::packages;
use crate::settings::ServeSettings;
use crate::settings::layers::Layers;

/// Name of the package set in the store.
const NAME: &str = "code-interpreter";
/// The packages that E2B's code interpreter has and its SDKs know formats of. matplotlib 3.11 lacks arguments (`labels` of
/// `boxplot`) that code for E2B's 3.10 uses.
const PACKAGES: [&str; 4] = ["e2b-charts", "matplotlib<3.11", "numpy", "pandas"];
/// Reported if code imports a package that is missing.
const MISSING: &str = "This server's code interpreter has no packages: `cantle serve --prepare code-interpreter` installs numpy, \
                       pandas, matplotlib and e2b-charts, for the next start of the server.";

/// Installs the packages, and returns the exit code.
pub(super) async fn prepare(layers: &Layers, policy: &Policy) -> Result<u8, Failure> {
    let settings: ServeSettings = layers.typed().usage()?;
    let specifiers = PACKAGES.map(str::parse::<PackageSpecifier>);
    let specifiers = specifiers
        .into_iter()
        .collect::<Result<_, _>>()
        .internal()?;
    let request = packages::request(specifiers, &settings.packages, layers, policy)?;
    let set = packages::install(&request).await?;
    let named = packages::store().usage()?.name(NAME, &set).await;
    named.map_err(packages::failure)?;
    let installed: Vec<_> = set
        .packages()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    print(format!("{}\n", installed.join(", ")))?;
    Ok(0)
}

/// The interpreter of all sandboxes.
#[derive(Debug)]
pub(super) struct ServedInterpreter {
    /// For those of this machine, which show its packages.
    local: Interpreter,
    /// For containers, which have what their image has.
    other: Interpreter,
}

impl ServedInterpreter {
    /// Returns the interpreter, with its packages if they are installed. Opening a sandbox installs none.
    pub(super) async fn new(backend: LocalBackend) -> Result<Self, Failure> {
        let other = Interpreter::new(backend);
        let found = packages::store().usage()?.named(NAME).await;
        let local = match found.map_err(packages::failure)? {
            Some(packages) => other.clone().packages(packages),
            None => other.clone().missing_module_advice(MISSING),
        };
        Ok(Self { local, other })
    }

    /// Returns a backend whose sandboxes show the packages if they are sandboxes of this machine.
    pub(super) fn show_packages(&self, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        if backend.name() != "local" {
            return backend;
        }
        Arc::new(ShowsPackages {
            backend,
            requirements: self.local.requirements(),
        })
    }
}

impl CodeInterpreter for ServedInterpreter {
    fn open_session(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn CodeSession> {
        let interpreter = match sandbox.info().backend.as_str() {
            "local" => &self.local,
            _ => &self.other,
        };
        interpreter.open_session(sandbox)
    }
}

/// The backend of this machine, whose sandboxes show packages.
#[derive(Debug)]
struct ShowsPackages {
    backend: Arc<dyn Backend>,
    requirements: Requirements,
}

#[async_trait]
impl Backend for ShowsPackages {
    fn name(&self) -> &str {
        self.backend.name()
    }

    async fn open(&self, mut cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.requirements.add_to(&mut cx.policy);
        self.backend.open(cx).await
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        mut cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.requirements.add_to(&mut cx.policy);
        self.backend.reattach(handle, cx).await
    }
}
