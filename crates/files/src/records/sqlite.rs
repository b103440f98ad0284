//! A catalogue in a SQLite file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Params, TransactionBehavior};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{Records, sql};
use crate::error::FilesError;
use crate::record::{FileId, FileRecord, Quota, Usage};

/// How long a statement waits for the lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// A catalogue in a SQLite file, which several processes of one machine may use at once.
#[derive(Debug)]
pub struct SqliteRecords {
    identity: String,
    connection: Arc<Mutex<Connection>>,
}

impl SqliteRecords {
    /// Opens or creates a catalogue, and brings its schema up to date.
    ///
    /// # Errors
    /// The file is on a network file system, where SQLite's locks are unreliable, is no catalogue, or is
    /// one of a newer program.
    pub async fn open(file: impl Into<PathBuf>) -> Result<Self, FilesError> {
        let file = file.into();
        blocking(move || {
            check_place(&file)?;
            let mut connection = connect(&file).map_err(FilesError::catalogue)?;
            let identity = migrate(&mut connection).map_err(FilesError::catalogue)??;
            Ok(Self {
                identity,
                connection: Arc::new(Mutex::new(connection)),
            })
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> sql::Result<T> + Send + 'static,
    ) -> Result<T, FilesError> {
        // Before a thread is taken: calls that wait occupy none, and end with their callers.
        let mut connection = Arc::clone(&self.connection).lock_owned().await;
        blocking(move || work(&mut connection).map_err(FilesError::catalogue)).await
    }

    async fn query(
        &self,
        statement: &'static str,
        params: impl Params + Send + 'static,
    ) -> Result<Vec<FileRecord>, FilesError> {
        self.run(move |connection| query(connection, statement, params))
            .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FilesError> + Send + 'static,
) -> Result<T, FilesError> {
    let work = tokio::task::spawn_blocking(work).await;
    work.map_err(FilesError::catalogue)?
}

/// Creates the directory of a file, unless it is on a network file system.
fn check_place(file: &Path) -> Result<(), FilesError> {
    #[cfg(target_os = "linux")]
    refuse_network(file)?;
    let directory = file.parent().filter(|it| !it.as_os_str().is_empty());
    fs::create_dir_all(directory.unwrap_or(Path::new("."))).map_err(|error| {
        let message = format!("failed to open the file catalogue `{}`", file.display());
        FilesError::configuration(message).with_source(error)
    })
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // A record that was reported as stored survives a power failure.
    connection.pragma_update(None, "synchronous", "FULL")?;
    write_ahead(&connection)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Sets the journal mode, which stays. SQLite's own waiting does not cover two processes that do it at once.
fn write_ahead(connection: &Connection) -> rusqlite::Result<()> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

#[cfg(target_os = "linux")]
fn refuse_network(file: &Path) -> Result<(), FilesError> {
    // The file, which may be a link to another file system, or the first directory above that exists.
    let places = file.ancestors().chain([Path::new(".")]);
    let found = places
        .into_iter()
        .find_map(|it| Some((it, rustix::fs::statfs(it).ok()?)));
    let Some((place, system)) = found else {
        return Ok(());
    };
    let name = match network_file_system(system.f_type) {
        Some("FUSE") => {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let place = place.canonicalize().ok();
            place.and_then(|place| fuse_program(&mounts, &place))
        }
        name => name.map(str::to_owned),
    };
    let Some(name) = name else { return Ok(()) };
    let message = format!(
        "the file catalogue `{}` is on {name}, a network file system, where SQLite's locks are unreliable: \
         name a file on a local disk, or a PostgreSQL database",
        file.display()
    );
    Err(FilesError::configuration(message))
}

/// Names the network file system of this number, from `linux/magic.h` and the file systems' sources. FUSE may be one.
#[cfg(target_os = "linux")]
fn network_file_system(magic: impl Into<i64>) -> Option<&'static str> {
    // The type is signed on some platforms, and the numbers have 32 bits.
    Some(match magic.into() & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x00c3_6400 => "CephFS",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x2003_0528 => "OrangeFS",
        0x0102_1997 => "9P",
        0x786f_4256 => "vboxsf",
        0x6573_5546 => "FUSE",
        _ => return None,
    })
}

/// Programs whose file systems of FUSE are on other machines. Others, such as `ntfs-3g`, are local.
#[cfg(target_os = "linux")]
const FUSE_PROGRAMS: [&str; 12] = [
    "blobfuse2",
    "ceph",
    "ceph-fuse",
    "davfs",
    "gcsfuse",
    "glusterfs",
    "goofys",
    "juicefs",
    "mount-s3",
    "rclone",
    "s3fs",
    "sshfs",
];

/// Returns the type of the mount that a place is on, if a program in [`FUSE_PROGRAMS`] serves it.
#[cfg(target_os = "linux")]
fn fuse_program(mounts: &str, place: &Path) -> Option<String> {
    // `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS… - TYPE SOURCE OPTIONS`, with `\040` for a space in a path.
    let mounted = mounts.lines().filter_map(|line| {
        let point = line.split(' ').nth(4)?.replace("\\040", " ");
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        place.starts_with(&point).then_some((point.len(), kind))
    });
    // The last of several on one point is the visible one.
    let (_, kind) = mounted.max_by_key(|(length, _)| *length)?;
    let program = kind.strip_prefix("fuse.")?;
    FUSE_PROGRAMS.contains(&program).then(|| kind.to_owned())
}

/// Brings the schema up to date, and returns the identity.
fn migrate(connection: &mut Connection) -> rusqlite::Result<Result<String, FilesError>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute(sql::SCHEMA, [])?;
    transaction.execute(sql::FIRST_SCHEMA, [Uuid::new_v4().to_string()])?;
    let (version, identity): (i64, String) =
        transaction.query_row(sql::READ_SCHEMA, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let pending = match sql::pending(version) {
        Ok(pending) => pending,
        Err(error) => return Ok(Err(error)),
    };
    for (version, text) in pending {
        transaction.execute_batch(text)?;
        transaction.execute(sql::SET_VERSION, [version])?;
    }
    transaction.commit()?;
    Ok(Ok(identity))
}

fn query(
    connection: &Connection,
    statement: &str,
    params: impl Params,
) -> sql::Result<Vec<FileRecord>> {
    let mut statement = connection.prepare_cached(statement)?;
    let mut rows = statement.query(params)?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.push(sql::record!(row.get));
    }
    Ok(records)
}

#[async_trait]
impl Records for SqliteRecords {
    fn identity(&self) -> &str {
        &self.identity
    }

    async fn insert(&self, record: &FileRecord, quota: Quota) -> Result<(), FilesError> {
        let it = record.clone();
        let is_inserted = self.run(move |connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction
                .prepare_cached(sql::FIRST_USAGE)?
                .execute([&it.owner])?;
            let size_bytes = sql::stored(it.size_bytes);
            let (files, bytes) = (sql::stored(quota.files), sql::stored(quota.bytes));
            let added = transaction
                .prepare_cached(sql::ADD_USAGE)?
                .execute((size_bytes, &it.owner, files, bytes))?;
            if added == 0 {
                return Ok(false);
            }
            transaction.prepare_cached(sql::INSERT)?.execute((
                it.id.to_string(),
                &it.owner,
                &it.filename,
                &it.key,
                &it.mime_type,
                size_bytes,
                &it.sha256,
                &it.public_url,
                it.created_at.as_microsecond(),
                &it.run,
                sql::metadata(&it),
            ))?;
            transaction.commit()?;
            Ok(true)
        });
        match is_inserted.await? {
            true => Ok(()),
            false => Err(quota.exceeded()),
        }
    }

    async fn find(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let params = (owner.to_owned(), id.to_string());
        Ok(self.query(sql::FIND, params).await?.pop())
    }

    async fn list(
        &self,
        owner: &str,
        after: Option<FileId>,
        limit: u32,
    ) -> Result<Vec<FileRecord>, FilesError> {
        let params = (owner.to_owned(), sql::after(after), limit);
        self.query(sql::LIST, params).await
    }

    async fn usage(&self, owner: &str) -> Result<Usage, FilesError> {
        let owner = owner.to_owned();
        let usage = self.run(|connection| {
            let mut statement = connection.prepare_cached(sql::USAGE)?;
            let counts = statement.query_row([owner], |row| Ok((row.get(0)?, row.get(1)?)));
            Ok(counts.optional()?)
        });
        let (files, bytes) = usage.await?.unwrap_or_default();
        Ok(Usage::new(sql::counted(files), sql::counted(bytes)))
    }

    async fn remove(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let params = (owner.to_owned(), id.to_string());
        self.run(move |connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let removed = query(&transaction, sql::REMOVE, params)?.pop();
            if let Some(record) = &removed {
                transaction
                    .prepare_cached(sql::SUBTRACT_USAGE)?
                    .execute((sql::stored(record.size_bytes), &record.owner))?;
            }
            transaction.commit()?;
            Ok(removed)
        })
        .await
    }

    async fn by_key(&self, key: &str) -> Result<Option<FileRecord>, FilesError> {
        Ok(self.query(sql::BY_KEY, [key.to_owned()]).await?.pop())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        // As a signed 32-bit number.
        assert_eq!(network_file_system(-11_317_950), Some("CIFS"));
        assert_eq!(network_file_system(0xef53), None);
    }

    #[test]
    fn programs_of_fuse_are_known_by_the_visible_mount() {
        let mounts = "\
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:50 / /mnt/my\\040data rw,nosuid - fuse.sshfs host: rw,user_id=0
91 90 252:2 / /mnt/my\\040data/disk rw - ext4 /dev/vdb rw
92 22 0:51 / /mnt/ntfs rw - fuse.ntfs-3g /dev/vdc rw
93 22 0:52 / /mnt/twice rw - fuse.ntfs-3g /dev/vdc rw
94 93 0:53 / /mnt/twice rw - fuse.s3fs s3fs rw
";
        let program = |place: &str| fuse_program(mounts, Path::new(place));
        for place in [
            "/home/x",
            "/mnt/my data2/x",
            "/mnt/my data/disk/x",
            "/mnt/ntfs/x",
        ] {
            assert_eq!(program(place), None, "{place}");
        }
        assert_eq!(program("/mnt/my data/x").as_deref(), Some("fuse.sshfs"));
        assert_eq!(program("/mnt/twice/x").as_deref(), Some("fuse.s3fs"));
    }
}
