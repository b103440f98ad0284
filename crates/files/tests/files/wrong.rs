//! Catalogues with one fault each, which the suite finds.

use std::cmp::Reverse;
use std::sync::Mutex;

use async_trait::async_trait;
use cantle_files::{
    FileId, FileRecord, FileStore, Files, FilesError, MemoryRecords, Quota, Records, Usage,
};
use cantle_testkit::conformance;

/// Fault of a catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    ForgetsFacts,
    FindsNoKey,
    FindsDeletedKeys,
    FindsFilesOfOthers,
    RemovesFilesOfOthers,
    ListsOldestFirst,
    RepeatsPages,
    CountsOthersInPages,
    CountsDeletedFiles,
    SubtractsMissingFiles,
    RemovesAgain,
    IgnoresQuotaOfFiles,
    IgnoresQuotaOfBytes,
}

/// The cases that each fault fails.
const FAULTS: [(Fault, &[&str]); 13] = [
    (Fault::ForgetsFacts, &["a_file_comes_back_with_its_record"]),
    (Fault::FindsNoKey, &["a_file_is_found_by_its_key"]),
    (Fault::FindsDeletedKeys, &["a_file_is_found_by_its_key"]),
    (
        Fault::FindsFilesOfOthers,
        &["the_files_of_others_do_not_exist"],
    ),
    (
        Fault::RemovesFilesOfOthers,
        &["the_files_of_others_do_not_exist"],
    ),
    (Fault::ListsOldestFirst, &["lists_are_paged_newest_first"]),
    (Fault::RepeatsPages, &["lists_are_paged_newest_first"]),
    (
        Fault::CountsOthersInPages,
        &["lists_are_paged_newest_first"],
    ),
    (
        Fault::CountsDeletedFiles,
        &[
            "a_deleted_file_is_gone",
            "a_file_is_deleted_once",
            "a_quota_of_files_is_kept",
        ],
    ),
    (
        Fault::SubtractsMissingFiles,
        &["a_deleted_file_is_gone", "a_file_is_deleted_once"],
    ),
    (
        Fault::RemovesAgain,
        &["a_deleted_file_is_gone", "a_file_is_deleted_once"],
    ),
    (
        Fault::IgnoresQuotaOfFiles,
        &["concurrent_uploads_keep_the_quota"],
    ),
    (
        Fault::IgnoresQuotaOfBytes,
        &["concurrent_uploads_keep_the_quota"],
    ),
];

#[tokio::test]
async fn each_fault_of_a_catalogue_is_found() {
    for (fault, cases) in FAULTS {
        // Without the fault, the same cases pass.
        for fault in [None, Some(fault)] {
            let records = Wrong::new(fault);
            let files = Files::open(FileStore::memory(), records).await.unwrap();
            let report = conformance::files_cases(&files, cases).await;
            let failed: Vec<_> = report.failures().map(|case| case.name.as_str()).collect();
            let expected = if fault.is_some() { cases } else { &[] };
            assert_eq!(failed, expected, "{fault:?}: {report}");
        }
    }
}

/// A catalogue in memory.
struct Wrong {
    fault: Option<Fault>,
    records: MemoryRecords,
    /// All records, with those that were removed.
    all: Mutex<Vec<FileRecord>>,
    /// Owners of removals that found no file.
    missed: Mutex<Vec<String>>,
}

impl Wrong {
    fn new(fault: Option<Fault>) -> Self {
        Self {
            fault,
            records: MemoryRecords::new(),
            all: Mutex::default(),
            missed: Mutex::default(),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn all(&self) -> Vec<FileRecord> {
        self.all.lock().unwrap().clone()
    }

    /// Returns the owner of a file, if a fault makes that the owner of every call.
    fn owner(&self, owner: &str, id: FileId, fault: Fault) -> String {
        let known = self.all().into_iter().find(|it| it.id == id);
        let known = known.filter(|_| self.has(fault));
        known.map_or_else(|| owner.to_owned(), |record| record.owner)
    }
}

#[async_trait]
impl Records for Wrong {
    fn identity(&self) -> &str {
        self.records.identity()
    }

    async fn insert(&self, record: &FileRecord, mut quota: Quota) -> Result<(), FilesError> {
        let mut record = record.clone();
        match self.fault {
            Some(Fault::ForgetsFacts) => record.metadata.clear(),
            Some(Fault::IgnoresQuotaOfFiles) => quota.files = u64::MAX,
            Some(Fault::IgnoresQuotaOfBytes) => quota.bytes = u64::MAX,
            _ => {}
        }
        self.records.insert(&record, quota).await?;
        self.all.lock().unwrap().push(record);
        Ok(())
    }

    async fn find(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let owner = self.owner(owner, id, Fault::FindsFilesOfOthers);
        self.records.find(&owner, id).await
    }

    async fn list(
        &self,
        owner: &str,
        after: Option<FileId>,
        limit: u32,
    ) -> Result<Vec<FileRecord>, FilesError> {
        if self.has(Fault::CountsOthersInPages) {
            let mut newest = self.all();
            newest.sort_by_key(|record| Reverse(record.id));
            newest.retain(|record| after.is_none_or(|after| record.id < after));
            newest.truncate(limit as usize);
            newest.retain(|record| record.owner == owner);
            return Ok(newest);
        }
        let after = after.filter(|_| !self.has(Fault::RepeatsPages));
        let mut page = self.records.list(owner, after, limit).await?;
        if self.has(Fault::ListsOldestFirst) {
            page.reverse();
        }
        Ok(page)
    }

    async fn usage(&self, owner: &str) -> Result<Usage, FilesError> {
        let mut usage = self.records.usage(owner).await?;
        if self.has(Fault::CountsDeletedFiles) {
            let all = self.all();
            usage.files = all.iter().filter(|it| it.owner == owner).count() as u64;
        }
        if self.has(Fault::SubtractsMissingFiles) {
            let missed = self.missed.lock().unwrap();
            let missed = missed.iter().filter(|it| *it == owner).count() as u64;
            usage.files = usage.files.saturating_sub(missed);
        }
        Ok(usage)
    }

    async fn remove(&self, owner: &str, id: FileId) -> Result<Option<FileRecord>, FilesError> {
        let of = self.owner(owner, id, Fault::RemovesFilesOfOthers);
        let mut removed = self.records.remove(&of, id).await?;
        if removed.is_none() {
            self.missed.lock().unwrap().push(of.clone());
        }
        if removed.is_none() && self.has(Fault::RemovesAgain) {
            let mut all = self.all().into_iter();
            removed = all.find(|it| it.id == id && it.owner == of);
        }
        Ok(removed)
    }

    async fn by_key(&self, key: &str) -> Result<Option<FileRecord>, FilesError> {
        match self.fault {
            Some(Fault::FindsNoKey) => Ok(None),
            Some(Fault::FindsDeletedKeys) => Ok(self.all().into_iter().find(|it| it.key == key)),
            _ => self.records.by_key(key).await,
        }
    }
}
