//! Symbolic links: followed within the sandbox, never out of it.
//!
//! The target outside is a temporary directory of this host. A sandbox on another machine does not
//! see it, which is also correct.

use super::prelude::*;

/// Correct errors: refused as outside, or missing in the sandbox's own view.
const OUTSIDE: &[SandboxErrorKind] = &[OutsideSandbox, NotFound];

cases! { cases for Harness:
    a_link_is_reported_as_a_link,
    a_link_within_the_sandbox_is_followed,
    a_link_cycle_is_an_error,
    a_path_outside_is_refused,
    nothing_is_read_through_an_escaping_link,
    nothing_is_listed_through_an_escaping_link,
    nothing_is_written_through_an_escaping_link,
    nothing_is_moved_through_an_escaping_link,
    removing_follows_no_link,
    no_command_starts_behind_an_escaping_link,
}

async fn a_link_is_reported_as_a_link(bench: &Bench<'_>) -> Checked {
    bench
        .stdout("echo text > file; mkdir dir; ln -s file one; ln -s dir two; ln -s missing three")
        .await?;
    for name in ["one", "two", "three"] {
        let info = bench.stat(&path(name)?).await?;
        equal(name, info.kind, FileKind::Symlink)?;
    }
    Ok(())
}

async fn a_link_within_the_sandbox_is_followed(bench: &Bench<'_>) -> Checked {
    let script = "mkdir -p dir/below; printf text > dir/file; ln -s dir/file to_file; ln -s dir to_dir; \
                  ln -s ../file dir/below/up; ln -s to_dir chain; ln -s missing dangling";
    bench.stdout(script).await?;
    for name in ["to_file", "to_dir/file", "dir/below/up", "chain/file"] {
        let content = read(&**bench, &path(name)?).await?;
        same_bytes(name, &content, b"text")?;
        ensure!(bench.is_file(&path(name)?).await?, "`{name}` is not a file");
    }
    let listed = bench.list(&path("to_dir")?).await?;
    let names: Vec<_> = listed.iter().map(|info| info.path.to_string()).collect();
    equal("a directory behind a link", names, vec!["below", "file"])?;
    let dangling = bench.read(&path("dangling")?, ByteRange::all()).await;
    refused("reading a dangling link", dangling, &[NotFound])?;

    bench
        .write_bytes(&path("to_dir/new")?, "new".into())
        .await?;
    bench
        .must_print("a file written behind a link", "cat dir/new", "new")
        .await?;
    bench
        .write_bytes(&path("to_file")?, "changed".into())
        .await?;
    let changed = read(&**bench, &path("to_file")?).await?;
    same_bytes("a file written by its link", &changed, b"changed")
}

async fn a_link_cycle_is_an_error(bench: &Bench<'_>) -> Checked {
    bench
        .stdout("ln -s two one; ln -s one two; mkdir dir; ln -s . dir/here")
        .await?;
    let cycle = path("one")?;
    let reading = read(&**bench, &cycle);
    let read = within("the result of reading a link cycle", PROMPT_LIMIT, reading).await?;
    ensure!(read.is_err(), "a link cycle was read");
    let listed = bench.list(&path("dir/here/here")?).await?;
    let names: Vec<_> = listed.iter().map(|info| info.path.to_string()).collect();
    equal("a directory behind links to itself", names, vec!["here"])
}

/// Host directory and links in the sandbox that lead to it.
struct EscapingLinks {
    outside: Outside,
    /// Whether commands see the directory. If not, the links dangle, and the sandbox may create their
    /// target inside.
    visible: bool,
}

impl EscapingLinks {
    const TO_DIRECTORY: [&str; 3] = ["dir", "deep/er/climbing", "magic"];
    const TO_SECRET: [&str; 3] = ["file", "chain", "far"];

    async fn open(bench: &Bench<'_>) -> Checked<Self> {
        let outside = Outside::new()?;
        let script = "mkdir -p deep/er; ln -s \"$1\" dir; ln -s \"$1/secret\" file; ln -s file chain; \
                      ln -s \"../../../../../../../../../../../../../../../..$1\" deep/er/climbing; \
                      ln -s \"/proc/self/root$1\" magic; ln -s deep/er/climbing/secret far; \
                      [ -e file ] && echo visible; exit 0";
        let target = outside.path().to_string_lossy().into_owned();
        let argv = ["bash", "-c", script, "bash", &target];
        let output = bench.output_of(SpawnRequest::argv(argv)).await?;
        let visible = output == b"visible\n";
        Ok(Self { outside, visible })
    }

    /// Returns paths below the links to the directory.
    fn below(name: &str) -> Checked<Vec<SandboxPath>> {
        let below = Self::TO_DIRECTORY.map(|directory| Ok(path(directory)?.join(name)?));
        below.into_iter().collect()
    }

    /// Checks that an operation through an escaping link failed with a suitable kind.
    #[track_caller]
    fn refused<T>(
        &self,
        operation: &str,
        link: &SandboxPath,
        result: Result<T, SandboxError>,
    ) -> Checked {
        if self.visible {
            return refused(&format!("{operation} `{link}`"), result, OUTSIDE);
        }
        Ok(())
    }

    async fn must_not_be_read(&self, bench: &Bench<'_>, link: &SandboxPath) -> Checked {
        let content = bench.read_bytes(link, 1000).await;
        ensure!(
            !content
                .as_ref()
                .is_ok_and(|content| Outside::is_secret(content)),
            "a file outside was read as `{link}`"
        );
        self.refused("reading", link, content)?;
        let is_file = bench.is_file(link).await?;
        ensure!(!is_file, "`{link}` leads out and is reported as a file");
        Ok(())
    }
}

async fn a_path_outside_is_refused(bench: &Bench<'_>) -> Checked {
    let links = EscapingLinks::open(bench).await?;
    let secret = SandboxPath::from_os(links.outside.secret())?;
    links.must_not_be_read(bench, &secret).await?;
    links.refused("`stat` of", &secret, bench.stat(&secret).await)?;
    let written = bench.write_bytes(&secret, "text".into()).await;
    links.refused("writing", &secret, written)?;
    links.refused("removing", &secret, bench.remove(&secret).await)?;
    links.outside.must_be_untouched()
}

async fn nothing_is_read_through_an_escaping_link(bench: &Bench<'_>) -> Checked {
    let links = EscapingLinks::open(bench).await?;
    for name in EscapingLinks::TO_SECRET {
        links.must_not_be_read(bench, &path(name)?).await?;
    }
    for link in EscapingLinks::below("secret")? {
        links.must_not_be_read(bench, &link).await?;
    }
    Ok(())
}

async fn nothing_is_listed_through_an_escaping_link(bench: &Bench<'_>) -> Checked {
    let links = EscapingLinks::open(bench).await?;
    for name in EscapingLinks::TO_DIRECTORY {
        let link = path(name)?;
        links.refused("listing", &link, bench.list(&link).await)?;
    }
    for link in EscapingLinks::below("secret")? {
        links.refused("`stat` of", &link, bench.stat(&link).await)?;
    }
    Ok(())
}

async fn nothing_is_written_through_an_escaping_link(bench: &Bench<'_>) -> Checked {
    let links = EscapingLinks::open(bench).await?;
    let below = [
        EscapingLinks::below("new")?,
        EscapingLinks::below("sub/new")?,
    ];
    for link in below.concat() {
        let written = bench.write_bytes(&link, "text".into()).await;
        links.refused("writing", &link, written)?;
        links.refused("making", &link, bench.mkdir(&link).await)?;
    }
    // A write may refuse the link or replace it by a file.
    for name in EscapingLinks::TO_SECRET {
        let link = path(name)?;
        match bench.write_bytes(&link, "text".into()).await {
            Ok(()) => same_bytes(name, &read(&**bench, &link).await?, b"text")?,
            refusal => links.refused("writing", &link, refusal)?,
        }
    }
    links.outside.must_be_untouched()
}

async fn nothing_is_moved_through_an_escaping_link(bench: &Bench<'_>) -> Checked {
    let links = EscapingLinks::open(bench).await?;
    let own = path("own")?;
    for link in EscapingLinks::below("new")? {
        bench.write_bytes(&own, "own".into()).await?;
        links.refused("moving a file to", &link, bench.rename(&own, &link).await)?;
    }
    for link in EscapingLinks::below("secret")? {
        let moved = bench.rename(&link, &path("stolen")?).await;
        links.refused("moving a file from", &link, moved)?;
    }
    links.outside.must_be_untouched()
}

async fn removing_follows_no_link(bench: &Bench<'_>) -> Checked {
    let links = EscapingLinks::open(bench).await?;
    for link in EscapingLinks::below("secret")? {
        links.refused("removing", &link, bench.remove(&link).await)?;
    }
    // Removes the links themselves, directly and with their directory.
    for name in ["file", "dir", "chain", "deep"] {
        let link = path(name)?;
        bench.remove(&link).await?;
        let removed = bench.stat(&link).await;
        let what = "`stat` of a removed link";
        refused(what, removed, &[NotFound])?;
    }
    links.outside.must_be_untouched()
}

async fn no_command_starts_behind_an_escaping_link(bench: &Bench<'_>) -> Checked {
    let links = EscapingLinks::open(bench).await?;
    for name in EscapingLinks::TO_DIRECTORY {
        let link = path(name)?;
        let request = SpawnRequest::shell("true").in_directory(link.clone());
        let spawned = bench.spawn(request).await;
        links.refused("a command in", &link, spawned)?;
    }
    Ok(())
}
