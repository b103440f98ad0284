//! The backend's file operations, attacked by files in the sandbox.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cantle_core::sandbox::{ExitStatus, SandboxExt as _, SandboxPath, SpawnRequest, Stdin};
use tokio::time::timeout;

use crate::arena::{Arena, LATE, python};
use crate::case::{Case, Tried};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::custom("have us read through a link", reads_through_a_link).structural(),
        Case::custom("have us read while a link changes", reads_during_a_race).structural(),
        Case::custom("have us write through a link", writes_through_a_link).structural(),
        Case::custom("have us write while a link changes", writes_during_a_race).structural(),
        Case::custom(
            "have us remove what is behind a link",
            removes_through_a_link,
        )
        .structural(),
        Case::custom("have us wait for a fifo", waits_for_a_fifo).structural(),
        Case::promise("have us read without an end", reads_a_device),
        Case::promise("leave files that can't be removed", leaves_stubborn_files),
    ]
}

fn path(text: &str) -> SandboxPath {
    text.parse().unwrap()
}

const SECRET: &str = "directory/secret";

fn reads_through_a_link(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let made = arena
            .shell(r#"ln -s "$OUTSIDE/secret" file; ln -s "$OUTSIDE" directory; ln -s / root"#)
            .await;
        if made.error.is_some() {
            return Err(made.summary());
        }
        let root = format!("root{}/secret", arena.fixture.outside().display());
        for name in ["file", SECRET, &root] {
            if read(arena, name)
                .await
                .is_some_and(|text| text == arena.fixture.secret)
            {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Reads by the file API or, unconfined, by a path as a careless program would.
async fn read(arena: &Arena, name: &str) -> Option<String> {
    if arena.mode.is_none() {
        return std::fs::read_to_string(arena.on_host(name)).ok();
    }
    let bytes = arena
        .sandbox()
        .read_bytes(&path(name), 1 << 16)
        .await
        .ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

async fn write(arena: &Arena, name: &str) {
    // Most writes fail; the change is checked afterwards.
    if arena.mode.is_none() {
        let _ = std::fs::write(arena.on_host(name), "written");
    } else {
        let _ = arena
            .sandbox()
            .write_bytes(&path(name), Bytes::from_static(b"written"))
            .await;
    }
}

/// Exchanges a directory and a link to one outside as fast as possible.
const FLIP: &str = r#"
os.mkdir("directory")
open("directory/secret", "w").write("harmless")
os.symlink(E["OUTSIDE"] + "/directory", "link")
print("ready", flush=True)
until = time.monotonic() + 20
while time.monotonic() < until:
    C.renameat2(-100, b"directory", -100, b"link", 2)
"#;
const RACE: Duration = Duration::from_millis(250);

/// Repeats a step while a command exchanges a directory and a link.
async fn race(arena: &Arena, step: for<'a> fn(&'a Arena) -> Tried<'a>) -> Result<bool, String> {
    let request = arena.with_environment(python(FLIP)).with_stdin(Stdin::Null);
    let mut flipping = arena
        .sandbox()
        .spawn(request)
        .await
        .map_err(|error| error.to_string())?;
    let mut output = flipping.take_output().ok_or("no output")?;
    let ready = futures_util::StreamExt::next(&mut output).await;
    if !matches!(ready, Some(Ok(_))) {
        return Err("the race was not started".to_owned());
    }
    let started = Instant::now();
    // Unconfined, until it succeeds.
    let limit = if arena.mode.is_none() {
        20 * RACE
    } else {
        RACE
    };
    while started.elapsed() < limit {
        if step(arena).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn reads_during_a_race(arena: &Arena) -> Tried<'_> {
    Box::pin(race(arena, |arena| {
        Box::pin(async {
            let read = read(arena, SECRET).await;
            Ok(read.is_some_and(|text| text == arena.fixture.secret))
        })
    }))
}

fn writes_during_a_race(arena: &Arena) -> Tried<'_> {
    Box::pin(race(arena, |arena| {
        Box::pin(async {
            write(arena, SECRET).await;
            if arena.mode.is_some() {
                // The outcome depends on the race.
                let sandbox = arena.sandbox();
                let (old, new) = (path(SECRET), path("directory/new"));
                let _ = sandbox.mkdir(&new).await;
                let _ = sandbox.remove(&new).await;
                let _ = sandbox.rename(&old, &new).await;
            }
            Ok(arena.fixture.change().is_some())
        })
    }))
}

fn writes_through_a_link(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        arena
            .shell(r#"ln -s "$OUTSIDE/target" file; ln -s "$OUTSIDE" outside"#)
            .await;
        for name in ["file", "outside/target", "outside/new"] {
            write(arena, name).await;
        }
        Ok(arena.fixture.change().is_some())
    })
}

fn removes_through_a_link(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        arena.shell(r#"ln -s "$OUTSIDE" outside"#).await;
        if arena.mode.is_none() {
            std::fs::remove_file(arena.on_host("outside/target"))
                .map_err(|error| error.to_string())?;
        } else {
            // Refused, or only the link is removed.
            let _ = arena.sandbox().remove(&path("outside/target")).await;
            let _ = arena.sandbox().remove(&path("outside")).await;
        }
        Ok(arena.fixture.change().is_some())
    })
}

fn waits_for_a_fifo(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        arena.shell("mkfifo fifo").await;
        let within = Duration::from_millis(500);
        if arena.mode.is_none() {
            // A careless program opens it blocking.
            let request = SpawnRequest::shell("cat fifo").with_timeout(within);
            let ended = arena.run(request).await.status;
            return Ok(ended == Some(ExitStatus::TimedOut { limit: within }));
        }
        let read = timeout(LATE, arena.sandbox().read_bytes(&path("fifo"), 10)).await;
        Ok(read.map_or(true, |read| read.is_ok()))
    })
}

fn reads_a_device(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        arena
            .shell("ln -s /dev/zero zero; ln -s /proc/kmsg messages; ln -s loop loop")
            .await;
        for name in ["zero", "messages", "loop"] {
            let path = path(name);
            let reading = arena.sandbox().read_bytes(&path, 1 << 20);
            let read = timeout(LATE, reading).await;
            if read.map_or(true, |read| read.is_ok()) {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Every case checks that no files are left.
fn leaves_stubborn_files(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let ran = arena
            .python(
                r#"
os.mkdir("closed"); open("closed/file", "w").close(); os.chmod("closed", 0)
os.mkdir("wide")
for name in [b"new\nline", b"\xff\xfe", b"-rf", b" ", b"x" * 255]:
    open(b"wide/" + name, "w").close()
for _ in range(1000):
    os.mkdir("deep"); os.chdir("deep")
print("GOT")
"#,
            )
            .await;
        if !ran.stdout.contains("GOT") {
            return Err(ran.summary());
        }
        Ok(false)
    })
}
