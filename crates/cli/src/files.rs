//! Stored files: which store and catalogue a command uses.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use cantle::core::secret::SecretText;
use cantle_files::{FileStore, Files, FilesError, SqliteRecords, Urls};
use futures_util::{Stream, TryStreamExt as _};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use url::Url;

use crate::settings::layers::with_variable;
use crate::state_dir::StateDir;

/// How long an address of a stored file is valid.
const URL_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns whether a text is the address of a bucket, or of something that is taken for one.
pub(crate) fn is_bucket(text: &str) -> bool {
    text.contains("://")
}

/// Where stored files are
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::duplicated_attributes, reason = "each argument has a variable")]
#[command(
    next_help_heading = "Stored files",
    mut_arg("store", with_variable),
    mut_arg("catalogue", with_variable),
    mut_arg("store_credentials", with_variable)
)]
pub(crate) struct FilesArgs {
    /// Store of files: a directory, s3://BUCKET/PREFIX or az://CONTAINER/PREFIX [default: in the state directory]
    ///
    /// Credentials of a bucket come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and
    /// AWS_ENDPOINT_URL, or from AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_ENDPOINT.
    #[arg(long, value_name = "STORE")]
    store: Option<String>,

    /// Catalogue of the store: a SQLite file, or a PostgreSQL address [default: in the store's directory]
    ///
    /// An address with a password belongs in the variable, because other users can see command lines.
    #[arg(long, value_name = "CATALOGUE")]
    catalogue: Option<String>,

    /// File with the AWS_…=VALUE or AZURE_…=VALUE lines of the bucket's credentials, in place of the environment
    #[arg(long, value_name = "FILE")]
    store_credentials: Option<PathBuf>,
}

impl FilesArgs {
    /// Returns a flag of these that was given, if there is one. Variables are for all commands.
    pub(crate) fn given_flag() -> Option<&'static str> {
        let mut flags = ["--store", "--catalogue", "--store-credentials"].into_iter();
        flags.find(|flag| {
            let mut line = std::env::args_os();
            line.any(|word| word.to_string_lossy().split('=').next() == Some(*flag))
        })
    }

    /// Opens the files, without addresses.
    pub(crate) async fn open(&self, state: &StateDir) -> anyhow::Result<Files> {
        self.open_with(state, |store, _| Ok(store)).await
    }

    /// Opens the files with addresses below `base`: signed ones, which a server checks, or those of a bucket, which are
    /// presigned unless `published` says where it is public.
    pub(crate) async fn open_served(
        &self,
        state: &StateDir,
        base: Url,
        key: SecretText,
        published: Option<Url>,
    ) -> anyhow::Result<Files> {
        let urls = |store: FileStore, is_bucket: bool| {
            let valid = URL_LIFETIME;
            store.with_urls(match published {
                Some(base) if is_bucket => Urls::Public(base),
                None if is_bucket => Urls::Presigned(valid),
                published => {
                    let base = published.unwrap_or(base);
                    Urls::Signed { base, key, valid }
                }
            })
        };
        self.open_with(state, urls).await
    }

    /// Opens a bucket; connects to nothing yet.
    pub(crate) fn open_bucket(&self, address: &str) -> anyhow::Result<FileStore> {
        let (is_azure, place) = bucket(address)?;
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        let credentials = self.store_credentials.as_deref();
        let store = match is_azure {
            false => s3(name, credentials)?,
            true => azure(name, credentials)?,
        };
        Ok(store.with_prefix(prefix)?)
    }

    async fn open_with(
        &self,
        state: &StateDir,
        with_urls: impl FnOnce(FileStore, bool) -> Result<FileStore, FilesError>,
    ) -> anyhow::Result<Files> {
        if let Some(address) = self.store.as_deref().filter(|it| is_bucket(it)) {
            let Some(catalogue) = &self.catalogue else {
                bucket(address)?;
                bail!("a bucket needs a catalogue: name one with --catalogue or CANTLE_CATALOGUE");
            };
            let store = with_urls(self.open_bucket(address)?, true)?;
            return join(store, catalogue).await;
        }
        let directory = match &self.store {
            Some(directory) => PathBuf::from(directory),
            None => state.files(),
        };
        let store = with_urls(FileStore::directory(directory.join("objects"))?, false)?;
        match &self.catalogue {
            Some(catalogue) => join(store, catalogue).await,
            None => sqlite(store, &directory.join("catalogue.sqlite")).await,
        }
    }
}

/// Returns whether a bucket is Azure's, and the part of its address after the scheme.
fn bucket(address: &str) -> anyhow::Result<(bool, &str)> {
    match address.split_once("://") {
        Some(("s3", place)) => Ok((false, place)),
        Some(("az", place)) => Ok((true, place)),
        _ => bail!(
            "`{address}` is not a store: use a directory, s3://BUCKET/PREFIX or az://CONTAINER/PREFIX"
        ),
    }
}

/// Copies a file's content.
pub(crate) async fn copy(
    mut content: impl Stream<Item = Result<Bytes, FilesError>> + Unpin,
    to: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Result<()> {
    while let Some(chunk) = content.try_next().await? {
        to.write_all(&chunk).await?;
    }
    Ok(to.flush().await?)
}

async fn join(store: FileStore, catalogue: &str) -> anyhow::Result<Files> {
    let is_postgres = ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| catalogue.starts_with(scheme));
    if is_postgres {
        return postgres(store, catalogue).await;
    }
    sqlite(store, Path::new(catalogue)).await
}

async fn sqlite(store: FileStore, file: &Path) -> anyhow::Result<Files> {
    Ok(Files::open(store, SqliteRecords::open(file).await?).await?)
}

#[cfg(feature = "postgres")]
async fn postgres(store: FileStore, address: &str) -> anyhow::Result<Files> {
    let records = cantle_files::PostgresRecords::connect(address).await?;
    Ok(Files::open(store, records).await?)
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: FileStore, _: &str) -> anyhow::Result<Files> {
    bail!("this build has no PostgreSQL: build it with `--features postgres`, or use a SQLite file")
}

#[cfg(feature = "s3")]
fn s3(name: &str, credentials: Option<&Path>) -> anyhow::Result<FileStore> {
    Ok(FileStore::s3(name, credentials)?)
}

#[cfg(not(feature = "s3"))]
fn s3(_: &str, _: Option<&Path>) -> anyhow::Result<FileStore> {
    bail!("this build has no S3: build it with `--features s3`, or use a directory")
}

#[cfg(feature = "azure")]
fn azure(name: &str, credentials: Option<&Path>) -> anyhow::Result<FileStore> {
    Ok(FileStore::azure(name, credentials)?)
}

#[cfg(not(feature = "azure"))]
fn azure(_: &str, _: Option<&Path>) -> anyhow::Result<FileStore> {
    bail!("this build has no Azure: build it with `--features azure`, or use a directory")
}

/// Returns the key of file addresses, and creates it in a directory that has none.
pub(crate) fn signing_key(directory: &Path) -> anyhow::Result<SecretText> {
    const HEX_DIGITS: usize = 64;
    let file = directory.join("url-key");
    let failed = || {
        format!(
            "failed to keep the key of file addresses in {}",
            file.display()
        )
    };
    match std::fs::read_to_string(&file) {
        Ok(text) if text.len() == HEX_DIGITS => return Ok(text.into()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(failed),
    }
    let mut bytes = [0; HEX_DIGITS / 2];
    getrandom::fill(&mut bytes).with_context(failed)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // Readable by its owner only.
    let mut written = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
    std::io::Write::write_all(&mut written, text.as_bytes()).with_context(failed)?;
    written.persist(&file).with_context(failed)?;
    Ok(text.into())
}
