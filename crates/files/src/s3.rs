//! Stores in S3 and compatible servers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantle_tls::TlsOptions;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{ClientOptions, HttpClient, HttpConnector};
use object_store::{BackoffConfig, Error as ObjectError, RetryConfig};

use crate::error::FilesError;
use crate::store::FileStore;

/// How long connecting may take, and how long a server may send nothing.
const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(30);
/// How long a request is repeated.
const RETRIES: Duration = Duration::from_secs(60);
/// Size of a file with credentials.
const MAX_CREDENTIALS_BYTES: u64 = 64 << 10;

/// Options of a store in a bucket. Everything but its name comes from `AWS_…` variables: `AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`; or from a file with such lines.
#[must_use]
#[derive(Clone, Debug)]
pub struct S3Options {
    bucket: String,
    credentials: Option<PathBuf>,
}

impl S3Options {
    /// Options of a bucket.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            credentials: None,
        }
    }

    /// Reads the `AWS_…=VALUE` lines of a file in place of the environment.
    pub fn with_credentials_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.credentials = Some(file.into());
        self
    }

    /// Opens the store; connects to nothing yet.
    ///
    /// # Errors
    /// The file of credentials can't be read, or a setting is invalid.
    pub fn open(&self) -> Result<FileStore, FilesError> {
        let builder = match &self.credentials {
            Some(file) => from_file(file)?,
            None => AmazonS3Builder::from_env(),
        };
        let retries = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 5,
            retry_timeout: RETRIES,
        };
        let store = builder
            .with_bucket_name(&self.bucket)
            .with_retry(retries)
            .with_http_connector(Connector)
            .build()
            .map_err(|error| {
                let message = format!("the settings of the bucket `{}` are invalid", self.bucket);
                FilesError::configuration(message).with_source(error)
            })?;
        let store = Arc::new(store);
        Ok(FileStore::new(Arc::clone(&store) as _).with_signer(store))
    }
}

fn from_file(file: &Path) -> Result<AmazonS3Builder, FilesError> {
    let invalid = |what: String| FilesError::configuration(format!("`{}` {what}", file.display()));
    let unreadable = |error| invalid("can't be read".to_owned()).with_source(error);
    if fs::metadata(file).map_err(unreadable)?.len() > MAX_CREDENTIALS_BYTES {
        return Err(invalid("is too large for a file of credentials".to_owned()));
    }
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let mut builder = AmazonS3Builder::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        // The line may hold a secret: it is not repeated.
        let setting = line.split_once('=').and_then(|(name, value)| {
            let key = name
                .trim()
                .to_ascii_lowercase()
                .parse::<AmazonS3ConfigKey>();
            Some((key.ok()?, value.trim().trim_matches(['"', '\''])))
        });
        let Some((key, value)) = setting else {
            return Err(invalid(format!("has no AWS_…=VALUE in line {number}")));
        };
        builder = builder.with_config(key, value);
    }
    Ok(builder)
}

/// Connections with the TLS settings that all of Cantle has.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source| ObjectError::Generic {
            store: "S3",
            source,
        };
        let tls = TlsOptions::new()
            .build()
            .map_err(|error| failed(error.into()))?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| failed(error.into()))?;
        Ok(HttpClient::new(client))
    }
}
