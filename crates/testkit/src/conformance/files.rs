//! Suite for a store of files and its catalogue, together.
//!
//! Each case uses owners of its own, so the store and the catalogue may have other files, and the files of the
//! suite stay there.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::ids::RunId;
use cantle_files::FilesErrorKind::{
    self, Damaged, InvalidInput, NotFound, QuotaExceeded, Source, TooLarge,
};
use cantle_files::{FileId, FileRecord, Files, FilesError, Limits, NewFile, Quota, Usage};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::check::{Checked, Failure, ensure, equal, noise, same_bytes};
use super::report::Report;
use super::suite::{self, cases};

/// Larger than a part of an upload in parts.
const LARGE_BYTES: usize = 12 << 20;

/// Runs every case against a store and its catalogue.
pub async fn files(files: &Files) -> Report {
    files_cases(files, &[]).await
}

/// Runs only the named cases, for work on one of them.
pub async fn files_cases(files: &Files, names: &[&str]) -> Report {
    suite::run(&FilesHarness(files), cases(), names).await
}

pub(super) struct FilesHarness<'f>(&'f Files);

impl FilesHarness<'_> {
    pub(super) async fn check(&self, check: impl AsyncFnOnce(&Files) -> Checked) -> Checked {
        check(self.0).await
    }
}

cases! { cases for FilesHarness:
    a_file_comes_back_with_its_record,
    a_file_is_found_by_its_key,
    an_empty_file_is_a_file,
    a_large_file_streams_both_ways,
    ranges_are_exact,
    the_files_of_others_do_not_exist,
    equal_names_are_different_files,
    unusual_names_are_stored,
    lists_are_paged_newest_first,
    a_deleted_file_is_gone,
    a_file_is_deleted_once,
    a_quota_of_files_is_kept,
    a_quota_of_bytes_is_kept,
    concurrent_uploads_keep_the_quota,
    a_large_file_is_refused_while_it_comes,
    a_source_that_fails_leaves_nothing,
    a_sweep_keeps_what_has_a_record,
    invalid_owners_are_refused,
}

/// An owner of a case's own.
fn someone(name: &str) -> String {
    format!("{name}-{}", RunId::new())
}

async fn put(
    files: &Files,
    owner: &str,
    name: &str,
    content: &'static str,
) -> Result<FileRecord, FilesError> {
    files.put_bytes(owner, NewFile::named(name), content).await
}

async fn content(
    files: &Files,
    record: &FileRecord,
    range: Option<Range<u64>>,
) -> Result<Vec<u8>, FilesError> {
    let (_, content) = files.read(&record.owner, record.id, range).await?;
    let chunks: Vec<Bytes> = content.try_collect().await?;
    Ok(chunks.concat())
}

/// Checks the content of a file.
async fn must_hold(files: &Files, what: &str, file: &FileRecord, expected: &[u8]) -> Checked {
    same_bytes(what, &content(files, file, None).await?, expected)
}

#[track_caller]
fn refused<T>(what: &str, result: Result<T, FilesError>, kind: FilesErrorKind) -> Checked {
    match result {
        Ok(_) => Err(Failure::new(format!("{what} succeeded; expected {kind:?}"))),
        Err(error) => equal(what, error.kind(), kind),
    }
}

async fn a_file_comes_back_with_its_record(files: &Files) -> Checked {
    let owner = someone("alice");
    let new = NewFile::named("dir/a chart.png")
        .with_group("generated")
        .with_run("run-1")
        .with_fact("path", "dir/a chart.png");
    let stored = files.put_bytes(&owner, new, "hello").await?;
    let found = files.find(&owner, stored.id).await?;
    equal("the record", &found, &stored)?;
    equal("the owner", &found.owner, &owner)?;
    equal("the name", found.filename.as_str(), "a_chart.png")?;
    equal("the media type", found.mime_type.as_str(), "image/png")?;
    equal("the size", found.size_bytes, 5)?;
    equal("the run", found.run.as_deref(), Some("run-1"))?;
    equal(
        "a fact",
        found.metadata.get("path").and_then(|it| it.as_str()),
        Some("dir/a chart.png"),
    )?;
    let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    equal("the digest", found.sha256.as_str(), sha256)?;
    let key = found
        .key
        .strip_prefix("generated/")
        .and_then(|key| key.strip_suffix("_a_chart.png"));
    let random = key.unwrap_or_default();
    ensure!(
        random.len() == 32 && random.bytes().all(|it| it.is_ascii_hexdigit()),
        "the key {} has no 128 random bits",
        found.key
    );
    must_hold(files, "the content", &found, b"hello").await?;
    equal("the usage", files.usage(&owner).await?, Usage::new(1, 5))
}

async fn a_file_is_found_by_its_key(files: &Files) -> Checked {
    let stored = put(files, &someone("alice"), "a", "x").await?;
    let found = files.find_by_key(&stored.key).await?;
    equal("the record", &found, &stored)?;
    let other = files.find_by_key(&format!("{}b", stored.key)).await;
    refused("finding another key", other, NotFound)?;
    files.remove(&stored.owner, stored.id).await?;
    let deleted = files.find_by_key(&stored.key).await;
    refused("finding the key of a deleted file", deleted, NotFound)
}

async fn an_empty_file_is_a_file(files: &Files) -> Checked {
    let owner = someone("alice");
    let stored = put(files, &owner, "empty", "").await?;
    must_hold(files, "the content", &stored, b"").await?;
    same_bytes("a range", &content(files, &stored, Some(0..0)).await?, b"")?;
    equal("the usage", files.usage(&owner).await?, Usage::new(1, 0))
}

async fn a_large_file_streams_both_ways(files: &Files) -> Checked {
    let owner = someone("alice");
    let bytes = Bytes::from(noise(LARGE_BYTES));
    let chunks: Vec<_> = (0..LARGE_BYTES).step_by(100_000).collect();
    let source = stream::iter(chunks)
        .map(|from| Ok::<_, FilesError>(bytes.slice(from..LARGE_BYTES.min(from + 100_000))));
    let stored = files.put(&owner, NewFile::named("large"), source).await?;
    equal("the size", stored.size_bytes, LARGE_BYTES as u64)?;
    must_hold(files, "the content", &stored, &bytes).await?;
    let from = 8_388_600;
    let middle = content(files, &stored, Some(from..from + 16)).await?;
    let expected = bytes.slice(from as usize..from as usize + 16);
    same_bytes("a range", &middle, &expected)
}

async fn ranges_are_exact(files: &Files) -> Checked {
    let stored = put(files, &someone("alice"), "a", "0123456789").await?;
    for (range, expected) in [
        (0..10, "0123456789"),
        (2..5, "234"),
        (9..10, "9"),
        (10..10, ""),
    ] {
        let what = format!("{range:?}");
        let found = content(files, &stored, Some(range)).await?;
        same_bytes(&what, &found, expected.as_bytes())?;
    }
    #[expect(clippy::reversed_empty_ranges, reason = "it is what the case is about")]
    for range in [0..11, 11..11, 5..2] {
        let what = format!("{range:?}");
        let found = content(files, &stored, Some(range)).await;
        refused(&what, found, InvalidInput)?;
    }
    Ok(())
}

async fn the_files_of_others_do_not_exist(files: &Files) -> Checked {
    let (alice, bob) = (someone("alice"), someone("bob"));
    let stored = put(files, &alice, "a", "secret").await?;
    let foreign = files.find(&bob, stored.id).await;
    let unknown = files.find(&bob, FileId::nil()).await;
    let messages =
        [foreign, unknown].map(|found| found.err().map(|error| (error.kind(), error.to_string())));
    let [Some(foreign), Some(unknown)] = messages else {
        return Err(Failure::new("a file of another owner was found"));
    };
    equal("the kind", foreign.0, unknown.0)?;
    let without_id = |message: String, id: FileId| message.replace(&id.to_string(), "ID");
    let foreign = without_id(foreign.1, stored.id);
    equal("the message", foreign, without_id(unknown.1, FileId::nil()))?;
    let read = files.read(&bob, stored.id, None).await;
    refused("reading", read, NotFound)?;
    let removed = files.remove(&bob, stored.id).await;
    refused("deleting", removed, NotFound)?;
    equal("the list", files.list(&bob, None, 10).await?, vec![])?;
    equal("the usage", files.usage(&alice).await?, Usage::new(1, 6))?;
    must_hold(files, "the file", &stored, b"secret").await
}

async fn equal_names_are_different_files(files: &Files) -> Checked {
    let owner = someone("alice");
    let one = put(files, &owner, "a.txt", "1").await?;
    let two = put(files, &owner, "a.txt", "2").await?;
    ensure!(one.id != two.id && one.key != two.key, "two files are one");
    must_hold(files, "the first", &one, b"1").await?;
    must_hold(files, "the second", &two, b"2").await
}

async fn unusual_names_are_stored(files: &Files) -> Checked {
    let owner = someone("o'wner\" ; DROP TABLE cantle_files; -- é");
    let long = "x".repeat(255);
    let unicode = "名".repeat(85);
    for name in [
        "..",
        "../../etc/passwd",
        "a\u{1}\n.txt",
        "año 数据.csv",
        "an\u{303}o.csv",
        "#1",
        "a#1",
        "100%.txt",
        "%2e%2e",
        "a+b&c=d?.txt",
        "'; DROP TABLE cantle_files; --",
        &long,
        &unicode,
    ] {
        let new = NewFile::named(name);
        let stored = files.put_bytes(&owner, new, name.to_owned()).await?;
        let listed = files.list(&owner, None, 1).await?;
        equal(name, listed.first(), Some(&stored))?;
        must_hold(files, name, &stored, name.as_bytes()).await?;
        files.url(&stored).await?;
        files.remove(&owner, stored.id).await?;
    }
    Ok(())
}

async fn lists_are_paged_newest_first(files: &Files) -> Checked {
    let owner = someone("alice");
    let mut names = Vec::new();
    for number in 0..7 {
        let name = format!("{number}.txt");
        put(files, &owner, &name, "x").await?;
        names.insert(0, name);
    }
    // More than a page of newer files of another owner.
    let other = someone("bob");
    for _ in 0..4 {
        put(files, &other, "b", "x").await?;
    }
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = files.list(&owner, after, 3).await?;
        ensure!(page.len() <= 3, "a page of 3 has {}", page.len());
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        listed.extend(page.into_iter().map(|record| record.filename));
        ensure!(
            listed.len() <= names.len(),
            "the pages repeat files: {listed:?}"
        );
    }
    equal("the names", listed, names)
}

async fn a_deleted_file_is_gone(files: &Files) -> Checked {
    let owner = someone("alice");
    let stored = put(files, &owner, "a", "x").await?;
    let other = put(files, &owner, "b", "yz").await?;
    let removed = files.remove(&owner, stored.id).await?;
    equal("what was deleted", &removed, &stored)?;
    let found = files.find(&owner, stored.id).await;
    refused("finding", found, NotFound)?;
    let removed = files.remove(&owner, stored.id).await;
    refused("deleting", removed, NotFound)?;
    let object = files.content(&stored, None).await;
    refused("the object", object, Damaged)?;
    equal("the list", files.list(&owner, None, 10).await?, vec![other])?;
    equal("the usage", files.usage(&owner).await?, Usage::new(1, 2))
}

async fn a_file_is_deleted_once(files: &Files) -> Checked {
    let owner = someone("alice");
    let stored = put(files, &owner, "a", "x").await?;
    put(files, &owner, "b", "yz").await?;
    let mut deleted = 0;
    for deletion in join_all((0..4).map(|_| files.remove(&owner, stored.id))).await {
        match deletion {
            Ok(_) => deleted += 1,
            Err(error) => equal("the error", error.kind(), NotFound)?,
        }
    }
    equal("successful deletions", deleted, 1)?;
    equal("the usage", files.usage(&owner).await?, Usage::new(1, 2))
}

fn limited(files: &Files, quota: Quota) -> Files {
    files.clone().with_limits(Limits::new(1 << 30, quota))
}

async fn a_quota_of_files_is_kept(files: &Files) -> Checked {
    let files = limited(files, Quota::new(2, 100));
    let owner = someone("alice");
    let first = put(&files, &owner, "a", "1").await?;
    put(&files, &owner, "b", "2").await?;
    let third = put(&files, &owner, "c", "3").await;
    refused("a third file", third, QuotaExceeded)?;
    put(&files, &someone("bob"), "a", "1").await?;
    files.remove(&owner, first.id).await?;
    put(&files, &owner, "c", "3").await?;
    Ok(())
}

async fn a_quota_of_bytes_is_kept(files: &Files) -> Checked {
    let files = limited(files, Quota::new(100, 10));
    let owner = someone("alice");
    put(&files, &owner, "a", "123456").await?;
    let second = put(&files, &owner, "b", "12345").await;
    refused("11 bytes", second, QuotaExceeded)?;
    put(&files, &owner, "b", "1234").await?;
    equal("the usage", files.usage(&owner).await?, Usage::new(2, 10))
}

async fn concurrent_uploads_keep_the_quota(files: &Files) -> Checked {
    for quota in [Quota::new(3, 100), Quota::new(100, 3)] {
        let files = limited(files, quota);
        let owner = someone("alice");
        let uploads = (0..8).map(|_| put(&files, &owner, "a", "x"));
        let mut stored = 0;
        for upload in join_all(uploads).await {
            match upload {
                Ok(_) => stored += 1,
                Err(error) => equal("the error", error.kind(), QuotaExceeded)?,
            }
        }
        equal("the stored files", stored, 3)?;
        equal("the usage", files.usage(&owner).await?, Usage::new(3, 3))?;
        equal("the list", files.list(&owner, None, 10).await?.len(), 3)?;
    }
    Ok(())
}

async fn a_large_file_is_refused_while_it_comes(files: &Files) -> Checked {
    let limits = Limits::new(1 << 20, Quota::default());
    let files = files.clone().with_limits(limits);
    // It never ends.
    let source = stream::repeat_with(|| Ok::<_, FilesError>(Bytes::from_static(&[0; 65_536])));
    let owner = someone("alice");
    let stored = files.put(&owner, NewFile::named("a"), source).await;
    refused("an endless file", stored, TooLarge)?;
    equal("the usage", files.usage(&owner).await?, Usage::new(0, 0))
}

async fn a_source_that_fails_leaves_nothing(files: &Files) -> Checked {
    let owner = someone("alice");
    let chunk = Bytes::from(vec![1; 9 << 20]);
    let source = stream::iter([Ok(chunk), Err(std::io::Error::other("broken"))]);
    let stored = files.put(&owner, NewFile::named("a"), source).await;
    refused("a broken source", stored, Source)?;
    equal("the usage", files.usage(&owner).await?, Usage::new(0, 0))?;
    equal("the list", files.list(&owner, None, 10).await?, vec![])
}

async fn a_sweep_keeps_what_has_a_record(files: &Files) -> Checked {
    let owner = someone("alice");
    let stored = put(files, &owner, "a", "kept").await?;
    // Old enough that other cases, and other users of the store, lose nothing.
    files.sweep(Duration::from_secs(3600)).await?;
    must_hold(files, "the file", &stored, b"kept").await
}

async fn invalid_owners_are_refused(files: &Files) -> Checked {
    for owner in ["", "a\0b", &"x".repeat(256)] {
        let stored = put(files, owner, "a", "x").await;
        refused("an invalid owner", stored, InvalidInput)?;
    }
    Ok(())
}
