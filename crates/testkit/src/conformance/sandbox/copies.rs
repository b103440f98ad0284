//! Copies between two sandboxes of one or two backends, in both directions.

use super::files::UNUSUAL_NAMES;
use super::memory::MemoryMeter;
use super::prelude::*;

cases! { cases for Harness:
    a_file_is_copied_to_another_sandbox,
    a_file_of_any_size_is_copied,
    a_file_of_any_name_is_copied,
    a_copy_replaces_a_file_whole,
    a_failed_copy_leaves_nothing,
    concurrent_copies_do_not_mix,
    outputs_are_copied_to_their_paths,
    a_copy_to_or_from_a_closed_sandbox_is_refused,
    a_copy_of_200_megabytes_takes_little_memory.heavy().alone().optional(),
}

/// Runs `check` from the bench's sandbox to another one, and back.
async fn both_ways(
    bench: &Bench<'_>,
    check: impl AsyncFn(&dyn Sandbox, &dyn Sandbox) -> Checked,
) -> Checked {
    let other = bench.open_other().await?;
    let (one, other) = (&**bench, &*other);
    for (from, to) in [(one, other), (other, one)] {
        check(from, to).await.map_err(|failure| {
            let (from, to) = (&from.info().backend, &to.info().backend);
            failure.context(&format!("from {from} to {to}"))
        })?;
    }
    Ok(())
}

async fn a_file_is_copied_to_another_sandbox(bench: &Bench<'_>) -> Checked {
    both_ways(bench, async |from, to| {
        for mode in [0o640, 0o750] {
            let script = format!("seq 100000 > file; chmod {mode:o} file; ln -sf file link");
            stdout(from, &script).await?;
            for name in ["file", "link"] {
                let (source, target) = (path(name)?, path("sub/copy")?);
                from.copy_to(&source, to, &target).await?;
                let content = read(from, &source).await?;
                same_bytes("the copy", &read(to, &target).await?, &content)?;
                let expected = stdout(from, &format!("md5sum < {name}")).await?;
                let sum = stdout(to, "md5sum < sub/copy").await?;
                equal("the copy as a command sees it", sum, expected)?;
            }
            from.copy_to(&path("file")?, to, &path("sub/copy")?).await?;
            let own = stdout(to, "stat -c %a sub/copy").await?;
            equal("its mode", own.trim(), &*format!("{mode:o}"))?;
        }
        stdout(to, "rm -r sub").await.map(drop)
    })
    .await
}

async fn a_file_of_any_size_is_copied(bench: &Bench<'_>) -> Checked {
    both_ways(bench, async |from, to| {
        for size in [0, 1, 65_535, 65_537, 10_000_000] {
            let data = noise(size);
            let file = path("sized")?;
            from.write_bytes(&file, data.clone().into()).await?;
            from.copy_to(&file, to, &path("copy")?).await?;
            let copy = read(to, &path("copy")?).await?;
            same_bytes(&format!("the copy of {size} bytes"), &copy, &data)?;
        }
        Ok(())
    })
    .await
}

async fn a_file_of_any_name_is_copied(bench: &Bench<'_>) -> Checked {
    both_ways(bench, async |from, to| {
        let directory = path("names")?;
        let mut expected = Vec::new();
        for name in UNUSUAL_NAMES {
            let file = directory.join(name)?;
            from.write_bytes(&file, Bytes::from_static(name)).await?;
            from.copy_to(&file, to, &file).await?;
            same_bytes("the copy", &read(to, &file).await?, name)?;
            expected.push(SandboxPath::new(name)?);
        }
        expected.sort();
        let listed = to.list(&directory).await?;
        let listed: Vec<_> = listed.into_iter().map(|info| info.path).collect();
        equal("the names there", listed, expected)?;
        to.remove(&directory).await?;
        Ok(())
    })
    .await
}

async fn a_copy_replaces_a_file_whole(bench: &Bench<'_>) -> Checked {
    both_ways(bench, async |from, to| {
        let file = path("dir/file")?;
        from.write_bytes(&path("new")?, "new".into()).await?;
        to.write_bytes(&file, "a longer text before".into()).await?;
        from.copy_to(&path("new")?, to, &file).await?;
        same_bytes("the file", &read(to, &file).await?, b"new")?;
        equal("the directory", stdout(to, "ls -A dir").await?, "file\n")
    })
    .await
}

async fn a_failed_copy_leaves_nothing(bench: &Bench<'_>) -> Checked {
    both_ways(bench, async |from, to| {
        let script = "mkdir -p dir; mkfifo pipe; ln -s nowhere dangling; echo x > file";
        stdout(from, script).await?;
        for (name, kinds) in [
            ("dir", &[NotAFile][..]),
            ("pipe", &[NotAFile]),
            ("missing", &[NotFound]),
            ("dangling", &[NotFound]),
        ] {
            let copied = from.copy_to(&path(name)?, to, &path("copies/copy")?).await;
            refused(&format!("copying `{name}`"), copied, kinds)?;
        }
        to.write_bytes(&path("in the way")?, "text".into()).await?;
        let below = path("in the way/copy")?;
        let copied = from.copy_to(&path("file")?, to, &below).await;
        refused(
            "copying below a file",
            copied,
            &[NotADirectory, AlreadyExists],
        )?;
        let script = "ls -A copies 2>/dev/null; rm -r copies 'in the way'; true";
        equal("the files", stdout(to, script).await?, "")?;
        stdout(from, "rm -r dir pipe dangling file").await.map(drop)
    })
    .await
}

async fn concurrent_copies_do_not_mix(bench: &Bench<'_>) -> Checked {
    both_ways(bench, async |from, to| {
        let copies = (b'a'..=b'p').map(async |letter| {
            let name = path(&format!("file-{}", char::from(letter)))?;
            let data = vec![letter; 300_000];
            from.write_bytes(&name, data.clone().into()).await?;
            let target = path("copies")?.join(name.relative_bytes())?;
            from.copy_to(&name, to, &target).await?;
            same_bytes("a copy", &read(to, &target).await?, &data)
        });
        try_join_all(copies).await?;
        to.remove(&path("copies")?).await?;
        Ok(())
    })
    .await
}

async fn outputs_are_copied_to_their_paths(bench: &Bench<'_>) -> Checked {
    both_ways(bench, async |from, to| {
        let script = "mkdir -p 'out/a dir'; printf one > out/one; printf two > 'out/a dir/two'; \
                      ln -sf one out/link";
        stdout(from, script).await?;
        let absolute = from.info().working_directory.join("out/one")?.to_string();
        let paths = [
            "out/a dir/two",
            &absolute,
            "out/link",
            "out/link",
            "out",
            "missing",
            "../x",
            "",
        ];
        let paths = paths.map(str::to_owned);
        let outputs = from.copy_outputs_to(&paths, to).await?;
        let saved: Vec<_> = outputs
            .saved
            .iter()
            .map(|it| (&*it.source, it.size_bytes))
            .collect();
        let expected = vec![("out/a dir/two", 3), (&*absolute, 3), ("out/link", 3)];
        equal("the copied files", saved, expected)?;
        let refused: Vec<_> = outputs.refused.iter().map(|it| &*it.source).collect();
        equal(
            "the refused files",
            refused,
            vec!["out", "missing", "../x", ""],
        )?;
        let script = "cat 'out/a dir/two' out/one out/link; find out -type f | sort; rm -r out";
        let expected = "twooneoneout/a dir/two\nout/link\nout/one\n";
        equal("the files", stdout(to, script).await?, expected)?;
        stdout(from, "rm -r out").await.map(drop)
    })
    .await
}

async fn a_copy_to_or_from_a_closed_sandbox_is_refused(bench: &Bench<'_>) -> Checked {
    let other = bench.open_other().await?;
    let file = path("file")?;
    for sandbox in [&bench.sandbox, &other] {
        sandbox.write_bytes(&file, "text".into()).await?;
    }
    other.close().await?;
    for (what, from, to) in [
        ("a copy to a closed sandbox", &bench.sandbox, &other),
        ("a copy from a closed sandbox", &other, &bench.sandbox),
    ] {
        let copied = from.copy_to(&file, &**to, &path("copy")?).await;
        refused(what, copied, &[Closed])?;
    }
    let there = bench.is_file(&path("copy")?).await?;
    ensure!(!there, "a copy from a closed sandbox left a file");
    Ok(())
}

async fn a_copy_of_200_megabytes_takes_little_memory(bench: &Bench<'_>) -> Checked {
    const BYTES: u64 = 200_000_000;
    const PIECE: usize = 100_000;
    let other = bench.open_other().await?;
    let [file, copy] = [path("large")?, path("copy")?];
    let piece = Bytes::from(noise(PIECE));
    let pieces = (0..BYTES / PIECE as u64).map(move |_| Ok(piece.clone()));
    let data = Box::pin(stream::iter(pieces));
    bench
        .write(&file, WriteOptions::default().with_size(BYTES), data)
        .await?;
    let mut meter = MemoryMeter::new()?;
    let copying = bench.copy_to(&file, &*other, &copy);
    tokio::pin!(copying);
    loop {
        // Samples during the copy, some hundred times.
        tokio::select! {
            copied = &mut copying => break copied?,
            () = sleep(Duration::from_millis(5)) => meter.sample(),
        }
    }
    let mut sums = Vec::new();
    for (sandbox, name) in [(&bench.sandbox, "large"), (&other, "copy")] {
        let output = sandbox.run(SpawnRequest::argv(["md5sum", name])).await?;
        let sum = output.stdout.text().split(' ').next().map(str::to_owned);
        sums.push(sum.ok_or_else(|| Failure::new("`md5sum` printed nothing"))?);
    }
    ensure!(
        sums.iter().all(|sum| sums.first() == Some(sum)),
        "the copy differs"
    );
    meter.check("a copy of 200 MB", BYTES)
}
