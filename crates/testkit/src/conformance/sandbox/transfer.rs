//! Uploads, downloads and output files.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process;

use cantle_core::sandbox::{OutputOptions, RefusedFile, SavedOutputs};
use tempfile::TempDir;

use super::prelude::*;

cases! { cases for Harness:
    upload_copies_a_file,
    upload_copies_a_directory_and_skips_special_files,
    download_gives_the_file_with_its_mode,
    outputs_are_saved_by_their_names,
    invalid_outputs_are_refused,
    duplicate_outputs_are_refused,
    outputs_follow_no_link_of_the_output_directory,
    outputs_may_go_into_the_working_directory.optional(),
}

fn set_mode(path: &Path, mode: u32) -> Checked {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

fn mode(path: &Path) -> Checked<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o777)
}

async fn upload_copies_a_file(bench: &Bench<'_>) -> Checked {
    let host = TempDir::new()?;
    let from = host.path().join("tool");
    let data = vec![b'x'; 500_000];
    fs::write(&from, &data)?;
    set_mode(&from, 0o750)?;
    let to = path("in/tool")?;
    let uploaded = bench.upload(&from, &to).await?;
    let files: Vec<_> = uploaded
        .files
        .iter()
        .map(|it| (&it.to, it.size_bytes))
        .collect();
    equal("files reported", files, vec![(&to, data.len() as u64)])?;
    must_refuse(&uploaded.refused, &[])?;
    bench.must_hold("the file", &to, &data).await?;
    bench
        .must_print("its mode", "stat -c %a in/tool", "750\n")
        .await
}

async fn upload_copies_a_directory_and_skips_special_files(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let host = TempDir::new()?;
    let root = host.path();
    fs::create_dir_all(root.join("sub/empty"))?;
    fs::write(root.join("a"), "first")?;
    fs::write(root.join("sub/b c"), "second")?;
    symlink("a", root.join("link"))?;
    symlink("missing", root.join("dangling"))?;
    symlink(outside.secret(), root.join("out"))?;
    let made = process::Command::new("mkfifo")
        .arg(root.join("pipe"))
        .status()?;
    ensure!(made.success(), "test setup: `mkfifo` failed");

    let uploaded = bench.upload(root, &path("in")?).await?;
    let files: Vec<_> = uploaded.files.iter().map(|it| it.to.to_string()).collect();
    equal(
        "files reported",
        files,
        vec!["in/a", "in/link", "in/sub/b c"],
    )?;
    let refused = ["dangling", "out", "pipe"].map(|name| root.join(name).display().to_string());
    must_refuse(&uploaded.refused, &refused.each_ref().map(String::as_str))?;
    let script = "cd in; cat a link 'sub/b c'; find . | sort";
    let expected = "firstfirstsecond.\n./a\n./link\n./sub\n./sub/b c\n./sub/empty\n";
    bench.must_print("the copied files", script, expected).await
}

async fn download_gives_the_file_with_its_mode(bench: &Bench<'_>) -> Checked {
    let host = TempDir::new()?;
    let to = host.path().join("copy");
    bench
        .stdout("seq 100000 > file; chmod 750 file; mkdir dir")
        .await?;
    let content = read(&**bench, &path("file")?).await?;
    let size = bench.download(&path("file")?, &to).await?;
    same_bytes("the copy", &fs::read(&to)?, &content)?;
    equal(
        "size reported, and mode",
        (size, mode(&to)?),
        (content.len() as u64, 0o750),
    )?;

    let other = host.path().join("other");
    for (name, kind) in [("dir", NotAFile), ("missing", NotFound)] {
        let download = bench.download(&path(name)?, &other).await;
        refused(&format!("a download of `{name}`"), download, &[kind])?;
    }
    ensure!(!other.exists(), "a failed download left a file");
    Ok(())
}

async fn save(bench: &Bench<'_>, paths: &[&str], to: &Path) -> Checked<SavedOutputs> {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    Ok(bench
        .save_outputs(&paths, to, OutputOptions::default())
        .await?)
}

/// Checks which files were refused.
fn must_refuse(refused: &[RefusedFile], sources: &[&str]) -> Checked {
    let refused: Vec<_> = refused.iter().map(|refusal| &*refusal.source).collect();
    equal("the refused files", refused, sources)
}

async fn outputs_are_saved_by_their_names(bench: &Bench<'_>) -> Checked {
    let host = TempDir::new()?;
    let to = host.path().join("results");
    let script = "mkdir 'a dir'; printf one > one; printf two > 'a dir/two'; printf three > three; \
                  ln -s three link; chmod 640 one; chmod 755 'a dir/two'";
    bench.stdout(script).await?;
    let absolute = bench.info().working_directory.join("three")?;
    let paths = ["one", "a dir/two", "one", &absolute.to_string(), "link"];
    let saved = save(bench, &paths, &to).await?;
    must_refuse(&saved.refused, &[])?;
    let files: Vec<_> = saved
        .saved
        .iter()
        .map(|file| (&*file.source, file.path.clone(), file.size_bytes))
        .collect();
    let expected = vec![
        ("one", to.join("one"), 3),
        ("a dir/two", to.join("a dir/two"), 3),
        (paths[3], to.join("three"), 5),
        ("link", to.join("link"), 5),
    ];
    equal("the saved files", files, expected)?;
    for (name, content) in [
        ("one", "one"),
        ("a dir/two", "two"),
        ("three", "three"),
        ("link", "three"),
    ] {
        same_bytes(name, &fs::read(to.join(name))?, content.as_bytes())?;
    }
    let modes = (mode(&to.join("one"))?, mode(&to.join("a dir/two"))?);
    equal("the modes", modes, (0o640, 0o755))?;
    let names = fs::read_dir(&to)?.count();
    equal("entries of the output directory", names, 4)?;
    let script = "cat one 'a dir/two' three";
    bench.must_print("the files", script, "onetwothree").await
}

async fn invalid_outputs_are_refused(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let host = TempDir::new()?;
    bench.stdout("mkdir dir; echo text > file").await?;
    let secret = outside.secret().to_string_lossy().into_owned();
    let link = SpawnRequest::argv(["ln", "-s", &secret, "out"]);
    bench.output_of(link).await?;
    let paths = [
        "",
        ".",
        "..",
        "../file",
        "dir/../file",
        "fi\0le",
        "dir",
        "missing",
        "out",
        &secret,
        "/etc/passwd",
    ];
    let saved = save(bench, &paths, host.path()).await?;
    equal("the saved files", saved.saved, vec![])?;
    must_refuse(&saved.refused, &paths)?;
    let unexplained = saved
        .refused
        .iter()
        .find(|refusal| refusal.reason.is_empty());
    equal("a refusal without a reason", unexplained, None)?;
    let count = fs::read_dir(host.path())?.count();
    equal("entries of the output directory", count, 0)
}

async fn duplicate_outputs_are_refused(bench: &Bench<'_>) -> Checked {
    let host = TempDir::new()?;
    bench.stdout("mkdir dir; printf text > dir/file").await?;
    let saved = save(bench, &["dir/file", "./dir//file"], host.path()).await?;
    let files: Vec<_> = saved.saved.iter().map(|file| &*file.source).collect();
    equal("the saved files", files, vec!["dir/file"])?;
    must_refuse(&saved.refused, &["./dir//file"])?;
    let file = fs::read(host.path().join("dir/file"))?;
    same_bytes("the file", &file, b"text")
}

async fn outputs_follow_no_link_of_the_output_directory(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let host = TempDir::new()?;
    symlink(outside.path(), host.path().join("dir"))?;
    symlink(outside.secret(), host.path().join("file"))?;
    bench
        .stdout("mkdir dir; printf text > dir/secret; printf text > file")
        .await?;
    let saved = save(bench, &["dir/secret", "file"], host.path()).await?;
    must_refuse(&saved.refused, &[])?;
    for name in ["dir.1/secret", "file.1"] {
        let file = fs::read(host.path().join(name))?;
        same_bytes("the file beside a link", &file, b"text")?;
    }
    outside.must_be_untouched()
}

async fn outputs_may_go_into_the_working_directory(bench: &Bench<'_>) -> Checked {
    let directory = bench.host_directory().await?;
    let file = path("results/file")?;
    bench.write_bytes(&file, "text".into()).await?;
    for to in [directory.clone(), directory.join("results")] {
        let saved = save(bench, &["results/file"], &to).await?;
        must_refuse(&saved.refused, &[])?;
        same_bytes("the file", &fs::read(to.join("results/file"))?, b"text")?;
    }
    let expected = "results/file\nresults/results/file\n";
    let files = bench.stdout("find results -type f | sort").await?;
    equal("files in the sandbox", files, expected)
}
