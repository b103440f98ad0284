//! Links: followed within the sandbox, never out of it.
//!
//! What lies outside is a directory of this host that only the suite knows. A sandbox on another
//! machine doesn't see it at all, which is as good.

use cantle_core::sandbox::{
    ByteRange, FileKind, SandboxError, SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest,
};

use super::super::check::{Checked, ensure, equal, refused, same_bytes, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, SOON, path};
use super::case;
use super::files::read;
use super::host::Outside;

/// Refused for what it is, or because it isn't there in the sandbox's own view.
const OUTSIDE: &[SandboxErrorKind] =
    &[SandboxErrorKind::OutsideSandbox, SandboxErrorKind::NotFound];

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(a_link_is_reported_as_a_link),
        case!(a_link_within_the_sandbox_is_followed),
        case!(a_link_that_leads_in_circles_is_an_error),
        case!(a_path_outside_is_refused),
        case!(nothing_is_read_through_a_link_that_leads_out),
        case!(nothing_is_listed_through_a_link_that_leads_out),
        case!(nothing_is_written_through_a_link_that_leads_out),
        case!(nothing_is_moved_through_a_link_that_leads_out),
        case!(removing_follows_no_link),
        case!(no_command_starts_behind_a_link_that_leads_out),
    ]
}

async fn a_link_is_reported_as_a_link(bench: &Bench<'_>) -> Checked {
    bench
        .stdout("echo text > file; mkdir dir; ln -s file one; ln -s dir two; ln -s missing three")
        .await?;
    for name in ["one", "two", "three"] {
        let info = bench.sandbox.stat(&path(name)?).await?;
        equal(name, info.kind, FileKind::Symlink)?;
    }
    Ok(())
}

async fn a_link_within_the_sandbox_is_followed(bench: &Bench<'_>) -> Checked {
    let script = "mkdir -p dir/below; printf text > dir/file; ln -s dir/file to_file; ln -s dir to_dir; \
                  ln -s ../file dir/below/up; ln -s to_dir chain; ln -s missing dangling";
    bench.stdout(script).await?;
    let sandbox = &bench.sandbox;
    for name in ["to_file", "to_dir/file", "dir/below/up", "chain/file"] {
        let content = read(&**sandbox, &path(name)?).await?;
        same_bytes(name, &content, b"text")?;
        ensure!(sandbox.is_file(&path(name)?).await?, "`{name}` is no file");
    }
    let listed = sandbox.list(&path("to_dir")?).await?;
    let names: Vec<_> = listed.iter().map(|info| info.path.to_lossy()).collect();
    equal("a directory behind a link", names, vec!["below", "file"])?;
    let dangling = sandbox.read(&path("dangling")?, ByteRange::all()).await;
    let kinds = [SandboxErrorKind::NotFound];
    refused("reading a dangling link", dangling.map(drop), &kinds)?;

    sandbox
        .write_bytes(&path("to_dir/new")?, "new".into())
        .await?;
    equal(
        "a file written behind a link",
        bench.stdout("cat dir/new").await?,
        "new",
    )?;
    sandbox
        .write_bytes(&path("to_file")?, "changed".into())
        .await?;
    let changed = read(&**sandbox, &path("to_file")?).await?;
    same_bytes("a file written by its link", &changed, b"changed")
}

async fn a_link_that_leads_in_circles_is_an_error(bench: &Bench<'_>) -> Checked {
    bench
        .stdout("ln -s two one; ln -s one two; mkdir dir; ln -s . dir/here")
        .await?;
    let circle = path("one")?;
    let reading = read(&*bench.sandbox, &circle);
    let read = within("an answer to reading a circle", SOON, reading).await?;
    ensure!(read.is_err(), "a link that leads in circles was read");
    let listed = bench.sandbox.list(&path("dir/here/here")?).await?;
    let names: Vec<_> = listed.iter().map(|info| info.path.to_lossy()).collect();
    equal("a directory behind links to itself", names, vec!["here"])
}

/// A directory outside, and links in the sandbox that lead to it.
struct WaysOut {
    outside: Outside,
    /// Whether commands see it. Where they don't, there is nothing that the links lead to, and a
    /// sandbox may as well make it, within.
    visible: bool,
}

impl WaysOut {
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

    /// Names behind the links to the directory.
    fn below(name: &str) -> impl Iterator<Item = Checked<SandboxPath>> {
        Self::TO_DIRECTORY
            .into_iter()
            .map(move |directory| Ok(path(directory)?.join(name)?))
    }

    /// An operation that would lead out failed, in a way that says why.
    #[track_caller]
    fn refused<T>(
        &self,
        doing: &str,
        way: &SandboxPath,
        result: Result<T, SandboxError>,
    ) -> Checked {
        if self.visible {
            return refused(&format!("{doing} `{way}`"), result, OUTSIDE);
        }
        Ok(())
    }

    async fn must_not_be_read(&self, bench: &Bench<'_>, way: &SandboxPath) -> Checked {
        let content = bench.sandbox.read_bytes(way, 1000).await;
        ensure!(
            !content
                .as_ref()
                .is_ok_and(|content| Outside::is_secret(content)),
            "a file outside was read as `{way}`"
        );
        self.refused("reading", way, content)?;
        let is_file = bench.sandbox.is_file(way).await?;
        ensure!(!is_file, "`{way}` leads out and is a file all the same");
        Ok(())
    }
}

async fn a_path_outside_is_refused(bench: &Bench<'_>) -> Checked {
    let ways = WaysOut::open(bench).await?;
    let secret = SandboxPath::from_os(ways.outside.secret())?;
    ways.must_not_be_read(bench, &secret).await?;
    ways.refused("`stat` of", &secret, bench.sandbox.stat(&secret).await)?;
    let written = bench.sandbox.write_bytes(&secret, "text".into()).await;
    ways.refused("writing", &secret, written)?;
    ways.refused("removing", &secret, bench.sandbox.remove(&secret).await)?;
    ways.outside.must_be_untouched()
}

async fn nothing_is_read_through_a_link_that_leads_out(bench: &Bench<'_>) -> Checked {
    let ways = WaysOut::open(bench).await?;
    for name in WaysOut::TO_SECRET {
        ways.must_not_be_read(bench, &path(name)?).await?;
    }
    for way in WaysOut::below("secret") {
        ways.must_not_be_read(bench, &way?).await?;
    }
    Ok(())
}

async fn nothing_is_listed_through_a_link_that_leads_out(bench: &Bench<'_>) -> Checked {
    let ways = WaysOut::open(bench).await?;
    for name in WaysOut::TO_DIRECTORY {
        let way = path(name)?;
        ways.refused("listing", &way, bench.sandbox.list(&way).await)?;
    }
    for way in WaysOut::below("secret") {
        let way = way?;
        ways.refused("`stat` of", &way, bench.sandbox.stat(&way).await)?;
    }
    Ok(())
}

async fn nothing_is_written_through_a_link_that_leads_out(bench: &Bench<'_>) -> Checked {
    let ways = WaysOut::open(bench).await?;
    let sandbox = &bench.sandbox;
    for way in WaysOut::below("new").chain(WaysOut::below("sub/new")) {
        let way = way?;
        let written = sandbox.write_bytes(&way, "text".into()).await;
        ways.refused("writing", &way, written)?;
        ways.refused("making", &way, sandbox.mkdir(&way).await)?;
    }
    // A write may refuse a link that leads out, or put a file in its place.
    for name in WaysOut::TO_SECRET {
        let way = path(name)?;
        match sandbox.write_bytes(&way, "text".into()).await {
            Ok(()) => same_bytes(name, &read(&**sandbox, &way).await?, b"text")?,
            refusal => ways.refused("writing", &way, refusal)?,
        }
    }
    ways.outside.must_be_untouched()
}

async fn nothing_is_moved_through_a_link_that_leads_out(bench: &Bench<'_>) -> Checked {
    let ways = WaysOut::open(bench).await?;
    let sandbox = &bench.sandbox;
    let own = path("own")?;
    for way in WaysOut::below("new") {
        let way = way?;
        sandbox.write_bytes(&own, "own".into()).await?;
        ways.refused("moving a file to", &way, sandbox.rename(&own, &way).await)?;
    }
    for way in WaysOut::below("secret") {
        let way = way?;
        let moved = sandbox.rename(&way, &path("stolen")?).await;
        ways.refused("moving a file from", &way, moved)?;
    }
    ways.outside.must_be_untouched()
}

async fn removing_follows_no_link(bench: &Bench<'_>) -> Checked {
    let ways = WaysOut::open(bench).await?;
    let sandbox = &bench.sandbox;
    for way in WaysOut::below("secret") {
        let way = way?;
        ways.refused("removing", &way, sandbox.remove(&way).await)?;
    }
    // Links themselves, alone and within a directory.
    for name in ["file", "dir", "chain", "deep"] {
        let link = path(name)?;
        sandbox.remove(&link).await?;
        let left = sandbox.stat(&link).await;
        refused(
            "`stat` of what was removed",
            left,
            &[SandboxErrorKind::NotFound],
        )?;
    }
    ways.outside.must_be_untouched()
}

async fn no_command_starts_behind_a_link_that_leads_out(bench: &Bench<'_>) -> Checked {
    let ways = WaysOut::open(bench).await?;
    for name in WaysOut::TO_DIRECTORY {
        let way = path(name)?;
        let request = SpawnRequest::shell("true").in_directory(way.clone());
        let spawned = bench.sandbox.spawn(request).await;
        ways.refused("a command in", &way, spawned.map(drop))?;
    }
    Ok(())
}
