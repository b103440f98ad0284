//! Writes: whole or not at all.

use std::sync::Arc;

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteStream, SandboxError, SandboxErrorKind, SandboxExt as _, WriteOptions,
};
use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, stream};
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::super::check::{Checked, ensure, equal, refused, same_bytes, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, SOON, path};
use super::case;
use super::files::read;

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(a_write_makes_the_directories_above),
        case!(a_write_replaces_a_file_whole),
        case!(a_write_of_another_size_fails),
        case!(a_failed_write_leaves_nothing),
        case!(a_failed_write_keeps_what_was_there),
        case!(a_write_that_is_given_up_leaves_no_file),
        case!(writes_to_one_file_do_not_mix),
    ]
}

/// Some bytes, then nothing until `gate` opens, then the rest. `waiting` is told when the first
/// bytes have been taken and more are asked for.
fn in_two_parts(size: usize, waiting: Arc<Notify>, gate: Arc<Notify>) -> ByteStream {
    let first = Bytes::from(vec![b'n'; size]);
    let second = first.clone();
    let rest = stream::once(async move {
        waiting.notify_one();
        gate.notified().await;
        Ok(second)
    });
    Box::pin(stream::iter([Ok(first)]).chain(rest))
}

async fn a_write_makes_the_directories_above(bench: &Bench<'_>) -> Checked {
    let file = path("one/two/three/file")?;
    bench.sandbox.write_bytes(&file, "text".into()).await?;
    equal(
        "the file",
        bench.stdout("cat one/two/three/file").await?,
        "text",
    )
}

async fn a_write_replaces_a_file_whole(bench: &Bench<'_>) -> Checked {
    const HALF: usize = 100_000;
    let sandbox = &bench.sandbox;
    let file = path("dir/file")?;
    sandbox.write_bytes(&file, "old".into()).await?;
    let [waiting, gate] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    let data = in_two_parts(HALF, Arc::clone(&waiting), Arc::clone(&gate));
    let write = sandbox.write(&file, WriteOptions::default(), data);
    let look = async {
        within("a request for the second half", SOON, waiting.notified()).await?;
        let half_way = read(&**sandbox, &file).await?;
        gate.notify_one();
        same_bytes("the file while it is replaced", &half_way, b"old")
    };
    let (written, looked) = tokio::join!(write, look);
    looked?;
    written?;
    let new = read(&**sandbox, &file).await?;
    same_bytes("the file afterwards", &new, &[b'n'; 2 * HALF])?;
    must_hold_only(bench, "dir", &["file"]).await
}

async fn a_write_of_another_size_fails(bench: &Bench<'_>) -> Checked {
    bench.sandbox.mkdir(&path("dir")?).await?;
    for size in [0, 3, 5, 5_000_000] {
        let data = Box::pin(stream::iter([Ok(Bytes::from_static(b"four"))]));
        let options = WriteOptions::default().with_size(size);
        let written = bench.sandbox.write(&path("dir/file")?, options, data).await;
        let what = format!("writing 4 bytes where {size} were announced");
        refused(&what, written, &[SandboxErrorKind::InvalidInput])?;
    }
    must_hold_only(bench, "dir", &[]).await
}

/// Some data, then an error.
fn failing() -> ByteStream {
    let error = SandboxError::new(SandboxErrorKind::PermissionDenied, "the source failed");
    let data = Bytes::from(vec![b'n'; 200_000]);
    Box::pin(stream::iter([Ok(data), Err(error)]))
}

async fn a_failed_write_leaves_nothing(bench: &Bench<'_>) -> Checked {
    bench.sandbox.mkdir(&path("dir")?).await?;
    let file = path("dir/file")?;
    let written = bench
        .sandbox
        .write(&file, WriteOptions::default(), failing());
    let error = written.await.err().map(|error| error.kind());
    equal(
        "the error of a write whose data failed",
        error,
        Some(SandboxErrorKind::PermissionDenied),
    )?;
    must_hold_only(bench, "dir", &[]).await
}

async fn a_failed_write_keeps_what_was_there(bench: &Bench<'_>) -> Checked {
    let file = path("dir/file")?;
    bench.sandbox.write_bytes(&file, "old".into()).await?;
    let written = bench
        .sandbox
        .write(&file, WriteOptions::default(), failing());
    ensure!(
        written.await.is_err(),
        "a write whose data failed succeeded"
    );
    same_bytes("the file", &read(&*bench.sandbox, &file).await?, b"old")?;
    must_hold_only(bench, "dir", &["file"]).await
}

async fn a_write_that_is_given_up_leaves_no_file(bench: &Bench<'_>) -> Checked {
    let file = path("dir/file")?;
    let [waiting, gate] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    let data = in_two_parts(1000, Arc::clone(&waiting), gate);
    let write = bench.sandbox.write(&file, WriteOptions::default(), data);
    tokio::select! {
        _ = write => ensure!(false, "the write ended before its data"),
        asked = within("a request for the second half", SOON, waiting.notified()) => asked?,
    }
    let there = bench.sandbox.is_file(&file).await?;
    ensure!(!there, "a write that was given up left half a file");
    Ok(())
}

async fn writes_to_one_file_do_not_mix(bench: &Bench<'_>) -> Checked {
    const PIECES: usize = 10;
    const PIECE: usize = 30_000;
    let file = path("file")?;
    let writes = (b'a'..=b'h').map(|letter| {
        let pieces = stream::iter(0..PIECES).then(move |_| async move {
            yield_now().await;
            Ok(Bytes::from(vec![letter; PIECE]))
        });
        let options = WriteOptions::default();
        bench.sandbox.write(&file, options, Box::pin(pieces))
    });
    try_join_all(writes).await?;
    let content = read(&*bench.sandbox, &file).await?;
    let one = content.first().copied().unwrap_or_default();
    same_bytes("the file", &content, &[one; PIECES * PIECE])
}

async fn must_hold_only(bench: &Bench<'_>, directory: &str, names: &[&str]) -> Checked {
    let listed = bench.sandbox.list(&path(directory)?).await?;
    let listed: Vec<String> = listed.iter().map(|info| info.path.to_lossy()).collect();
    equal("what is in the directory", listed, names.to_vec())
}
