//! Files: content, modes, ranges and names, as seen by the caller and by commands.

use cantle_core::sandbox::FileInfo;
use futures_util::TryStreamExt as _;

use super::prelude::*;

cases! { cases for Harness:
    files_are_read_as_they_were_written,
    commands_and_files_share_one_view,
    modes_are_kept,
    a_range_of_a_file_can_be_read,
    file_names_may_hold_any_bytes,
    a_name_that_is_too_long_is_refused,
    an_absolute_path_is_the_same_file,
    missing_files_are_not_found,
    a_directory_is_no_file,
    a_file_is_no_directory,
    a_pipe_is_refused_at_once,
    a_device_is_refused_at_once,
}

async fn files_are_read_as_they_were_written(bench: &Bench<'_>) -> Checked {
    let file = path("file")?;
    for size in [0, 1, 4096, 65_535, 65_537, 3_000_000] {
        let data = noise(size);
        for piece in [size.max(1), 1000] {
            let pieces: Vec<_> = data
                .chunks(piece)
                .map(|it| Ok(Bytes::copy_from_slice(it)))
                .collect();
            let options = WriteOptions::default().with_size(size as u64);
            let written = Box::pin(stream::iter(pieces));
            bench.write(&file, options, written).await?;
            bench.must_hold("the file", &file, &data).await?;
        }
        let info = bench.stat(&file).await?;
        let expected = FileInfo::new(file.clone(), FileKind::File, size as u64, info.mode);
        equal("`stat`", info, expected)?;
    }
    // Without an announced size.
    let pieces = [b"one ".as_slice(), b"", b"two"].map(|it| Ok(Bytes::from_static(it)));
    let written = Box::pin(stream::iter(pieces));
    bench.write(&file, WriteOptions::default(), written).await?;
    bench.must_hold("the file", &file, b"one two").await
}

async fn commands_and_files_share_one_view(bench: &Bench<'_>) -> Checked {
    let file = path("made/by us")?;
    bench.write_bytes(&file, "ours\n".into()).await?;
    bench
        .must_print("as a command reads it", "cat 'made/by us'", "ours\n")
        .await?;
    bench
        .stdout("mkdir -p other; echo theirs > other/file")
        .await?;
    let theirs = read(&**bench, &path("other/file")?).await?;
    same_bytes("a file written by a command", &theirs, b"theirs\n")
}

async fn modes_are_kept(bench: &Bench<'_>) -> Checked {
    for mode in [0o600, 0o640, 0o755, 0o444] {
        let name = format!("mode-{mode:o}");
        let file = path(&name)?;
        let options = WriteOptions::default().with_mode(mode);
        let data = Box::pin(stream::iter([Ok(Bytes::from_static(b"text"))]));
        bench.write(&file, options, data).await?;
        let info = bench.stat(&file).await?;
        ensure!(
            info.mode.is_none_or(|own| own == mode),
            "a file written with mode {mode:o} has {:o}",
            info.mode.unwrap_or_default()
        );
        let own = bench.stdout(&format!("stat -c %a {name}")).await?;
        equal("the mode a command sees", own.trim(), &*format!("{mode:o}"))?;
    }
    bench.stdout("touch tool; chmod 750 tool").await?;
    let mode = bench.stat(&path("tool")?).await?.mode;
    ensure!(
        mode.is_none_or(|own| own == 0o750),
        "a file with mode 750 is reported with {:o}",
        mode.unwrap_or_default()
    );
    Ok(())
}

async fn a_range_of_a_file_can_be_read(bench: &Bench<'_>) -> Checked {
    let data = noise(200_000);
    let file = path("file")?;
    bench.write_bytes(&file, data.clone().into()).await?;
    let size = data.len() as u64;
    let ranges = [
        (0, 0),
        (0, 1),
        (0, size),
        (1, size),
        (65_535, 3),
        (100_000, 100_000),
        (size - 1, 5),
        (size, 1),
        (size + 1000, 1),
    ];
    for (offset, length) in ranges {
        let range = ByteRange::new(offset, length);
        let pieces = bench.read(&file, range).await?;
        let bytes = pieces.try_collect::<Vec<Bytes>>().await?.concat();
        let from = data.iter().skip(offset as usize);
        let expected: Vec<u8> = from.take(length as usize).copied().collect();
        same_bytes(&format!("{length} bytes from {offset}"), &bytes, &expected)?;
    }
    let mut rest = ByteRange::all();
    rest.offset = size - 10;
    let pieces = bench.read(&file, rest).await?;
    let bytes = pieces.try_collect::<Vec<Bytes>>().await?.concat();
    same_bytes(
        "the last ten bytes",
        &bytes,
        data.split_at(data.len() - 10).1,
    )
}

/// Names that break naive quoting in command lines, headers and line-based lists.
pub(super) const UNUSUAL_NAMES: [&[u8]; 14] = [
    "größe 数.csv".as_bytes(),
    b"-rf",
    b"two\nlines",
    b"line\r\nend",
    b"tab\there",
    b"quote'\"s",
    b"$(id) `id` $HOME",
    b"*?[a]%2e{b}",
    b"back\\slash",
    b" spaces ",
    b"~",
    b"no\xff\xfeutf-8",
    b"..hidden",
    &[b'n'; 255],
];

async fn a_name_that_is_too_long_is_refused(bench: &Bench<'_>) -> Checked {
    let long = path(&"n".repeat(256))?;
    let written = bench.write_bytes(&long, "text".into()).await;
    let what = "writing under a name that is too long";
    refused(what, written, &[InvalidInput])?;
    let is_file = bench.is_file(&long).await?;
    ensure!(!is_file, "a name that is too long is a file");

    // A long path of short names may be accepted or refused.
    let deep = path(&"directory/".repeat(500))?.join("file")?;
    match bench.write_bytes(&deep, "text".into()).await {
        Ok(()) => bench.must_hold("a deep file", &deep, b"text").await,
        failed => {
            let what = "writing to a path that is too long";
            refused(what, failed, &[InvalidInput])
        }
    }
}

async fn file_names_may_hold_any_bytes(bench: &Bench<'_>) -> Checked {
    let directory = path("names")?;
    let mut expected = Vec::new();
    for name in UNUSUAL_NAMES {
        let file = directory.join(name)?;
        let data = Bytes::from_static(name);
        bench.write_bytes(&file, data).await?;
        bench.must_hold("the file", &file, name).await?;
        expected.push(SandboxPath::new(name)?);
    }
    expected.sort();
    let listed = bench.list(&directory).await?;
    let listed: Vec<_> = listed.into_iter().map(|info| info.path).collect();
    equal("the names listed", listed, expected)?;

    // Each file holds its own name, so a command can verify both.
    let script = "shopt -s dotglob; for f in *; do cat -- \"$f\" | cmp - <(printf %s \"$f\") && printf .; done";
    let request = SpawnRequest::shell(script).in_directory(directory.clone());
    let output = bench.output_of(request).await?;
    equal(
        "names as commands see them",
        String::from_utf8_lossy(&output),
        ".".repeat(UNUSUAL_NAMES.len()),
    )?;

    for name in UNUSUAL_NAMES {
        let file = directory.join(name)?;
        let moved = path("moved")?;
        bench.rename(&file, &moved).await?;
        bench.must_hold("the file moved", &moved, name).await?;
        bench.remove(&moved).await?;
    }
    equal("the remaining files", bench.list(&directory).await?, vec![])
}

async fn an_absolute_path_is_the_same_file(bench: &Bench<'_>) -> Checked {
    let absolute = bench.info().working_directory.join("below/file")?;
    bench.write_bytes(&absolute, "text".into()).await?;
    let relative = path("below/file")?;
    bench.must_hold("the file", &relative, b"text").await?;
    bench.must_hold("the file", &absolute, b"text").await?;
    let info = bench.stat(&absolute).await?;
    equal("the path from `stat`", info.path, absolute)
}

async fn missing_files_are_not_found(bench: &Bench<'_>) -> Checked {
    let missing = path("missing")?;
    let read = bench.read(&missing, ByteRange::all()).await;
    refused("reading", read, &[NotFound])?;
    refused("`stat`", bench.stat(&missing).await, &[NotFound])?;
    refused("listing", bench.list(&missing).await, &[NotFound])?;
    refused("removing", bench.remove(&missing).await, &[NotFound])?;
    let renamed = bench.rename(&missing, &path("new")?).await;
    refused("renaming", renamed, &[NotFound])?;
    let below = bench.stat(&path("missing/too")?).await;
    refused("`stat` below a missing directory", below, &[NotFound])?;
    ensure!(
        !bench.is_file(&missing).await?,
        "a missing file is reported as a file"
    );
    Ok(())
}

async fn a_directory_is_no_file(bench: &Bench<'_>) -> Checked {
    let directory = path("directory")?;
    bench.mkdir(&directory).await?;
    for path in [&directory, &SandboxPath::working_directory()] {
        let read = bench.read(path, ByteRange::all()).await;
        refused("reading a directory", read, &[NotAFile])?;
        let written = bench.write_bytes(path, "text".into()).await;
        refused("writing over a directory", written, &[NotAFile])?;
        let kind = bench.stat(path).await?.kind;
        equal("the kind of a directory", kind, FileKind::Directory)?;
    }
    Ok(())
}

async fn a_file_is_no_directory(bench: &Bench<'_>) -> Checked {
    let file = path("file")?;
    bench.write_bytes(&file, "text".into()).await?;
    let listed = bench.list(&file).await;
    refused("listing a file", listed, &[NotADirectory])?;
    let made = bench.mkdir(&file).await;
    refused("a directory where a file is", made, &[AlreadyExists])?;

    let below = file.join("below")?;
    let kinds = [NotADirectory, NotFound];
    let read = bench.read(&below, ByteRange::all()).await;
    refused("reading below a file", read, &kinds)?;
    refused("`stat` below a file", bench.stat(&below).await, &kinds)?;
    let kinds = [NotADirectory, AlreadyExists];
    let written = bench.write_bytes(&below, "text".into()).await;
    refused("writing below a file", written, &kinds)?;
    let made = bench.mkdir(&below).await;
    refused("a directory below a file", made, &kinds)
}

async fn a_pipe_is_refused_at_once(bench: &Bench<'_>) -> Checked {
    // Opening a pipe blocks until its other end opens. After a while, the command opens the other
    // end repeatedly, so that a blocked backend fails this case instead of hanging the suite.
    let rescue = format!(
        "mkfifo pipe; echo made; sleep {}; \
         while :; do exec 4<>pipe; sleep 0.2; exec 4>&-; sleep 0.1; done",
        2 * PROMPT_LIMIT.as_secs()
    );
    let _rescuer = bench.start(SpawnRequest::shell(rescue), "made").await?;

    let pipe = path("pipe")?;
    let read = bench.read(&pipe, ByteRange::all());
    let read = within("the result of reading a pipe", PROMPT_LIMIT, read).await?;
    refused("reading a pipe", read, &[NotAFile])?;
    // A write may refuse the pipe or replace it by a file.
    let write = bench.write_bytes(&pipe, "text".into());
    match within("the result of writing to a pipe", PROMPT_LIMIT, write).await? {
        Ok(()) => equal("its kind", bench.stat(&pipe).await?.kind, FileKind::File),
        error => refused("writing to a pipe", error, &[NotAFile]),
    }
}

async fn a_device_is_refused_at_once(bench: &Bench<'_>) -> Checked {
    bench
        .stdout("ln -s /dev/zero zero; ln -s /dev/full full")
        .await?;
    for name in ["zero", "full", "/dev/zero"] {
        let device = path(name)?;
        let read = bench.read(&device, ByteRange::all());
        let read = within("the result of reading a device", PROMPT_LIMIT, read).await?;
        refused(
            "reading a device",
            read,
            &[NotAFile, NotFound, OutsideSandbox],
        )?;
    }
    Ok(())
}
