//! Files: what is written is what is read, by us and by commands, under any name.

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, FileInfo, FileKind, Sandbox, SandboxErrorKind, SandboxExt as _, SandboxPath,
    SpawnRequest, WriteOptions,
};
use futures_util::{TryStreamExt as _, stream};

use super::super::check::{Checked, ensure, equal, refused, same_bytes, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, SOON, path, read_until, take_output};
use super::case;

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(files_are_read_as_they_were_written),
        case!(commands_and_files_share_one_view),
        case!(modes_are_kept),
        case!(a_range_of_a_file_can_be_read),
        case!(names_may_be_anything),
        case!(a_name_that_is_too_long_is_refused),
        case!(an_absolute_path_is_the_same_file),
        case!(what_is_missing_is_not_found),
        case!(a_directory_is_no_file),
        case!(a_file_is_no_directory),
        case!(a_pipe_is_refused_at_once),
        case!(a_device_is_refused_at_once),
    ]
}

pub(super) async fn read(sandbox: &dyn Sandbox, path: &SandboxPath) -> Checked<Bytes> {
    Ok(sandbox.read_bytes(path, 100_000_000).await?)
}

/// Bytes that don't repeat within any buffer.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let numbers =
        (0..count.div_ceil(4)).flat_map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes());
    numbers.take(count).collect()
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
            bench.sandbox.write(&file, options, written).await?;
            same_bytes("the file", &read(&*bench.sandbox, &file).await?, &data)?;
        }
        let info = bench.sandbox.stat(&file).await?;
        let expected = FileInfo::new(file.clone(), FileKind::File, size as u64, info.mode);
        equal("`stat`", info, expected)?;
    }
    // Without a size said before.
    let pieces = [b"one ".as_slice(), b"", b"two"].map(|it| Ok(Bytes::from_static(it)));
    let written = Box::pin(stream::iter(pieces));
    bench
        .sandbox
        .write(&file, WriteOptions::default(), written)
        .await?;
    same_bytes("the file", &read(&*bench.sandbox, &file).await?, b"one two")
}

async fn commands_and_files_share_one_view(bench: &Bench<'_>) -> Checked {
    let file = path("made/by us")?;
    bench.sandbox.write_bytes(&file, "ours\n".into()).await?;
    equal(
        "as a command reads it",
        bench.stdout("cat 'made/by us'").await?,
        "ours\n",
    )?;
    bench
        .stdout("mkdir -p other; echo theirs > other/file")
        .await?;
    let theirs = read(&*bench.sandbox, &path("other/file")?).await?;
    same_bytes("what a command wrote", &theirs, b"theirs\n")
}

async fn modes_are_kept(bench: &Bench<'_>) -> Checked {
    for mode in [0o600, 0o640, 0o755, 0o444] {
        let name = format!("mode-{mode:o}");
        let file = path(&name)?;
        let options = WriteOptions::default().with_mode(mode);
        let data = Box::pin(stream::iter([Ok(Bytes::from_static(b"text"))]));
        bench.sandbox.write(&file, options, data).await?;
        let info = bench.sandbox.stat(&file).await?;
        ensure!(
            info.mode.is_none_or(|own| own == mode),
            "a file written with mode {mode:o} has {:o}",
            info.mode.unwrap_or_default()
        );
        let own = bench.stdout(&format!("stat -c %a {name}")).await?;
        equal("the mode a command sees", own.trim(), &*format!("{mode:o}"))?;
    }
    bench.stdout("touch tool; chmod 750 tool").await?;
    let mode = bench.sandbox.stat(&path("tool")?).await?.mode;
    ensure!(
        mode.is_none_or(|own| own == 0o750),
        "a file with mode 750 is said to have {:o}",
        mode.unwrap_or_default()
    );
    Ok(())
}

async fn a_range_of_a_file_can_be_read(bench: &Bench<'_>) -> Checked {
    let data = noise(200_000);
    let file = path("file")?;
    bench
        .sandbox
        .write_bytes(&file, data.clone().into())
        .await?;
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
        let pieces = bench.sandbox.read(&file, range).await?;
        let bytes = pieces.try_collect::<Vec<Bytes>>().await?.concat();
        let from = data.iter().skip(offset as usize);
        let expected: Vec<u8> = from.take(length as usize).copied().collect();
        same_bytes(&format!("{length} bytes from {offset}"), &bytes, &expected)?;
    }
    let mut rest = ByteRange::all();
    rest.offset = size - 10;
    let pieces = bench.sandbox.read(&file, rest).await?;
    let bytes = pieces.try_collect::<Vec<Bytes>>().await?.concat();
    same_bytes(
        "the last ten bytes",
        &bytes,
        data.split_at(data.len() - 10).1,
    )
}

/// Names that break what pastes them into a command line, a header or a list of lines.
pub(super) const NAMES: [&[u8]; 14] = [
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
    let kinds = [SandboxErrorKind::InvalidInput];
    let written = bench.sandbox.write_bytes(&long, "text".into()).await;
    refused("writing under a name that is too long", written, &kinds)?;
    let is_file = bench.sandbox.is_file(&long).await?;
    ensure!(!is_file, "a name that is too long is a file");

    // A path of short names is too long for some, and just as well not.
    let deep = path(&"directory/".repeat(500))?.join("file")?;
    match bench.sandbox.write_bytes(&deep, "text".into()).await {
        Ok(()) => same_bytes("a deep file", &read(&*bench.sandbox, &deep).await?, b"text"),
        failed => refused("writing to a path that is too long", failed, &kinds),
    }
}

async fn names_may_be_anything(bench: &Bench<'_>) -> Checked {
    let directory = path("names")?;
    let mut expected = Vec::new();
    for name in NAMES {
        let file = directory.join(name)?;
        let data = Bytes::from_static(name);
        bench.sandbox.write_bytes(&file, data).await?;
        same_bytes("the file", &read(&*bench.sandbox, &file).await?, name)?;
        expected.push(SandboxPath::new(name)?);
    }
    expected.sort();
    let listed = bench.sandbox.list(&directory).await?;
    let listed: Vec<_> = listed.into_iter().map(|info| info.path).collect();
    equal("the names listed", listed, expected)?;

    // As commands see them: each file holds its own name.
    let script = "shopt -s dotglob; for f in *; do cat -- \"$f\" | cmp - <(printf %s \"$f\") && printf .; done";
    let request = SpawnRequest::shell(script).in_directory(directory.clone());
    let output = bench.output_of(request).await?;
    equal(
        "names as commands see them",
        String::from_utf8_lossy(&output),
        ".".repeat(NAMES.len()),
    )?;

    for name in NAMES {
        let file = directory.join(name)?;
        let moved = path("moved")?;
        bench.sandbox.rename(&file, &moved).await?;
        same_bytes(
            "the file moved",
            &read(&*bench.sandbox, &moved).await?,
            name,
        )?;
        bench.sandbox.remove(&moved).await?;
    }
    equal(
        "what is left",
        bench.sandbox.list(&directory).await?,
        vec![],
    )
}

async fn an_absolute_path_is_the_same_file(bench: &Bench<'_>) -> Checked {
    let absolute = bench.sandbox.info().working_directory.join("below/file")?;
    bench.sandbox.write_bytes(&absolute, "text".into()).await?;
    let relative = path("below/file")?;
    same_bytes(
        "the file",
        &read(&*bench.sandbox, &relative).await?,
        b"text",
    )?;
    same_bytes(
        "the file",
        &read(&*bench.sandbox, &absolute).await?,
        b"text",
    )?;
    let info = bench.sandbox.stat(&absolute).await?;
    equal("the path from `stat`", info.path, absolute)
}

async fn what_is_missing_is_not_found(bench: &Bench<'_>) -> Checked {
    let sandbox = &bench.sandbox;
    let missing = path("missing")?;
    let kinds = [SandboxErrorKind::NotFound];
    let read = sandbox.read(&missing, ByteRange::all()).await;
    refused("reading what is missing", read.map(drop), &kinds)?;
    refused(
        "`stat` of what is missing",
        sandbox.stat(&missing).await,
        &kinds,
    )?;
    refused(
        "listing what is missing",
        sandbox.list(&missing).await,
        &kinds,
    )?;
    refused(
        "removing what is missing",
        sandbox.remove(&missing).await,
        &kinds,
    )?;
    let renamed = sandbox.rename(&missing, &path("new")?).await;
    refused("renaming what is missing", renamed, &kinds)?;
    let below = sandbox.stat(&path("missing/too")?).await;
    refused("`stat` below what is missing", below, &kinds)?;
    ensure!(
        !sandbox.is_file(&missing).await?,
        "what is missing is a file"
    );
    Ok(())
}

async fn a_directory_is_no_file(bench: &Bench<'_>) -> Checked {
    let sandbox = &bench.sandbox;
    let directory = path("directory")?;
    sandbox.mkdir(&directory).await?;
    let kinds = [SandboxErrorKind::NotAFile];
    for path in [&directory, &SandboxPath::working_directory()] {
        let read = sandbox.read(path, ByteRange::all()).await;
        refused("reading a directory", read.map(drop), &kinds)?;
        let written = sandbox.write_bytes(path, "text".into()).await;
        refused("writing over a directory", written, &kinds)?;
        equal(
            "what it is",
            sandbox.stat(path).await?.kind,
            FileKind::Directory,
        )?;
    }
    Ok(())
}

async fn a_file_is_no_directory(bench: &Bench<'_>) -> Checked {
    let sandbox = &bench.sandbox;
    let file = path("file")?;
    sandbox.write_bytes(&file, "text".into()).await?;
    let listed = sandbox.list(&file).await;
    refused("listing a file", listed, &[SandboxErrorKind::NotADirectory])?;
    let made = sandbox.mkdir(&file).await;
    refused(
        "a directory where a file is",
        made,
        &[SandboxErrorKind::AlreadyExists],
    )?;

    let below = file.join("below")?;
    let kinds = [SandboxErrorKind::NotADirectory, SandboxErrorKind::NotFound];
    let read = sandbox.read(&below, ByteRange::all()).await;
    refused("reading below a file", read.map(drop), &kinds)?;
    refused("`stat` below a file", sandbox.stat(&below).await, &kinds)?;
    let kinds = [
        SandboxErrorKind::NotADirectory,
        SandboxErrorKind::AlreadyExists,
    ];
    let written = sandbox.write_bytes(&below, "text".into()).await;
    refused("writing below a file", written, &kinds)?;
    refused(
        "a directory below a file",
        sandbox.mkdir(&below).await,
        &kinds,
    )
}

async fn a_pipe_is_refused_at_once(bench: &Bench<'_>) -> Checked {
    // Opening a pipe waits for its other end, and reading it for data. The command is that other end
    // for a moment now and then, later on, so that whoever waits is let go and fails here, instead
    // of taking the suite along.
    let rescue = format!(
        "mkfifo pipe; echo made; sleep {}; \
         while :; do exec 4<>pipe; sleep 0.2; exec 4>&-; sleep 0.1; done",
        2 * SOON.as_secs()
    );
    let mut rescuer = bench.sandbox.spawn(SpawnRequest::shell(rescue)).await?;
    let mut output = take_output(&mut *rescuer)?;
    read_until(&mut output, "made").await?;

    let sandbox = &bench.sandbox;
    let pipe = path("pipe")?;
    let kinds = [SandboxErrorKind::NotAFile];
    let read = sandbox.read(&pipe, ByteRange::all());
    let read = within("an answer to reading a pipe", SOON, read).await?;
    refused("reading a pipe", read.map(drop), &kinds)?;
    // A write may refuse the pipe, or put a file in its place.
    let write = sandbox.write_bytes(&pipe, "text".into());
    match within("an answer to writing to a pipe", SOON, write).await? {
        Ok(()) => equal(
            "what is there",
            sandbox.stat(&pipe).await?.kind,
            FileKind::File,
        ),
        error => refused("writing to a pipe", error, &kinds),
    }
}

async fn a_device_is_refused_at_once(bench: &Bench<'_>) -> Checked {
    bench
        .stdout("ln -s /dev/zero zero; ln -s /dev/full full")
        .await?;
    let kinds = [
        SandboxErrorKind::NotAFile,
        SandboxErrorKind::NotFound,
        SandboxErrorKind::OutsideSandbox,
    ];
    for name in ["zero", "full", "/dev/zero"] {
        let device = path(name)?;
        let read = bench.sandbox.read(&device, ByteRange::all());
        let read = within("an answer to reading a device", SOON, read).await?;
        refused("reading a device", read.map(drop), &kinds)?;
    }
    Ok(())
}
