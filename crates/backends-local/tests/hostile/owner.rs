//! Killing the owner of a sandbox.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, Strictness};
use cantle_core::sandbox::{
    Backend as _, Background, SandboxContext, SandboxExt as _, SpawnRequest,
};

use crate::arena::{Arena, LATE};
use crate::case::Tried;
use crate::mode::Mode;
use crate::run::say;
use crate::{PART, traces};

/// The owner's line when everything runs.
const READY: &str = "the sandbox is open";

/// The process to be killed: opens a sandbox in a mode, leaves a background process, and
/// waits in the middle of another command.
pub(crate) async fn open_and_wait(mode: &str) -> ! {
    let mut policy = Policy::workspace();
    policy.strictness = Strictness::BestEffort;
    let backend = Mode::named(mode).unwrap().backend();
    let parent = std::env::var("SANDBOXES").unwrap();
    let sandbox = backend
        .in_directory(parent)
        .open(SandboxContext::new(RunId::new(), policy))
        .await
        .unwrap();
    let token = std::env::var("TOKEN").unwrap();
    let line = "(setsid bash -c 'trap \"\" TERM HUP; sleep 300 & wait' &) ; sleep 300 & \
                env -i setsid sleep 300 & true";
    let request = SpawnRequest::shell(line)
        .with_env("TOKEN", token.as_str())
        .with_background(Background::Keep);
    sandbox.run(request).await.unwrap();
    let mut running = sandbox
        .spawn(SpawnRequest::shell("sleep 300").with_env("TOKEN", token))
        .await
        .unwrap();
    say(READY);
    let ended = running.wait().await;
    panic!("the command ended before its owner: {ended:?}");
}

/// Whether a process of a sandbox outlives its owner, which gets SIGKILL.
pub(crate) fn outlives_its_owner(arena: &Arena) -> Tried<'_> {
    Box::pin(async move {
        let mode = arena.mode.ok_or("only in a mode")?;
        let owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "confinement_holds", "--nocapture"])
            .env(PART, format!("owner:{}", mode.name))
            .env("SANDBOXES", arena.fixture.sandboxes())
            .env("TOKEN", &arena.fixture.token)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut owner = Owner(owner);
        let mut lines = BufReader::new(owner.0.stdout.take().unwrap()).lines();
        let ready = tokio::task::spawn_blocking(move || {
            lines.any(|line| line.is_ok_and(|line| line.contains(READY)))
        });
        if !ready.await.unwrap() {
            return Err("the owner did not open its sandbox".to_owned());
        }
        let below = traces::descendants(owner.0.id());
        // The guard, init, two keepers and their commands.
        if below.len() < 8 {
            return Err(format!(
                "only {} processes belong to the owner",
                below.len()
            ));
        }
        owner.0.kill().unwrap();
        let gone = traces::soon(LATE, || !below.iter().any(|pid| traces::runs(*pid)));
        let outlived = !gone.await;
        // The fixture removes its directory.
        owner.0.wait().unwrap();
        remove_sandboxes(arena)?;
        Ok(outlived)
    })
}

/// Killed on drop.
struct Owner(Child);

impl Drop for Owner {
    fn drop(&mut self) {
        // It has usually ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes the directory of the owner's sandbox.
fn remove_sandboxes(arena: &Arena) -> Result<(), String> {
    let own = &arena.sandbox().info().id;
    for entry in std::fs::read_dir(arena.fixture.sandboxes()).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        if entry.file_name().to_string_lossy() != *own {
            std::fs::remove_dir_all(entry.path()).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
