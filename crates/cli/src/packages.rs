//! Python packages of `--package`: installed once in the state directory, and shown to sandboxes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use cantle::backends::docker::{DockerBackend, Reclaimed};
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::policy::{HostPattern, Policy};
use cantle::core::sandbox::{Backend, SandboxContext};
use cantle::python::{
    PackageError, PackageErrorKind, PackageRequest, PackageSet, PackageSpecifier, PackageStore,
    PythonTarget,
};

use crate::backend::{self, BackendArg};
use crate::exit::{Code, Failure, FailureExt as _, sandbox_failure};
use crate::messages::ProgressMessages;
use crate::policy;
use crate::result_file::write_atomically;
use crate::settings::layers::{Layers, Origin};
use crate::settings::{PackageSettings, PackageSourceSettings};
use crate::state_dir::{StateDir, create_traversable};

/// Derives an image with a package set. Names are arguments: they are the same text however they are spelled.
const DERIVED: &str = "\
ARG IMAGE
FROM ${IMAGE}
ARG SET
LABEL cantle.purpose=packages
COPY [\".\", \"${SET}\"]
";
/// The purpose of derived images, as the label says.
const PURPOSE: &str = "packages";

/// Installs packages unless they are installed, and returns them with the backend whose sandboxes show them.
pub(crate) async fn prepare(
    settings: &PackageSettings,
    layers: &Layers,
    (arg, backend): (&BackendArg, Arc<dyn Backend>),
    policy: &Policy,
    python: Option<&str>,
) -> Result<(Option<PackageSet>, Arc<dyn Backend>), Failure> {
    if settings.package.is_empty() {
        return Ok((None, backend));
    }
    let mut request = request(settings.package.clone(), &settings.source, layers, policy)?;
    if let Some(python) = python {
        request = request.python(python);
    }
    if !arg.is_local() {
        request = request.target(target(&*backend, policy, python).await?);
    }
    let set = install(&request).await?;
    Ok(match arg {
        BackendArg::Local => (Some(set), backend),
        BackendArg::Image(image) => {
            let derived = derived(image, &set).internal()?;
            (Some(set), Arc::new(derived))
        }
        _ => (Some(set.copied()), backend),
    })
}

/// Checks that a run with packages has the tool that uses them.
pub(crate) fn check_used(packages: Option<&PackageSet>, has_python: bool) -> anyhow::Result<()> {
    if packages.is_some() && !has_python {
        bail!("--package is for the code of the tool `python`: add --tools python");
    }
    Ok(())
}

/// Returns a request for packages as the settings say.
pub(crate) fn request(
    specifiers: Vec<PackageSpecifier>,
    source: &PackageSourceSettings,
    layers: &Layers,
    policy: &Policy,
) -> Result<PackageRequest, Failure> {
    let hosts = hosts(source, layers).usage()?;
    let roots = policy.read_roots.iter();
    Ok(PackageRequest::new(specifiers)
        .hosts(hosts)
        .read_roots(roots.flat_map(|roots| roots.paths.iter().cloned()))
        .strictness(policy.strictness)
        .refresh(is_refresh(source, layers)))
}

/// Returns whether packages are resolved again. A run that is resumed keeps what it had.
pub(crate) fn is_refresh(source: &PackageSourceSettings, layers: &Layers) -> bool {
    let is_saved = layers.origin("refresh_packages") == Some(Origin::SavedRun);
    source.refresh_packages == Some(true) && !is_saved
}

pub(crate) fn hosts(
    source: &PackageSourceSettings,
    layers: &Layers,
) -> anyhow::Result<Vec<HostPattern>> {
    policy::hosts(layers, "package_host", source.package_host.clone())
}

/// Installs packages unless they are installed, with progress on standard error.
pub(crate) async fn install(request: &PackageRequest) -> Result<PackageSet, Failure> {
    let store = store().usage()?;
    let installed = store.prepare(request, &ProgressMessages).await;
    installed.map_err(failure)
}

/// Returns the store of this user.
pub(crate) fn store() -> anyhow::Result<PackageStore> {
    let directory = StateDir::find()?.packages();
    let created = create_traversable(&directory);
    created.with_context(|| format!("failed to create {}", directory.display()))?;
    Ok(PackageStore::new(directory, LocalBackend::new()))
}

pub(crate) fn failure(error: PackageError) -> Failure {
    let code = match error.kind() {
        PackageErrorKind::Io => return Failure::new(Code::Internal, error),
        PackageErrorKind::Invalid => Code::Usage,
        _ => Code::Sandbox,
    };
    let message = format!(
        "{error}\nHosts of packages are allowed with --package-host HOST, or HOST,private if they are in a private network."
    );
    Failure::new(code, anyhow!(message))
}

/// Describes the Python of a sandbox, which is opened for that.
async fn target(
    backend: &dyn Backend,
    policy: &Policy,
    python: Option<&str>,
) -> Result<PythonTarget, Failure> {
    let context = SandboxContext::new(RunId::new(), policy.clone());
    let opened = backend.open(context).await;
    let failed = |error| sandbox_failure(Code::Sandbox as u8, &error);
    let sandbox = opened.map_err(failed)?;
    let target = PythonTarget::of(&*sandbox, python).await;
    let closed = sandbox.close().await;
    let target = target.map_err(failure)?;
    closed.map_err(failed)?;
    Ok(target)
}

/// Returns a backend of containers of an image that also has the packages, at their path.
fn derived(image: &str, set: &PackageSet) -> anyhow::Result<DockerBackend> {
    let path = StateDir::find()?.packages().join("Dockerfile");
    // Another process may be reading the same text.
    write_atomically(&path, DERIVED.as_bytes())?;
    let set = set.path();
    let target = set.to_str().context("the state directory is not UTF-8")?;
    let arguments = [("IMAGE", image), ("SET", target)];
    Ok(DockerBackend::from_dockerfile(path, set, arguments))
}

/// Removes derived images that are older than `age` and in no container. A run that needs one builds it again.
pub(crate) async fn remove_derived(age: Duration) -> Reclaimed {
    // Without a reachable engine there are none.
    let removed = backend::containers().remove_images(PURPOSE, age).await;
    removed.unwrap_or_default()
}
