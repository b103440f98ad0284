//! Writes: atomic.

use cantle_core::sandbox::ByteStream;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::prelude::*;

cases! { cases for Harness:
    a_write_creates_parent_directories,
    a_write_replaces_a_file_whole,
    a_write_of_another_size_fails,
    a_failed_write_leaves_nothing,
    a_failed_write_keeps_the_old_file,
    a_cancelled_write_leaves_no_file,
    writes_to_one_file_do_not_mix,
}

/// Yields `size` bytes, notifies `waiting` at the next poll, and yields `size` more once `gate` is
/// notified.
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

async fn a_write_creates_parent_directories(bench: &Bench<'_>) -> Checked {
    let file = path("one/two/three/file")?;
    bench.write_bytes(&file, "text".into()).await?;
    bench
        .must_print("the file", "cat one/two/three/file", "text")
        .await
}

async fn a_write_replaces_a_file_whole(bench: &Bench<'_>) -> Checked {
    const HALF: usize = 100_000;
    let file = path("dir/file")?;
    bench.write_bytes(&file, "old".into()).await?;
    let [waiting, gate] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    let data = in_two_parts(HALF, Arc::clone(&waiting), Arc::clone(&gate));
    let write = bench.write(&file, WriteOptions::default(), data);
    let check = async {
        let requested = waiting.notified();
        within("a request for the second half", PROMPT_LIMIT, requested).await?;
        let partial = read(&**bench, &file).await?;
        gate.notify_one();
        same_bytes("the file while it is replaced", &partial, b"old")
    };
    let (written, checked) = tokio::join!(write, check);
    checked?;
    written?;
    let new = read(&**bench, &file).await?;
    same_bytes("the file afterwards", &new, &[b'n'; 2 * HALF])?;
    must_hold_only(bench, "dir", &["file"]).await
}

async fn a_write_of_another_size_fails(bench: &Bench<'_>) -> Checked {
    bench.mkdir(&path("dir")?).await?;
    for size in [0, 3, 5, 5_000_000] {
        let data = Box::pin(stream::iter([Ok(Bytes::from_static(b"four"))]));
        let options = WriteOptions::default().with_size(size);
        let written = bench.write(&path("dir/file")?, options, data).await;
        let what = format!("writing 4 bytes where {size} were announced");
        refused(&what, written, &[InvalidInput])?;
    }
    must_hold_only(bench, "dir", &[]).await
}

/// Yields some data, then an error.
fn failing() -> ByteStream {
    let error = SandboxError::new(PermissionDenied, "the source failed");
    let data = Bytes::from(vec![b'n'; 200_000]);
    Box::pin(stream::iter([Ok(data), Err(error)]))
}

async fn a_failed_write_leaves_nothing(bench: &Bench<'_>) -> Checked {
    bench.mkdir(&path("dir")?).await?;
    let file = path("dir/file")?;
    let written = bench.write(&file, WriteOptions::default(), failing());
    let error = written.await.err().map(|error| error.kind());
    let what = "the error of a write whose data failed";
    equal(what, error, Some(PermissionDenied))?;
    must_hold_only(bench, "dir", &[]).await
}

async fn a_failed_write_keeps_the_old_file(bench: &Bench<'_>) -> Checked {
    let file = path("dir/file")?;
    bench.write_bytes(&file, "old".into()).await?;
    let written = bench.write(&file, WriteOptions::default(), failing());
    ensure!(
        written.await.is_err(),
        "a write whose data failed succeeded"
    );
    bench.must_hold("the file", &file, b"old").await?;
    must_hold_only(bench, "dir", &["file"]).await
}

async fn a_cancelled_write_leaves_no_file(bench: &Bench<'_>) -> Checked {
    let file = path("dir/file")?;
    let [waiting, gate] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    let data = in_two_parts(1000, Arc::clone(&waiting), gate);
    let write = bench.write(&file, WriteOptions::default(), data);
    tokio::select! {
        _ = write => ensure!(false, "the write ended before its data did"),
        requested = within("a request for the second half", PROMPT_LIMIT, waiting.notified()) => requested?,
    }
    let there = bench.is_file(&file).await?;
    ensure!(!there, "a cancelled write left a partial file");
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
        bench.write(&file, options, Box::pin(pieces))
    });
    try_join_all(writes).await?;
    let content = read(&**bench, &file).await?;
    let one = content.first().copied().unwrap_or_default();
    same_bytes("the file", &content, &[one; PIECES * PIECE])
}

async fn must_hold_only(bench: &Bench<'_>, directory: &str, names: &[&str]) -> Checked {
    let listed = bench.list(&path(directory)?).await?;
    let listed: Vec<String> = listed.iter().map(|info| info.path.to_string()).collect();
    equal("the directory", listed, names.to_vec())
}
