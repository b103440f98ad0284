//! Reading and writing files, and refusals.

#[cfg(confined)]
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, FileKind, Sandbox, SandboxError, SandboxErrorKind,
    SandboxExt as _, WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::{on_host, open, path, read, run, soon, stdout, write};

async fn collect(mut data: ByteStream) -> Result<Vec<u8>, SandboxError> {
    let mut bytes = Vec::new();
    while let Some(piece) = data.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

async fn read_range(sandbox: &dyn Sandbox, name: &str, range: ByteRange) -> Vec<u8> {
    collect(sandbox.read(&path(name), range).await.unwrap())
        .await
        .unwrap()
}

fn pieces(pieces: &[&'static str]) -> ByteStream {
    let pieces: Vec<_> = pieces
        .iter()
        .map(|piece| Ok(Bytes::from_static(piece.as_bytes())))
        .collect();
    Box::pin(stream::iter(pieces))
}

#[tokio::test]
async fn written_file_is_read_back() {
    let sandbox = open().await;
    write(&*sandbox, "a/b/c.txt", "content").await;
    assert_eq!(read(&*sandbox, "a/b/c.txt").await, "content");
    let absolute = format!("{}/a/b/c.txt", sandbox.info().working_directory);
    assert_eq!(read(&*sandbox, &absolute).await, "content");
    assert_eq!(stdout(&*sandbox, "cat a/b/c.txt").await, "content");
    write(&*sandbox, "a/b/c.txt", "other").await;
    assert_eq!(read(&*sandbox, "a/b/c.txt").await, "other");
    write(&*sandbox, "empty", "").await;
    assert_eq!(read(&*sandbox, "empty").await, "");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn file_that_grows_while_it_is_read_is_read_in_large_pieces() {
    let sandbox = open().await;
    write(&*sandbox, "f", vec![1; 1 << 20]).await;
    let data = sandbox.read(&path("f"), ByteRange::all()).await.unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(on_host(&*sandbox, "f"))
        .unwrap();
    file.set_len(2 << 20).unwrap();
    let pieces: Vec<_> = data.take(20).collect().await;
    let sizes = pieces.into_iter().map(|piece| piece.unwrap().len());
    assert_eq!(sizes.sum::<usize>(), 2 << 20);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn byte_ranges_are_exact() {
    let sandbox = open().await;
    let content: Vec<u8> = (0..1_000_003_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    write(&*sandbox, "f", content.clone()).await;
    let size = content.len() as u64;
    for (offset, length) in [
        (0, None),
        (0, Some(0)),
        (0, Some(1)),
        (5, Some(10)),
        (262_143, Some(2)),
        (262_144, Some(262_144)),
        (262_140, Some(600_000)),
        (size - 1, None),
        (size, None),
        (size + 10, Some(5)),
        (u64::from(u32::MAX), None),
        (u64::MAX, None),
        (3, Some(u64::MAX)),
    ] {
        let mut range = ByteRange::all();
        range.offset = offset;
        range.length = length;
        let start = content.len().min(offset as usize);
        let end = length.map_or(content.len(), |length| {
            content
                .len()
                .min(start.saturating_add(usize::try_from(length).unwrap()))
        });
        let found = read_range(&*sandbox, "f", range).await;
        assert!(
            found == content[start..end],
            "{range:?}: {} bytes",
            found.len()
        );
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn chunked_stream_becomes_one_file() {
    let sandbox = open().await;
    let options = WriteOptions::default().with_size(6).with_mode(0o640);
    sandbox
        .write(&path("f"), options, pieces(&["a", "", "bcd", "ef"]))
        .await
        .unwrap();
    assert_eq!(read(&*sandbox, "f").await, "abcdef");
    let expected = FileInfo::new(path("f"), FileKind::File, 6, Some(0o640));
    assert_eq!(sandbox.stat(&path("f")).await.unwrap(), expected);

    let piece = Bytes::from(vec![b'x'; 100_000]);
    let large = stream::iter((0..50).map(move |_| Ok(piece.clone())));
    let options = WriteOptions::default().with_size(5_000_000);
    sandbox
        .write(&path("f"), options, Box::pin(large))
        .await
        .unwrap();
    assert_eq!(
        sandbox.stat(&path("f")).await.unwrap().size_bytes,
        5_000_000
    );
    assert_eq!(fs::read_dir(on_host(&*sandbox, "")).unwrap().count(), 1);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn mode_does_not_depend_on_umask() {
    let sandbox = open().await;
    for mode in [0o777, 0o600, 0o444, 0o666] {
        let options = WriteOptions::default().with_mode(mode);
        sandbox
            .write(&path("f"), options, pieces(&["x"]))
            .await
            .unwrap();
        assert_eq!(sandbox.stat(&path("f")).await.unwrap().mode, Some(mode));
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn failed_write_keeps_the_old_file() {
    let sandbox = open().await;
    write(&*sandbox, "f", "old").await;
    let broken = |before: usize| -> ByteStream {
        let piece = Bytes::from(vec![b'x'; 300_000]);
        let good = stream::iter((0..before).map(move |_| Ok(piece.clone())));
        let bad = stream::iter([Err(SandboxError::unsupported("the source failed"))]);
        Box::pin(good.chain(bad))
    };
    let sized = |size| WriteOptions::default().with_size(size);
    let any = WriteOptions::default();
    for (options, data, kind) in [
        (any, broken(0), SandboxErrorKind::Unsupported),
        (any, broken(3), SandboxErrorKind::Unsupported),
        (sized(4), pieces(&["abc"]), SandboxErrorKind::InvalidInput),
        (sized(2), pieces(&["abc"]), SandboxErrorKind::InvalidInput),
        (sized(300_001), broken(1), SandboxErrorKind::Unsupported),
        (sized(600_001), broken(3), SandboxErrorKind::InvalidInput),
    ] {
        let error = sandbox.write(&path("f"), options, data).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(read(&*sandbox, "f").await, "old");
        assert_eq!(stdout(&*sandbox, "ls -A").await, "f\n");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn dropped_write_leaves_nothing() {
    let sandbox = open().await;
    let piece = Bytes::from(vec![b'x'; 300_000]);
    let (asked, begun) = tokio::sync::oneshot::channel();
    // The first chunk has been written when the next one is requested.
    let more = stream::once(async move {
        asked.send(()).unwrap();
        std::future::pending().await
    });
    let endless = stream::iter([Ok(piece)]).chain(more);
    let file = path("d/f");
    let writing = sandbox.write(&file, WriteOptions::default(), Box::pin(endless));
    let directory = on_host(&*sandbox, "d");
    tokio::select! {
        _ = writing => panic!("it ended"),
        begun = begun => begun.unwrap(),
    }
    let is_empty = || fs::read_dir(&directory).unwrap().count() == 0;
    crate::support::eventually("the draft is removed", is_empty).await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn irregular_files_are_refused_without_blocking() {
    let sandbox = open().await;
    let line = "mkfifo fifo; mkdir dir; ln -s fifo link; \
                python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'";
    run(&*sandbox, line).await;
    for name in ["fifo", "dir", "link", "socket", "."] {
        let error = soon(sandbox.read(&path(name), ByteRange::all()))
            .await
            .err()
            .unwrap();
        assert_eq!(error.kind(), SandboxErrorKind::NotAFile, "{name}: {error}");
        assert!(!sandbox.is_file(&path(name)).await.unwrap());
    }
    for name in ["fifo", "dir", "socket", "."] {
        let error = soon(sandbox.write_bytes(&path(name), "x".into()))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::NotAFile, "{name}: {error}");
    }
    let missing = sandbox
        .read(&path("missing"), ByteRange::all())
        .await
        .err()
        .unwrap();
    assert_eq!(missing.kind(), SandboxErrorKind::NotFound);
    write(&*sandbox, "file", "x").await;
    let below = sandbox
        .write_bytes(&path("file/below"), "x".into())
        .await
        .unwrap_err();
    assert_eq!(below.kind(), SandboxErrorKind::NotADirectory);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn symlinks_are_followed_inside_and_refused_outside() {
    let sandbox = open().await;
    write(&*sandbox, "d/f", "inside").await;
    run(
        &*sandbox,
        "ln -s d/f relative; ln -s $PWD/d/f absolute; ln -s $PWD/d dir; ln -s ../work/d/f up; \
         ln -s relative twice; ln -s $PWD/dir/f mixed; ln -s loop loop; ln -s missing dangling; \
         ln -s /etc/passwd out; ln -s ../../../../../../etc/passwd far; ln -s / slash; \
         ln -s $PWD/slash/etc/passwd hidden; ln -s /proc/self/root magic; \
         ln -s ${PWD%/work}x beside; ln -s $PWD/../../.. climbing",
    )
    .await;
    for name in ["relative", "absolute", "dir/f", "up", "twice", "mixed"] {
        assert_eq!(read(&*sandbox, name).await, "inside", "{name}");
    }
    for (name, kind) in [
        ("loop", SandboxErrorKind::NotFound),
        ("dangling", SandboxErrorKind::NotFound),
        ("out", SandboxErrorKind::OutsideSandbox),
        ("far", SandboxErrorKind::OutsideSandbox),
        ("slash/etc/passwd", SandboxErrorKind::OutsideSandbox),
        ("hidden", SandboxErrorKind::OutsideSandbox),
        ("magic/etc/passwd", SandboxErrorKind::OutsideSandbox),
        ("beside", SandboxErrorKind::OutsideSandbox),
        ("climbing", SandboxErrorKind::OutsideSandbox),
        ("/etc/passwd", SandboxErrorKind::OutsideSandbox),
        ("/", SandboxErrorKind::OutsideSandbox),
    ] {
        let error = sandbox
            .read(&path(name), ByteRange::all())
            .await
            .err()
            .unwrap();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(!sandbox.is_file(&path(name)).await.unwrap(), "{name}");
    }
    for name in ["slash/tmp/x", "hidden/x", "out/x", "/tmp/x"] {
        let error = sandbox
            .write_bytes(&path(name), "x".into())
            .await
            .unwrap_err();
        assert!(
            matches!(error.kind(), SandboxErrorKind::OutsideSandbox),
            "{name}: {error}"
        );
        let error = sandbox.mkdir(&path(name)).await.unwrap_err();
        assert_eq!(
            error.kind(),
            SandboxErrorKind::OutsideSandbox,
            "{name}: {error}"
        );
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn final_symlink_is_not_followed() {
    let sandbox = open().await;
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("target");
    fs::write(&target, "precious").unwrap();
    let line = format!(
        "for i in 1 2 3; do ln -s {} l$i; done; echo x > inside; ln -s inside l4",
        target.display()
    );
    run(&*sandbox, &line).await;
    let expected = sandbox.stat(&path("l1")).await.unwrap();
    assert_eq!(expected.kind, FileKind::Symlink);
    write(&*sandbox, "l1", "mine").await;
    assert_eq!(
        sandbox.stat(&path("l1")).await.unwrap().kind,
        FileKind::File
    );
    sandbox.rename(&path("l2"), &path("moved")).await.unwrap();
    assert_eq!(
        sandbox.stat(&path("moved")).await.unwrap().kind,
        FileKind::Symlink
    );
    sandbox.remove(&path("l3")).await.unwrap();
    sandbox.remove(&path("l4")).await.unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!(stdout(&*sandbox, "ls").await, "inside\nl1\nmoved\n");
    sandbox.close().await.unwrap();
}

/// A race that a check of the path before its use would lose thousands of times a second.
#[tokio::test(flavor = "multi_thread")]
async fn swapping_directory_and_symlink_never_escapes() {
    let sandbox = open().await;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), "secret").unwrap();
    write(&*sandbox, "d/f", "inside").await;
    let work = on_host(&*sandbox, "");
    std::os::unix::fs::symlink(outside.path(), work.join("fake")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let (real, fake) = (work.join("d"), work.join("fake"));
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &real, CWD, &fake, RenameFlags::EXCHANGE).unwrap();
            }
        }
    });
    let mut inside = 0;
    let started = std::time::Instant::now();
    let race = Duration::from_secs(1);
    // Longer if no read has succeeded inside.
    while started.elapsed() < race || inside == 0 && started.elapsed() < 30 * race {
        match sandbox.read_bytes(&path("d/f"), 100).await {
            Ok(content) => {
                assert_eq!(content, "inside");
                inside += 1;
            }
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    SandboxErrorKind::NotFound | SandboxErrorKind::OutsideSandbox
                ),
                "{error:?}"
            ),
        }
        let _ = sandbox.write_bytes(&path("d/new"), "x".into()).await;
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(inside > 0);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    sandbox.close().await.unwrap();
}

#[cfg(confined)]
#[tokio::test]
async fn attributes_are_read_and_bounded() {
    let sandbox = open().await;
    let outside = tempfile::NamedTempFile::new().unwrap();
    let none = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(outside.path(), "user.mine.secret", b"x", none).is_err() {
        return cantle_testkit::lane::skip("the file system has no attributes");
    }
    let script = "import os
os.mkdir('d'); os.mkfifo('pipe'); os.symlink('d', 'link'); os.symlink('OUTSIDE', 'out')
for name in 'all', 'large': open(name, 'w')
for name, value in {'mine.a': b'1', 'mine.': b'', 'mine.raw': b'\\xff', 'other': b'2'}.items():
    os.setxattr('all', 'user.' + name, value)
os.setxattr('d', 'user.mine.of', b'a directory')
for n in range(4): os.setxattr('large', f'user.mine.{n}', b'x' * 900)"
        .replace("OUTSIDE", &outside.path().to_string_lossy());
    stdout(&*sandbox, &format!("python3 -c \"{script}\"")).await;
    let names = ["all", "d", "pipe", "link", "out", "gone", "/etc/passwd"];
    let found = sandbox.attributes(&names.map(path), "user.mine.").await;
    let texts = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
        let owned = entries
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        owned.collect()
    };
    let mut expected = vec![
        texts(&[("a", "1"), ("", "")]),
        texts(&[("of", "a directory")]),
    ];
    expected.resize(names.len(), BTreeMap::new());
    assert_eq!(found.unwrap(), expected);
    let found = sandbox.attributes(&[path("large")], "user.").await.unwrap();
    assert_eq!(found[0].len(), 4);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn directories_are_created_listed_and_removed() {
    let sandbox = open().await;
    sandbox.mkdir(&path("a/b/c")).await.unwrap();
    sandbox.mkdir(&path("a/b/c")).await.unwrap();
    sandbox.mkdir(&path(".")).await.unwrap();
    write(&*sandbox, "a/file", "12345").await;
    run(&*sandbox, "ln -s file a/link; mkfifo a/fifo; touch $'a/new\\nline' $'a/\\xff'; chmod 600 a/fifo a/new* a/?; chmod 700 a/b").await;
    let mut listed = sandbox.list(&path("a")).await.unwrap();
    for entry in &mut listed {
        if entry.kind == FileKind::Directory || entry.kind == FileKind::Symlink {
            entry.size_bytes = 0;
        }
    }
    let entry = |name: &[u8], kind, size, mode| {
        FileInfo::new(
            cantle_core::sandbox::SandboxPath::new(name).unwrap(),
            kind,
            size,
            Some(mode),
        )
    };
    let expected = [
        entry(b"b", FileKind::Directory, 0, 0o700),
        entry(b"fifo", FileKind::Other, 0, 0o600),
        entry(b"file", FileKind::File, 5, 0o644),
        entry(b"link", FileKind::Symlink, 0, 0o777),
        entry(b"new\nline", FileKind::File, 0, 0o600),
        entry(b"\xff", FileKind::File, 0, 0o600),
    ];
    assert_eq!(listed, expected);
    for (name, kind) in [
        ("a/file", SandboxErrorKind::NotADirectory),
        ("a/fifo", SandboxErrorKind::NotADirectory),
        ("missing", SandboxErrorKind::NotFound),
    ] {
        assert_eq!(
            sandbox.list(&path(name)).await.unwrap_err().kind(),
            kind,
            "{name}"
        );
    }
    for (name, kind) in [
        ("a/file", SandboxErrorKind::AlreadyExists),
        ("a/link", SandboxErrorKind::AlreadyExists),
        ("a/file/x", SandboxErrorKind::NotADirectory),
    ] {
        assert_eq!(
            sandbox.mkdir(&path(name)).await.unwrap_err().kind(),
            kind,
            "{name}"
        );
    }
    sandbox.remove(&path("a")).await.unwrap();
    assert_eq!(sandbox.list(&path(".")).await.unwrap(), []);
    let error = sandbox.remove(&path("a")).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotFound);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn fixed_directories_cannot_be_removed_or_renamed() {
    let sandbox = open().await;
    let work = sandbox.info().working_directory.clone();
    let root = work.parent().unwrap();
    let temporary = root.join("tmp").unwrap();
    let places = [
        (path("."), SandboxErrorKind::InvalidInput),
        (work, SandboxErrorKind::InvalidInput),
        (temporary, SandboxErrorKind::InvalidInput),
        (root.clone(), SandboxErrorKind::OutsideSandbox),
    ];
    for (place, kind) in places {
        let error = sandbox.remove(&place).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{place}: {error}");
        assert!(sandbox.rename(&place, &path("x")).await.is_err(), "{place}");
    }
    assert_eq!(
        stdout(&*sandbox, "cd $TMPDIR && pwd").await,
        format!("{root}/tmp\n")
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn files_and_directories_are_renamed() {
    let sandbox = open().await;
    write(&*sandbox, "a", "one").await;
    write(&*sandbox, "d/b", "two").await;
    sandbox.rename(&path("a"), &path("d/b")).await.unwrap();
    assert_eq!(read(&*sandbox, "d/b").await, "one");
    sandbox.rename(&path("d"), &path("e")).await.unwrap();
    assert_eq!(read(&*sandbox, "e/b").await, "one");
    for (from, to, kind) in [
        ("missing", "x", SandboxErrorKind::NotFound),
        ("e/b", "missing/x", SandboxErrorKind::NotFound),
        ("e/b", "/tmp/x", SandboxErrorKind::OutsideSandbox),
        ("e/b", "e", SandboxErrorKind::AlreadyExists),
        ("e", "e/inside", SandboxErrorKind::InvalidInput),
    ] {
        let error = sandbox.rename(&path(from), &path(to)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{from} {to}: {error}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn unusual_names_work() {
    let sandbox = open().await;
    let longest = "x".repeat(255);
    for name in ["a b", "new\nline", "-rf", "ü", "\\", "*", longest.as_str()] {
        write(&*sandbox, name, name.to_owned()).await;
        assert_eq!(read(&*sandbox, name).await, name);
    }
    let too_long = path(&"x".repeat(256));
    let error = sandbox
        .write_bytes(&too_long, "x".into())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::InvalidInput);
    assert!(!sandbox.is_file(&too_long).await.unwrap());
    let deep = path(&"d/".repeat(1500));
    sandbox.mkdir(&deep).await.unwrap();
    let too_deep = path(&"d/".repeat(5000));
    let error = sandbox.mkdir(&too_deep).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::InvalidInput);
    sandbox.close().await.unwrap();
}
