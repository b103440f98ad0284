//! Stores in buckets: S3 and compatible servers, and Azure Blob Storage.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "s3")]
use object_store::aws::AmazonS3Builder;
#[cfg(feature = "azure")]
use object_store::azure::MicrosoftAzureBuilder;
use object_store::signer::Signer;
use object_store::{ObjectStore, RetryConfig};

use crate::connector::Connector;
use crate::error::FilesError;
use crate::store::FileStore;

/// How long a request is repeated.
const RETRIES: Duration = Duration::from_secs(60);
/// Size of a file with credentials.
const MAX_CREDENTIALS_BYTES: u64 = 64 << 10;

/// Opens the bucket of one service.
macro_rules! open {
    ($builder:ident, $prefix:literal, $with_name:ident($name:ident), $credentials:ident) => {{
        let builder = match $credentials {
            Some(file) => settings(file, $prefix)?
                .into_iter()
                .fold($builder::new(), |builder, (key, value)| {
                    builder.with_config(key, value)
                }),
            None => $builder::from_env(),
        };
        let store = builder.$with_name($name).with_http_connector(Connector);
        joined(store.with_retry(retries()).build(), $name)
    }};
}

/// Buckets. Everything but their names comes from the environment, or from a file with lines `NAME=VALUE` of the same
/// names. On Unix, a file that every user of the machine can read or change is refused.
impl FileStore {
    /// Opens a bucket in S3 or a compatible server, with the variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_REGION`, `AWS_ENDPOINT_URL` and `AWS_ALLOW_HTTP`, or a file in their place; connects to nothing yet.
    ///
    /// # Errors
    /// The file of credentials can't be read, or a setting is invalid.
    #[cfg(feature = "s3")]
    pub fn s3(bucket: &str, credentials: Option<&Path>) -> Result<Self, FilesError> {
        open!(
            AmazonS3Builder,
            "AWS",
            with_bucket_name(bucket),
            credentials
        )
    }

    /// Opens a container in Azure Blob Storage, with the variables `AZURE_STORAGE_ACCOUNT_NAME`,
    /// `AZURE_STORAGE_ACCOUNT_KEY` and `AZURE_STORAGE_ENDPOINT`, or a file in their place; connects to nothing yet.
    ///
    /// # Errors
    /// The file of credentials can't be read, or a setting is invalid.
    #[cfg(feature = "azure")]
    pub fn azure(container: &str, credentials: Option<&Path>) -> Result<Self, FilesError> {
        open!(
            MicrosoftAzureBuilder,
            "AZURE",
            with_container_name(container),
            credentials
        )
    }
}

fn joined<S: ObjectStore + Signer>(
    store: object_store::Result<S>,
    name: &str,
) -> Result<FileStore, FilesError> {
    let store = Arc::new(store.map_err(|error| {
        let message = format!("the settings of the bucket `{name}` are invalid");
        FilesError::configuration(message).with_source(error)
    })?);
    Ok(FileStore::new(Arc::clone(&store) as _).with_signer(store))
}

fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: 5,
        retry_timeout: RETRIES,
        ..RetryConfig::default()
    }
}

/// Returns the settings of a file with lines `PREFIX_…=VALUE`.
fn settings<K: FromStr>(file: &Path, prefix: &str) -> Result<Vec<(K, String)>, FilesError> {
    let invalid = |what: String| FilesError::configuration(format!("`{}` {what}", file.display()));
    let unreadable = |error| invalid("can't be read".to_owned()).with_source(error);
    let mut text = String::new();
    let opened = File::open(file).map_err(unreadable)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let found = opened.metadata().map_err(unreadable)?;
        // As programs for SSH and PostgreSQL refuse it. A group may share the file.
        if found.is_file() && found.permissions().mode() & 0o006 != 0 {
            let problem = "can be read or changed by every user of this machine: chmod 600 it";
            return Err(invalid(problem.to_owned()));
        }
    }
    let mut opened = opened.take(MAX_CREDENTIALS_BYTES + 1);
    opened.read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_CREDENTIALS_BYTES {
        return Err(invalid("is too large for a file of credentials".to_owned()));
    }
    let mut settings = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        // The line may hold a secret: it is not repeated.
        let setting = line.split_once('=').and_then(|(name, value)| {
            let key = name.trim().to_ascii_lowercase().parse().ok()?;
            Some((key, value.trim().trim_matches(['"', '\'']).to_owned()))
        });
        let missing = || invalid(format!("has no {prefix}_…=VALUE in line {number}"));
        settings.push(setting.ok_or_else(missing)?);
    }
    Ok(settings)
}
