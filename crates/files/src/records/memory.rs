//! A catalogue in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use uuid::Uuid;

use super::Records;
use crate::error::FilesError;
use crate::record::{FileId, FileRecord, Quota, Usage};

/// A catalogue that ends with its process, for tests and for stores in memory.
#[derive(Debug)]
pub struct MemoryRecords {
    identity: String,
    records: Mutex<BTreeMap<FileId, FileRecord>>,
}

impl MemoryRecords {
    /// Creates an empty catalogue.
    pub fn new() -> Self {
        Self {
            identity: Uuid::new_v4().to_string(),
            records: Mutex::default(),
        }
    }
}

impl Default for MemoryRecords {
    fn default() -> Self {
        Self::new()
    }
}

fn usage_of(records: &BTreeMap<FileId, FileRecord>, owner: &str) -> Usage {
    let sizes = records.values().filter(|record| record.owner == owner);
    sizes.fold(Usage::default(), |sum, record| Usage {
        files: sum.files + 1,
        bytes: sum.bytes.saturating_add(record.size_bytes),
    })
}

#[async_trait]
impl Records for MemoryRecords {
    fn identity(&self) -> &str {
        &self.identity
    }

    async fn insert(&self, record: &FileRecord, quota: Quota) -> Result<(), FilesError> {
        let mut records = self.records.lock();
        quota.check(usage_of(&records, &record.owner), record.size_bytes)?;
        records.insert(record.id, record.clone());
        Ok(())
    }

    async fn find(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let records = self.records.lock();
        let found = records.get(&id).filter(|record| record.owner == owner);
        Ok(found.cloned())
    }

    async fn list(
        &self,
        owner: &str,
        after: Option<FileId>,
        limit: u32,
    ) -> Result<Vec<FileRecord>, FilesError> {
        let records = self.records.lock();
        let newest = records.range(..after.unwrap_or(Uuid::max())).rev();
        let own = newest
            .map(|(_, record)| record)
            .filter(|it| it.owner == owner);
        Ok(own.take(limit as usize).cloned().collect())
    }

    async fn usage(&self, owner: &str) -> Result<Usage, FilesError> {
        Ok(usage_of(&self.records.lock(), owner))
    }

    async fn remove(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let mut records = self.records.lock();
        if records.get(&id).is_none_or(|record| record.owner != owner) {
            return Ok(None);
        }
        Ok(records.remove(&id))
    }

    async fn by_key(&self, key: &str) -> Result<Option<FileRecord>, FilesError> {
        let records = self.records.lock();
        Ok(records.values().find(|record| record.key == key).cloned())
    }
}
