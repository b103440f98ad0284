//! Stores of objects, and the addresses of files in them.

use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::path::{Path as HostPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::secret::SecretText;
use futures_util::Stream;
use hmac::{Hmac, Mac as _};
use jiff::Timestamp;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::{Path, PathPart};
#[cfg(any(feature = "azure", feature = "s3"))]
use object_store::signer::{Method, Signer};
use object_store::{
    Error as ObjectError, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use url::Url;

use crate::error::{FilesError, FilesErrorKind};
use crate::upload::{StoredObject, upload};

/// Digits that make the key of a file unique.
const RANDOM_DIGITS: usize = 32;
/// Object that identifies the catalogue of a store.
const CATALOGUE: &str = "catalogue-identity";

/// How the addresses of files are made. By default files have none.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Urls {
    /// Files have no addresses.
    #[default]
    None,
    /// Permanent addresses below a base, where something publishes the store.
    Public(Url),
    /// Addresses that a store with signatures (S3, Azure) serves until they expire.
    Presigned(Duration),
    /// Addresses `BASE/files/KEY` that expire, of a server that checks them with
    /// [`FileStore::is_signed`].
    Signed {
        /// Address of the server.
        base: Url,
        /// Key of the signatures.
        key: SecretText,
        /// How long an address is valid.
        valid: Duration,
    },
}

/// A store of objects, below a prefix.
#[derive(Clone)]
pub struct FileStore {
    objects: Arc<dyn ObjectStore>,
    #[cfg(any(feature = "azure", feature = "s3"))]
    signer: Option<Arc<dyn Signer>>,
    prefix: Path,
    urls: Urls,
    /// Directory of a local store.
    directory: Option<PathBuf>,
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileStore({}/{})", self.objects, self.prefix)
    }
}

impl FileStore {
    /// Creates a store over any `object_store`, whose credentials and limits are the caller's.
    pub fn new(objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            objects,
            #[cfg(any(feature = "azure", feature = "s3"))]
            signer: None,
            prefix: Path::default(),
            urls: Urls::None,
            directory: None,
        }
    }

    /// Creates a store that ends with the process.
    pub fn memory() -> Self {
        Self::new(Arc::new(InMemory::new()))
    }

    /// Opens a store in a directory, which is created if it does not exist. No other program may write to it.
    ///
    /// # Errors
    /// The directory can't be created or opened.
    pub fn directory(directory: impl AsRef<HostPath>) -> Result<Self, FilesError> {
        let directory = directory.as_ref();
        let unusable = |error: std::io::Error| {
            let message = format!("failed to open the file store `{}`", directory.display());
            FilesError::configuration(message).with_source(error)
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(directory).map_err(unusable)?;
        let root = directory.canonicalize().map_err(unusable)?;
        let objects = LocalFileSystem::new_with_prefix(&root)?.with_fsync(true);
        Ok(Self {
            directory: Some(root),
            ..Self::new(Arc::new(objects))
        })
    }

    /// Sets the signer of presigned addresses.
    #[cfg(any(feature = "azure", feature = "s3"))]
    pub fn with_signer(mut self, signer: Arc<dyn Signer>) -> Self {
        self.signer = Some(signer);
        self
    }

    /// Keeps all objects below a prefix, such as `team/cantle`.
    ///
    /// # Errors
    /// The prefix has empty or `.` components, or characters that object keys can't have.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, FilesError> {
        self.prefix = Path::parse(prefix.trim_matches('/')).map_err(|error| {
            FilesError::configuration(format!("`{prefix}` is no prefix of object keys"))
                .with_source(error)
        })?;
        Ok(self)
    }

    /// Sets how addresses are made.
    ///
    /// # Errors
    /// The store can't sign and presigned addresses are wanted, or the base is no `http` address.
    pub fn with_urls(mut self, urls: Urls) -> Result<Self, FilesError> {
        let problem = match &urls {
            Urls::Presigned(_) if !self.can_sign() => {
                "this file store can't sign addresses: use public addresses or those of a server"
            }
            Urls::Public(base) | Urls::Signed { base, .. } if !base.has_host() => {
                "the address of stored files has no host: name one that begins with https://"
            }
            _ => {
                self.urls = urls;
                return Ok(self);
            }
        };
        Err(FilesError::configuration(problem))
    }

    fn can_sign(&self) -> bool {
        #[cfg(any(feature = "azure", feature = "s3"))]
        return self.signer.is_some();
        #[cfg(not(any(feature = "azure", feature = "s3")))]
        return false;
    }

    /// Returns whether a signature of [`Urls::Signed`] is valid for a key until a time in seconds since 1970,
    /// and that time has not passed.
    pub fn is_signed(&self, key: &str, expires: i64, signature: &str) -> bool {
        let Urls::Signed { key: secret, .. } = &self.urls else {
            return false;
        };
        // Compared in constant time.
        sign(secret, key, expires)
            .is_some_and(|it| it.as_bytes().ct_eq(signature.as_bytes()).into())
            && Timestamp::now().as_second() <= expires
    }

    /// Returns the permanent address of an object, if the store has those.
    pub(crate) fn public_url(&self, key: &str) -> Option<String> {
        match &self.urls {
            Urls::Public(base) => Some(below(base, key.split('/')).into()),
            _ => None,
        }
    }

    /// Returns the present address of an object.
    pub(crate) async fn url(&self, key: &str) -> Result<Option<String>, FilesError> {
        match &self.urls {
            Urls::Signed {
                base,
                key: secret,
                valid,
            } => {
                let valid = i64::try_from(valid.as_secs()).unwrap_or(i64::MAX);
                let expires = Timestamp::now().as_second().saturating_add(valid);
                let mut url = below(base, std::iter::once("files").chain(key.split('/')));
                let Some(signature) = sign(secret, key, expires) else {
                    return Err(FilesError::configuration(
                        "the key of file addresses is invalid",
                    ));
                };
                url.query_pairs_mut()
                    .append_pair("expires", &expires.to_string())
                    .append_pair("signature", &signature);
                Ok(Some(url.into()))
            }
            #[cfg(any(feature = "azure", feature = "s3"))]
            Urls::Presigned(valid) => {
                let Some(signer) = &self.signer else {
                    return Ok(None);
                };
                let path = self.path(key)?;
                let url = signer.signed_url(Method::GET, &path, *valid).await?;
                Ok(Some(url.into()))
            }
            _ => Ok(self.public_url(key)),
        }
    }

    /// Returns the store below, for whole objects and ranges.
    pub(crate) fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    pub(crate) fn path(&self, key: &str) -> Result<Path, FilesError> {
        let key = Path::parse(key).map_err(ObjectError::from)?;
        Ok(self.prefix.parts().chain(key.parts()).collect())
    }

    /// Returns the key of a path below the prefix; `None` for one that files do not have, such as that of
    /// [`put_object`](Self::put_object).
    pub(crate) fn key_of(&self, path: &Path) -> Option<String> {
        let parts: Vec<_> = path.prefix_match(&self.prefix)?.collect();
        let [group, name] = parts.as_slice() else {
            return None;
        };
        let (random, _) = name.as_ref().split_once('_')?;
        let is_file =
            random.len() == RANDOM_DIGITS && random.bytes().all(|it| it.is_ascii_hexdigit());
        is_file.then(|| format!("{}/{}", group.as_ref(), name.as_ref()))
    }

    /// Writes an object that no catalogue has a record of, in place of one with the same key. Characters that keys can't
    /// have are encoded. No [sweep](crate::Files::sweep) removes it.
    ///
    /// # Errors
    /// The source of the content or the store fails; no object is written then.
    pub async fn put_object<S, E>(&self, key: &str, content: S) -> Result<StoredObject, FilesError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let below = key.split('/').map(PathPart::from);
        let mut path: Path = self.prefix.parts().chain(below).collect();
        let parts = path.as_ref().rsplit_once('/');
        if let (Some((group, name)), true) = (parts, self.key_of(&path).is_some()) {
            // A sweep would take it for the object of a file without a record.
            let key = format!("{group}/{}", name.replacen('_', "%5F", 1));
            path = Path::parse(key).map_err(ObjectError::from)?;
        }
        upload(&self.objects, &path, content, |_| Ok(()), async |it| Ok(it)).await
    }

    pub(crate) fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Checks that the store can be reached and accepts the credentials, which may allow no more than writing.
    ///
    /// # Errors
    /// The store fails, or there is no such bucket.
    pub async fn check(&self) -> Result<(), FilesError> {
        let Err(error) = self.objects.get(&self.path(CATALOGUE)?).await else {
            return Ok(());
        };
        // Only the answer's text tells these apart.
        let text = error.to_string();
        let is_usable = match error {
            ObjectError::NotFound { .. } => {
                !text.contains("NoSuchBucket") && !text.contains("ContainerNotFound")
            }
            ObjectError::PermissionDenied { .. } => text.contains("AccessDenied"),
            _ => false,
        };
        match is_usable {
            true => Ok(()),
            false => Err(error.into()),
        }
    }

    /// Notes that this store belongs to a catalogue, or fails if it belongs to another: the sweep of one
    /// would delete the files of the other.
    pub(crate) async fn claim(&self, identity: &str) -> Result<(), FilesError> {
        use ObjectError::{AlreadyExists, NotFound, PermissionDenied, Precondition};
        let path = self.path(CATALOGUE)?;
        // Read first: a server that ignores the condition of the creation would replace the object. Without the permission
        // to list, S3 denies the access to a missing object.
        let mut found = self.objects.get(&path).await;
        if matches!(found, Err(NotFound { .. } | PermissionDenied { .. })) {
            let payload = PutPayload::from(identity.to_owned());
            let create = PutOptions::from(PutMode::Create);
            found = match self.objects.put_opts(&path, payload, create).await {
                Ok(_) => return Ok(()),
                Err(AlreadyExists { .. } | Precondition { .. }) => self.objects.get(&path).await,
                Err(error) => Err(error),
            };
        }
        let found = found?;
        if found.meta.size == identity.len() as u64 && found.bytes().await? == identity.as_bytes() {
            return Ok(());
        }
        let message = "the file store belongs to another catalogue: name that catalogue, or another directory, bucket or prefix";
        Err(FilesError::new(FilesErrorKind::Configuration, message))
    }

    /// Removes what killed uploads left in a directory, and returns how many files that were.
    pub(crate) fn sweep_staged(&self, age: Duration) -> u64 {
        let Some(directory) = &self.directory else {
            return 0;
        };
        let is_old = |meta: fs::Metadata| {
            let modified = meta.modified().ok()?;
            Some(meta.is_file() && modified.elapsed().ok()? >= age)
        };
        let mut directories = vec![directory.join(self.prefix.as_ref())];
        let mut removed = 0;
        while let Some(directory) = directories.pop() {
            for file in fs::read_dir(directory).into_iter().flatten().flatten() {
                if file.file_type().is_ok_and(|it| it.is_dir()) {
                    directories.push(file.path());
                    continue;
                }
                // The names of `LocalFileSystem`, which refuses such names for objects.
                let name = file.file_name();
                let staged = name.to_str().and_then(|name| name.rsplit_once('#'));
                let is_removed = staged
                    .is_some_and(|(_, number)| number.bytes().all(|it| it.is_ascii_digit()))
                    && file.metadata().ok().and_then(is_old) == Some(true)
                    && fs::remove_file(file.path()).is_ok();
                removed += u64::from(is_removed);
            }
        }
        removed
    }
}

fn below<'a>(base: &Url, parts: impl Iterator<Item = &'a str>) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(parts);
    }
    url
}

/// Returns the signature of a key until a time.
fn sign(secret: &SecretText, key: &str, expires: i64) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()).ok()?;
    mac.update(format!("GET {key} {expires}").as_bytes());
    Some(format!("{:x}", mac.finalize().into_bytes()))
}
