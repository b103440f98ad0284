//! Package sets: packages that are installed once, and that code in sandboxes reads.
//!
//! A [`PackageStore`] prepares a [`PackageSet`] for a [`PackageRequest`]: sandboxes that reach only the index and the
//! hosts of its files find the packages (`resolve`) and install them into a virtual environment of the store
//! (`install`). Its name is a digest of what is in it. The store remembers which set answers a request.
//! [`crate::Interpreter::packages`] uses a set: at its own path if the sandbox shows it, and otherwise as a copy.

mod copy;
mod error;
mod index;
mod installer;
mod node;
mod request;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_core::sandbox::Backend;
use cantle_core::tool::{Progress, Requirements};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use self::error::{PackageError, PackageErrorKind};
pub use self::index::PackageIndex;
use self::installer::Installer;
pub use self::node::{NodePackage, NodeRequest};
use self::request::is_name;
pub use self::request::{PackageRequest, PackageSpecifier, PythonTarget};
pub use self::store::CollectedPackages;
use self::store::{InstalledSet, Layout};

/// Maximum number of packages of a set, and of hashes of a package.
const MAX_PACKAGES: usize = 2000;
const MAX_HASHES: usize = 2000;

/// A package of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct PinnedPackage {
    name: String,
    /// Empty for a direct reference of uv's.
    version: String,
    /// Accepted digests of its file, as in `sha256:…`.
    hashes: Vec<String>,
    /// The URL of a direct reference.
    url: Option<String>,
}

impl PinnedPackage {
    /// Checks what an installer said, which becomes a line of a requirements file.
    fn is_valid(&self) -> bool {
        let is_word = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || ".!+-_:".contains(c);
            text.len() < 256 && text.chars().all(allowed)
        };
        let is_reference = match &self.url {
            Some(url) => url.starts_with("https://") && !url.contains(char::is_whitespace),
            None => !self.version.is_empty(),
        };
        is_name(&self.name)
            && is_word(&self.version)
            && is_reference
            && (1..=MAX_HASHES).contains(&self.hashes.len())
            && self.hashes.iter().all(|it| it.contains(':') && is_word(it))
    }
}

/// The content of a set, which answers requests until it is not current.
trait SetContent: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Returns the name of the set: a digest of packages, interpreter and platform.
    fn key(&self) -> String;

    /// Returns whether this machine's interpreter is what it was.
    fn is_current(&self) -> bool;
}

/// Finds the packages of one request and installs them.
trait SetInstaller: Sync {
    type Content: SetContent;

    /// Returns the user that installs.
    fn owner(&self) -> (u32, u32);

    fn resolve(&self) -> impl Future<Output = Result<Self::Content, PackageError>> + Send;

    fn install(
        &self,
        directory: &Path,
        content: &Self::Content,
    ) -> impl Future<Output = Result<(), PackageError>> + Send;
}

/// The Python packages of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Resolution {
    target: PythonTarget,
    /// The file of the target's program, if it is of this machine: a Python that was replaced needs another set.
    program: Option<PathBuf>,
    packages: Vec<PinnedPackage>,
}

impl SetContent for Resolution {
    fn key(&self) -> String {
        digest(&(1, &self.target, &self.program, &self.packages))
    }

    fn is_current(&self) -> bool {
        let Some(program) = &self.program else {
            return true;
        };
        self.target.executable.canonicalize().ok().as_ref() == Some(program)
    }
}

/// Returns a digest of a value in 32 characters.
fn digest(value: &impl Serialize) -> String {
    let json = serde_json::to_vec(value).unwrap_or_default();
    let mut text = format!("{:x}", Sha256::digest(json));
    text.truncate(32);
    text
}

/// Packages that are installed for one Python. Clones are cheap.
///
/// The set is not removed while it exists.
#[derive(Clone, Debug)]
pub struct PackageSet {
    set: InstalledSet<Resolution>,
    /// Whether sandboxes get a copy.
    is_copied: bool,
}

impl PackageSet {
    fn new(set: InstalledSet<Resolution>) -> Self {
        Self {
            set,
            is_copied: false,
        }
    }

    /// Returns the set for sandboxes that never show this machine's files, and always get a copy.
    #[must_use]
    pub fn copied(mut self) -> Self {
        self.is_copied = true;
        self
    }

    /// Returns its name: a digest of packages, interpreter and platform.
    pub fn key(&self) -> &str {
        &self.set.key
    }

    /// Returns the directory of the virtual environment.
    pub fn path(&self) -> &Path {
        &self.set.path
    }

    /// Returns the path of its Python.
    pub fn python(&self) -> String {
        self.path().join("bin/python").display().to_string()
    }

    /// Returns the names and versions of the packages.
    pub fn packages(&self) -> impl Iterator<Item = (&str, &str)> {
        let packages = self.set.content.packages.iter();
        packages.map(|it| (it.name.as_str(), it.version.as_str()))
    }

    /// Returns what a sandbox of this machine has to show.
    pub(crate) fn requirements(&self) -> Requirements {
        let mut requirements = Requirements::new();
        if self.is_copied {
            return requirements;
        }
        requirements.read_roots.push(self.path().to_owned());
        // By convention the active environment, whose Python commands can start.
        let path = self.path().display().to_string();
        requirements
            .environment
            .insert("VIRTUAL_ENV".to_owned(), path);
        requirements
    }

    /// Returns the minor version of its Python.
    pub(crate) fn minor_version(&self) -> u8 {
        self.set.content.target.version.1
    }
}

/// A directory of package sets, which processes share.
///
/// ```no_run
/// use cantle_backends_local::LocalBackend;
/// use cantle_core::tool::Progress;
/// use cantle_python::{Interpreter, PackageError, PackageRequest, PackageStore};
///
/// # async fn example(progress: &dyn Progress) -> Result<(), PackageError> {
/// let store = PackageStore::new("/var/lib/packages", LocalBackend::new());
/// let request = PackageRequest::new(["pandas>=2".parse()?]);
/// let packages = store.prepare(&request, progress).await?;
/// let python = Interpreter::new(LocalBackend::new()).packages(packages);
/// # Ok(())
/// # }
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct PackageStore {
    layout: Layout,
    backend: Arc<dyn Backend>,
}

impl PackageStore {
    /// Creates a store in a directory, which is made when it is needed. `backend` opens the sandboxes that install
    /// packages; it has to be one of this machine.
    ///
    /// The user that runs commands must be able to reach the directory, which matters where this process is root's.
    pub fn new(directory: impl Into<PathBuf>, backend: impl Backend + 'static) -> Self {
        Self {
            layout: Layout::new(directory.into()),
            backend: Arc::new(backend),
        }
    }

    /// Gives a set a name, of letters, digits and hyphens, in place of another one.
    ///
    /// # Errors
    /// If the store can't be written.
    pub async fn name(&self, name: &str, set: &PackageSet) -> Result<(), PackageError> {
        let (layout, id, set) = (self.layout.clone(), name.to_owned(), set.clone());
        store::blocking(move || layout.remember(&id, &*set.set.content)).await
    }

    /// Returns the set with a name, if it still exists.
    ///
    /// # Errors
    /// If the store can't be read.
    pub async fn named(&self, name: &str) -> Result<Option<PackageSet>, PackageError> {
        let found = self.find(name.to_owned()).await?;
        Ok(found.map(PackageSet::new))
    }

    /// Returns the set for a request, and installs it first if that is necessary. Processes with the same request share
    /// one installation.
    ///
    /// # Errors
    /// If the request is invalid or needs a host that is not allowed; if packages are not found or can't be installed.
    pub async fn prepare(
        &self,
        request: &PackageRequest,
        progress: &dyn Progress,
    ) -> Result<PackageSet, PackageError> {
        request.check_references()?;
        let id = (request.id(), request.refresh);
        let names = format!("packages: {}", request.names());
        let installer = Installer::start(&*self.backend, request);
        // On the heap, because futures of callers contain it.
        let set = Box::pin(self.prepare_set(id, &names, installer, progress)).await?;
        Ok(PackageSet::new(set))
    }

    /// Removes sets that are not complete, or that were not used for `unused`; requests for them install the
    /// same packages again. Sets in use stay.
    pub async fn collect_garbage(&self, unused: std::time::Duration) -> CollectedPackages {
        let layout = self.layout.clone();
        let collected = store::blocking(move || Ok(layout.collect_garbage(unused)));
        collected.await.unwrap_or_default()
    }

    /// Returns the set for the request with an id, and installs what `names` says if that is necessary. `installer` is
    /// awaited only then.
    async fn prepare_set<I: SetInstaller>(
        &self,
        (id, refresh): (String, bool),
        names: &str,
        installer: impl Future<Output = Result<I, PackageError>> + Send,
        progress: &dyn Progress,
    ) -> Result<InstalledSet<I::Content>, PackageError> {
        if !refresh && let Some(set) = self.find(id.clone()).await? {
            return Ok(set);
        }
        let _lock = self.layout.lock(progress).await?;
        let (layout, request) = (self.layout.clone(), id.clone());
        let remembered = store::blocking(move || layout.remembered::<I::Content>(&request)).await?;
        let remembered = remembered.filter(|_| !refresh);
        if let Some(content) = &remembered
            && let Some(set) = self.open(content).await?
        {
            return Ok(set);
        }
        progress.output(&format!("Installing {names}\n"));
        let installer = installer.await?;
        let content = match remembered {
            Some(content) => content,
            None => installer.resolve().await?,
        };
        let set = match self.open(&content).await? {
            Some(set) => set,
            None => self.install(&installer, &content).await?,
        };
        let layout = self.layout.clone();
        store::blocking(move || layout.remember(&id, &content)).await?;
        Ok(set)
    }

    async fn find<C: SetContent>(
        &self,
        id: String,
    ) -> Result<Option<InstalledSet<C>>, PackageError> {
        let layout = self.layout.clone();
        store::blocking(move || match layout.remembered(&id)? {
            Some(content) => layout.open(content),
            None => Ok(None),
        })
        .await
    }

    async fn open<C: SetContent>(
        &self,
        content: &C,
    ) -> Result<Option<InstalledSet<C>>, PackageError> {
        let (layout, content) = (self.layout.clone(), content.clone());
        store::blocking(move || layout.open(content)).await
    }

    async fn install<I: SetInstaller>(
        &self,
        installer: &I,
        content: &I::Content,
    ) -> Result<InstalledSet<I::Content>, PackageError> {
        let key = content.key();
        let (layout, owner) = (self.layout.clone(), installer.owner());
        let directory = store::blocking(move || layout.begin(&key, owner)).await?;
        let installed = installer.install(&directory, content).await;
        let (layout, kept) = (self.layout.clone(), content.clone());
        store::blocking(move || match installed {
            Ok(()) => layout.complete(kept),
            Err(error) => {
                // Otherwise garbage collection does it; the first error is the one to report.
                let _ = std::fs::remove_dir_all(&directory);
                Err(error)
            }
        })
        .await
    }
}
