//! A catalogue in a PostgreSQL database.

use std::error::Error as StdError;
use std::time::Duration;

use async_trait::async_trait;
use cantle_tls::TlsOptions;
use deadpool_postgres::{
    GenericClient, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use super::{Records, sql};
use crate::error::FilesError;
use crate::record::{FileId, FileRecord, Quota, Usage};

/// Connections of one catalogue.
const CONNECTIONS: usize = 8;
/// How long a call waits for a connection, and how long connecting may take.
const WAIT: Duration = Duration::from_secs(15);
/// How long a pooled connection may take to show that it works; then another one is used.
const CHECK: Duration = Duration::from_secs(3);
/// Serializes migrations; an arbitrary number.
const MIGRATION_LOCK: i64 = 0x6361_6e74_6c65;
/// Ends a statement of a server that hangs.
const STATEMENT_TIMEOUT: &str = "-c statement_timeout=30000 -c lock_timeout=15000";
/// How long a server may take that does not even keep its own limits.
const ANSWER: Duration = Duration::from_secs(45);

/// A catalogue in a PostgreSQL database, for any number of machines.
#[derive(Debug)]
pub struct PostgresRecords {
    identity: String,
    pool: Pool,
}

impl PostgresRecords {
    /// Connects, and brings the schema up to date.
    ///
    /// The address is `postgres://USER:PASSWORD@HOST/DATABASE?sslmode=require`, or `key=value` words as
    /// libpq has them.
    ///
    /// # Errors
    /// The address is invalid, the server can't be reached, or the catalogue is one of a newer program.
    pub async fn connect(address: &str) -> Result<Self, FilesError> {
        let mut config: Config = address.parse().map_err(|error: tokio_postgres::Error| {
            FilesError::configuration("the address of the PostgreSQL catalogue is invalid")
                .with_source(error)
        })?;
        if config.get_options().is_none() {
            config.options(STATEMENT_TIMEOUT);
        }
        config.connect_timeout(WAIT).application_name("cantle");
        // After a failover, and after a call that timed out, a connection is silent but not closed.
        let recycling = ManagerConfig {
            recycling_method: RecyclingMethod::Verified,
        };
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        let manager = if config.get_hosts().iter().all(is_socket) {
            // A socket has no name that a certificate could have.
            Manager::from_config(config, NoTls, recycling)
        } else {
            let tls = TlsOptions::new().build().map_err(|error| {
                FilesError::configuration("failed to set up TLS for PostgreSQL").with_source(error)
            })?;
            Manager::from_config(config, MakeRustlsConnect::new(tls), recycling)
        };
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .recycle_timeout(Some(CHECK))
            .build()
            .map_err(FilesError::catalogue)?;
        let identity = migrate(&mut client(&pool).await?).await?;
        Ok(Self { identity, pool })
    }

    async fn query(
        &self,
        statement: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<FileRecord>, FilesError> {
        query(&client(&self.pool).await?, statement, params).await
    }
}

async fn client(pool: &Pool) -> Result<Object, FilesError> {
    pool.get().await.map_err(FilesError::catalogue)
}

async fn answered<T, E: Into<Box<dyn StdError + Send + Sync>>>(
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, FilesError> {
    let answer = timeout(ANSWER, answer).await;
    answer
        .map_err(FilesError::catalogue)?
        .map_err(FilesError::catalogue)
}

async fn migrate(client: &mut Object) -> Result<String, FilesError> {
    let transaction = answered(client.transaction()).await?;
    let lock = "SELECT pg_advisory_xact_lock($1)";
    let migrated = async {
        transaction.execute(lock, &[&MIGRATION_LOCK]).await?;
        transaction.batch_execute(sql::SCHEMA).await?;
        let identity = Uuid::new_v4().to_string();
        transaction.execute(sql::FIRST_SCHEMA, &[&identity]).await?;
        let row = transaction.query_one(sql::READ_SCHEMA, &[]).await?;
        Ok::<(i64, String), tokio_postgres::Error>((row.try_get(0)?, row.try_get(1)?))
    };
    let (version, identity) = answered(migrated).await?;
    for (version, text) in sql::pending(version)? {
        answered(transaction.batch_execute(text)).await?;
        answered(transaction.execute(sql::SET_VERSION, &[&version])).await?;
    }
    answered(transaction.commit()).await?;
    Ok(identity)
}

async fn query(
    client: &impl GenericClient,
    statement: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<FileRecord>, FilesError> {
    let records = async {
        let statement = client.prepare_cached(statement).await?;
        let rows = client.query(&statement, params).await?;
        let records = rows.iter().map(|row| Ok(sql::record!(row.try_get)));
        records.collect::<sql::Result<_>>()
    };
    answered(records).await
}

async fn execute(
    client: &impl GenericClient,
    statement: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<u64, FilesError> {
    let changed = async {
        let statement = client.prepare_cached(statement).await?;
        client.execute(&statement, params).await
    };
    answered(changed).await
}

#[async_trait]
impl Records for PostgresRecords {
    fn identity(&self) -> &str {
        &self.identity
    }

    async fn insert(&self, record: &FileRecord, quota: Quota) -> Result<(), FilesError> {
        let (id, metadata) = (record.id.to_string(), sql::metadata(record));
        let size_bytes = sql::stored(record.size_bytes);
        let (files, bytes) = (sql::stored(quota.files), sql::stored(quota.bytes));
        let mut client = client(&self.pool).await?;
        let transaction = answered(client.transaction()).await?;
        execute(&transaction, sql::FIRST_USAGE, &[&record.owner]).await?;
        // Locks the owner's row until the end of the transaction.
        let usage: [&(dyn ToSql + Sync); 4] = [&size_bytes, &record.owner, &files, &bytes];
        if execute(&transaction, sql::ADD_USAGE, &usage).await? == 0 {
            return Err(quota.exceeded());
        }
        let columns: [&(dyn ToSql + Sync); 11] = [
            &id,
            &record.owner,
            &record.filename,
            &record.key,
            &record.mime_type,
            &size_bytes,
            &record.sha256,
            &record.public_url,
            &record.created_at.as_microsecond(),
            &record.run,
            &metadata,
        ];
        execute(&transaction, sql::INSERT, &columns).await?;
        answered(transaction.commit()).await
    }

    async fn find(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let id = id.to_string();
        Ok(self.query(sql::FIND, &[&owner, &id]).await?.pop())
    }

    async fn list(
        &self,
        owner: &str,
        after: Option<FileId>,
        limit: u32,
    ) -> Result<Vec<FileRecord>, FilesError> {
        let (after, limit) = (sql::after(after), i64::from(limit));
        self.query(sql::LIST, &[&owner, &after, &limit]).await
    }

    async fn usage(&self, owner: &str) -> Result<Usage, FilesError> {
        let client = client(&self.pool).await?;
        let counts = answered(async {
            let statement = client.prepare_cached(sql::USAGE).await?;
            let row = client.query_opt(&statement, &[&owner]).await?;
            let counts = row.map(|row| sql::Result::Ok((row.try_get(0)?, row.try_get(1)?)));
            counts.transpose()
        });
        let (files, bytes) = counts.await?.unwrap_or_default();
        Ok(Usage::new(sql::counted(files), sql::counted(bytes)))
    }

    async fn remove(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let mut client = client(&self.pool).await?;
        let transaction = answered(client.transaction()).await?;
        let removed = query(&transaction, sql::REMOVE, &[&owner, &id.to_string()]).await?;
        if let Some(record) = removed.first() {
            let size_bytes = sql::stored(record.size_bytes);
            execute(&transaction, sql::SUBTRACT_USAGE, &[&size_bytes, &owner]).await?;
        }
        answered(transaction.commit()).await?;
        Ok(removed.into_iter().next())
    }

    async fn by_key(&self, key: &str) -> Result<Option<FileRecord>, FilesError> {
        Ok(self.query(sql::BY_KEY, &[&key]).await?.pop())
    }
}
