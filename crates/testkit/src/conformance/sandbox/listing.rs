//! Directories: creating, listing, renaming and removing.

use cantle_core::sandbox::{ArtifactLimits, DirectorySink, MemorySink, Walk, WalkBuilder};
use tempfile::TempDir;

use super::prelude::*;

/// Deadline for creating thousands of files while other cases do the same.
const MANY_FILES: Duration = Duration::from_secs(240);

cases! { cases for Harness:
    mkdir_creates_parents_and_is_idempotent,
    a_listing_is_sorted_and_not_recursive,
    a_listing_has_5000_entries => has_entries(5000).deadline(MANY_FILES),
    a_listing_has_100000_entries => has_entries(100_000).heavy(),
    removing_a_directory_is_recursive,
    renaming_moves_and_replaces,
    a_walk_is_recursive_and_bounded,
    artifacts_are_the_files_that_changed,
}

async fn a_walk_is_recursive_and_bounded(bench: &Bench<'_>) -> Checked {
    let script = "mkdir -p tree/a/b tree/c; printf 12345 > tree/a/b/file; ln -s /etc tree/link; \
                  mkfifo tree/pipe; printf x > $'tree/c/new\\nline'; touch $'tree/c/\\xff'; ln -s ../a tree/c/to-a";
    bench.stdout(script).await?;
    let walk = bench.walk(&path("tree")?, 100).await?;
    let found = walk.entries.iter();
    let found = found.map(|(path, it)| (path.relative_bytes(), it.kind));
    let expected: [(&[u8], FileKind); _] = [
        (b"a", FileKind::Directory),
        (b"a/b", FileKind::Directory),
        (b"a/b/file", FileKind::File),
        (b"c", FileKind::Directory),
        (b"c/new\nline", FileKind::File),
        (b"c/to-a", FileKind::Symlink),
        (b"c/\xff", FileKind::File),
        (b"link", FileKind::Symlink),
        (b"pipe", FileKind::Other),
    ];
    equal("the entries", found.collect::<Vec<_>>(), expected.to_vec())?;
    let whole = bench.info().working_directory.join("tree")?;
    let absolute = bench.walk(&whole, 100).await?;
    equal("by its absolute path", &absolute, &walk)?;
    let linked = bench.walk(&path("tree/c/to-a")?, 100).await?;
    let found: Vec<_> = linked.entries.keys().map(SandboxPath::to_string).collect();
    equal(
        "through a link",
        found,
        ["b", "b/file"].map(str::to_owned).to_vec(),
    )?;
    let file = walk.entries.get(&path("a/b/file")?);
    equal("size", file.map(|file| file.size_bytes), Some(5))?;
    equal("truncated", walk.is_truncated, false)?;

    let walk = bench.walk(&path("tree")?, 3).await?;
    let found = (walk.entries.len(), walk.is_truncated);
    equal("a bounded walk", found, (3, true))?;
    let missing = bench.walk(&path("missing")?, 3).await;
    refused("`walk` of what doesn't exist", missing, &[NotFound])?;
    let file = bench.walk(&path("tree/a/b/file")?, 3).await;
    refused("`walk` of a file", file, &[NotADirectory])?;
    names_what_it_leaves_out(bench).await
}

async fn names_what_it_leaves_out(bench: &Bench<'_>) -> Checked {
    // 60 names of 100 bytes exceed PATH_MAX (4096).
    let script = "mkdir -p other/closed other/deep; echo x > other/closed/file; chmod 0 other/closed; \
                  name=$(printf %0100d 0); cd other/deep; \
                  for i in {1..60}; do mkdir $name; cd $name; echo x > file; done";
    bench.stdout(script).await?;
    let walk = bench.walk(&path("other")?, 1000).await?;
    equal("truncated", walk.is_truncated, false)?;
    let deep = path("deep")?;
    let depths = walk
        .entries
        .keys()
        .filter(|it| it.strip_prefix(&deep).is_some());
    let depth = depths.map(|it| it.components().count()).max().unwrap_or(0);
    ensure!(
        (30..=42).contains(&depth),
        "the deepest entry has {depth} components"
    );
    let refused = |name: &str| walk.refused.iter().any(|it| it.source.starts_with(name));
    ensure!(
        refused("deep/0"),
        "`deep` is not refused: {:?}",
        walk.refused
    );
    // The operator of a sandbox may read it.
    let is_listed = walk.entries.contains_key(&path("closed/file")?);
    ensure!(
        is_listed != refused("closed"),
        "`closed` is both or neither: {:?}",
        walk.refused
    );
    bench.stdout("chmod 700 other/closed").await?;
    Ok(())
}

async fn artifacts_are_the_files_that_changed(bench: &Bench<'_>) -> Checked {
    let root = SandboxPath::working_directory();
    let script = "mkdir -p art; cd art; echo same > same; echo 1234 > touched; echo old > older";
    bench.stdout(script).await?;
    let before = bench.walk(&root, 1000).await?;
    // Its size and its mtime stay; its ctime does not. Without ctime, the size has to tell.
    let is_stamped = before.entries.values().all(|entry| entry.stamp.is_some());
    let rewrite = if is_stamped {
        "echo 4321"
    } else {
        "echo 43210"
    };
    let script = "cd art; touch -r touched stamp; $REWRITE > touched; touch -r stamp touched; \
                  rm stamp; printf 'a,b\\n1,2\\n' > table.csv; \
                  printf '\\x89PNG\\r\\n\\x1a\\n' > picture; ln -s /etc/hosts link";
    bench.stdout(&script.replace("$REWRITE", rewrite)).await?;
    let after = bench.walk(&root, 1000).await?;
    let (limits, memory) = (ArtifactLimits::default(), MemorySink::default());
    let changed = bench
        .artifacts(&root, &before, &after, limits, &memory)
        .await?;
    let found = changed.files.iter();
    let found = found.map(|it| (it.path.to_string(), it.size_bytes, it.media_type.clone()));
    let expected = [
        ("art/picture", 8, Some("image/png")),
        ("art/table.csv", 8, Some("text/csv")),
        ("art/touched", rewrite.len() as u64 - 4, None),
    ];
    let expected =
        expected.map(|(name, size, kind)| (name.to_owned(), size, kind.map(str::to_owned)));
    equal(
        "the artifacts",
        found.collect::<Vec<_>>(),
        expected.to_vec(),
    )?;
    let digest = "492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470";
    let digests: Vec<_> = changed.files.iter().map(|it| it.sha256.as_str()).collect();
    equal("a digest", digests.get(1).copied(), Some(digest))?;
    let refused: Vec<_> = changed
        .refused
        .iter()
        .map(|it| it.source.as_str())
        .collect();
    equal("refused", refused, vec!["art/link"])?;

    let stored = memory.take();
    let sizes = changed
        .files
        .iter()
        .map(|it| (it.path.clone(), it.size_bytes));
    let stored_sizes = stored
        .iter()
        .map(|(path, it)| (path.clone(), it.len() as u64));
    equal(
        "the stored files",
        stored_sizes.collect::<Vec<_>>(),
        sizes.collect::<Vec<_>>(),
    )?;
    let table = stored.get(&path("art/table.csv")?).map(Bytes::as_ref);
    equal("a stored content", table, Some(&b"a,b\n1,2\n"[..]))?;

    let host = TempDir::new()?;
    let directory = DirectorySink::new(host.path().join("to"));
    let limits = limits.with_files(2).with_total_bytes(10);
    let changed = bench
        .artifacts(&root, &before, &after, limits, &directory)
        .await?;
    let found = (changed.files.len(), changed.refused.len());
    equal("files and refusals within limits", found, (1, 3))?;
    let picture = std::fs::read(host.path().join("to/art/picture"))?;
    same_bytes("the file in the directory", &picture, b"\x89PNG\r\n\x1a\n")?;

    let mut closed = WalkBuilder::new(0);
    closed.refuse("closed", "permission denied");
    let closed = closed.finish();
    for (before, expected) in [(&Walk::default(), &closed.refused[..]), (&closed, &[])] {
        let changed = bench.artifacts(&root, before, &closed, limits, &()).await?;
        equal(
            "directories without a listing",
            &changed.refused[..],
            expected,
        )?;
    }
    Ok(())
}

async fn mkdir_creates_parents_and_is_idempotent(bench: &Bench<'_>) -> Checked {
    let below = path("one/two/three")?;
    for _ in 0..2 {
        bench.mkdir(&below).await?;
    }
    bench.stdout("echo text > one/two/three/file").await?;
    bench.mkdir(&path("one/two")?).await?;
    bench.mkdir(&SandboxPath::working_directory()).await?;
    bench
        .must_print("the file in it", "cat one/two/three/file", "text\n")
        .await
}

async fn a_listing_is_sorted_and_not_recursive(bench: &Bench<'_>) -> Checked {
    let script = "mkdir -p dir/b dir/.hidden; printf 12345 > dir/c; echo x > dir/b/below; \
                  ln -s missing dir/a; ln -s b dir/d; mkfifo dir/B; chmod 640 dir/c";
    bench.stdout(script).await?;
    let listed = bench.list(&path("dir")?).await?;
    let expected = [
        (".hidden", FileKind::Directory),
        ("B", FileKind::Other),
        ("a", FileKind::Symlink),
        ("b", FileKind::Directory),
        ("c", FileKind::File),
        ("d", FileKind::Symlink),
    ];
    let found: Vec<_> = listed
        .iter()
        .map(|it| (it.path.to_string(), it.kind))
        .collect();
    let expected = expected.map(|(name, kind)| (name.to_owned(), kind));
    equal("the listing", found, expected.to_vec())?;
    let file = listed.iter().find(|it| it.kind == FileKind::File);
    let file = file.map(|file| (file.size_bytes, file.mode.unwrap_or(0o640)));
    equal("size and mode of the file", file, Some((5, 0o640)))?;

    let start = bench.list(&SandboxPath::working_directory()).await?;
    let is_listed = start.iter().any(|info| info.path.to_string() == "dir");
    ensure!(is_listed, "the working directory lacks its entries");
    bench.mkdir(&path("empty")?).await?;
    let empty = bench.list(&path("empty")?).await?;
    equal("the entries of an empty directory", empty, vec![])
}

async fn has_entries(bench: &Bench<'_>, count: usize) -> Checked {
    let script = format!("mkdir many; cd many; seq {count} | xargs touch; mkdir 0");
    let made = bench.run(SpawnRequest::shell(script)).await?;
    equal("exit", made.exit.status, ExitStatus::Code(0))?;
    let listed = bench.list(&path("many")?).await?;
    equal("entries", listed.len(), count + 1)?;
    let sorted = listed.is_sorted_by(|one, next| one.path < next.path);
    ensure!(sorted, "the entries are unsorted or repeated");
    let directories: Vec<_> = listed
        .iter()
        .filter(|it| it.kind == FileKind::Directory)
        .map(|it| it.path.to_string())
        .collect();
    equal("directories among them", directories, vec!["0"])?;
    bench.remove(&path("many")?).await?;
    let gone = bench.stat(&path("many")?).await;
    let what = "`stat` of a removed directory";
    refused(what, gone, &[NotFound])
}

async fn removing_a_directory_is_recursive(bench: &Bench<'_>) -> Checked {
    let script = "mkdir -p dir/a/b/c; echo x > dir/a/b/file; mkfifo dir/pipe; chmod 500 dir/a/b/c; \
                  mkdir kept; echo kept > kept/file; ln -s ../kept dir/link; ln -s ../kept/file dir/a/link; \
                  ln -s kept link";
    bench.stdout(script).await?;
    bench.remove(&path("dir")?).await?;
    bench.remove(&path("link")?).await?;
    let left = "for name in dir link kept/file; do [ -e $name ] && echo $name; done; cat kept/file";
    bench
        .must_print("the remaining files", left, "kept/file\nkept\n")
        .await?;
    bench.remove(&path("kept/file")?).await?;
    bench.must_print("the remaining files", "ls kept", "").await
}

async fn renaming_moves_and_replaces(bench: &Bench<'_>) -> Checked {
    let [old, new] = [path("old")?, path("new")?];
    bench.write_bytes(&old, "one".into()).await?;
    bench.write_bytes(&new, "two".into()).await?;
    bench.rename(&old, &new).await?;
    bench
        .must_hold("the file that was moved", &new, b"one")
        .await?;
    let gone = bench.stat(&old).await;
    refused("`stat` of the old name", gone, &[NotFound])?;

    bench
        .write_bytes(&path("dir/below/file")?, "text".into())
        .await?;
    bench.rename(&path("dir")?, &path("moved")?).await?;
    let script = "cat moved/below/file";
    bench
        .must_print("the moved directory", script, "text")
        .await?;

    bench.stdout("ln -s new link").await?;
    bench.rename(&path("link")?, &path("other")?).await?;
    let info = bench.stat(&path("other")?).await?;
    equal("a link that was moved", info.kind, FileKind::Symlink)?;
    bench.must_hold("its target", &new, b"one").await
}
