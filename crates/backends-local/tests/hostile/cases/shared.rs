//! Objects that processes of one machine share: System V and POSIX queues, semaphores and memory, keys.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use cantle_backends_local::Mechanism;

use super::reports_success;
use crate::arena::Arena;
use crate::case::{Case, FILES, Gap, Tried};
use crate::fixture::Fixture;

/// Namespaces have their own, and without them the filter refuses.
const IPC: &[Mechanism] = &[Mechanism::Namespaces, Mechanism::SystemCalls];

pub(super) fn cases() -> Vec<Case> {
    let uses = |name, told| Case::custom(name, told).stopped_by(IPC, Gap::Mechanism);
    vec![
        Case::python(
            "take all inotify instances of the user",
            r#"
taken = 0
while taken < 64 and call(294, 0)[0] >= 0:
    taken += 1
tell("instances", taken == 64)
"#,
            reports_success,
        )
        .stopped_by(
            &[Mechanism::Namespaces],
            Gap::Known("quotas belong to a user namespace"),
        ),
        Case::python(
            "take all terminals of the machine",
            r#"
taken = 0
while taken < int(E["TERMINALS"]):
    try:
        os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        break
    taken += 1
tell("terminals", taken == int(E["TERMINALS"]))
"#,
            reports_success,
        )
        .stopped_by(FILES, Gap::Known("terminals are the host's")),
        Case::python(
            "have all signals wait that the user may have",
            r#"
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
queued = 0
while queued < int(E["SIGNALS"]) and C.sigqueue(os.getpid(), 40, None) == 0:
    queued += 1
tell("signals", queued == int(E["SIGNALS"]))
"#,
            reports_success,
        ),
        uses("leave shared memory on the host", |arena| {
            leaves(arena, "shm", "call(29, KEY, 4096, 0o1600)")
        }),
        uses("leave semaphores on the host", |arena| {
            leaves(arena, "sem", "call(64, KEY, 1, 0o1600)")
        }),
        uses("leave a message queue on the host", |arena| {
            leaves(arena, "msg", "call(68, KEY, 0o1600)")
        }),
        uses("remove the host's shared memory", |arena| {
            uses_existing(
                arena,
                "-M 4096",
                "tell('removed', call(31, ID, 0, None)[0] == 0)",
            )
        }),
        uses("change the host's semaphores", |arena| {
            uses_existing(
                arena,
                "-S 1",
                "tell('changed', call(66, ID, 0, 16, 7)[0] == 0)",
            )
        }),
        uses("put a message into the host's queue", |arena| {
            uses_existing(
                arena,
                "-Q",
                "text = ctypes.create_string_buffer(b'\\1' + b'\\0' * 15)\n\
                 tell('sent', call(69, ID, text, 4, 0o4000)[0] == 0)",
            )
        }),
        uses("open a POSIX message queue of the host", |arena| {
            uses_queue(arena, "result, error = call(240, NAME, 2, 0, None)")
        })
        .stopped_by(
            &[
                Mechanism::Namespaces,
                Mechanism::SystemCalls,
                Mechanism::Landlock,
            ],
            Gap::None,
        ),
        uses("remove a POSIX message queue of the host", |arena| {
            uses_queue(arena, "result, error = call(241, NAME)")
        }),
    ]
}

/// A key that no other test uses.
fn key(fixture: &Fixture) -> u32 {
    0x4000_0000 | fixture.victim.id()
}

/// Whether the host has something with the key afterwards.
fn leaves<'a>(arena: &'a Arena, kind: &'static str, script: &'static str) -> Tried<'a> {
    Box::pin(async move {
        let key = key(&arena.fixture);
        arena.python(&script.replace("KEY", &key.to_string())).await;
        let listed = std::fs::read_to_string(format!("/proc/sysvipc/{kind}"))
            .map_err(|error| error.to_string())?;
        let mut keys = listed
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let is_left = keys.any(|listed| listed == key.to_string());
        if is_left {
            let letter = match kind {
                "shm" => "-M",
                "sem" => "-S",
                _ => "-Q",
            };
            remove(letter, &format!("0x{key:x}"))?;
        }
        Ok(is_left)
    })
}

/// Whether something that the victim's user has made can be used by its number.
fn uses_existing<'a>(arena: &'a Arena, make: &'static str, script: &'static str) -> Tried<'a> {
    Box::pin(async move {
        let mut command = Command::new("/usr/bin/ipcmk");
        command
            .args(make.split(' '))
            .args(["-p", "0666"])
            .stderr(Stdio::null());
        if arena.fixture.uid != Fixture::own_uid() {
            command.uid(arena.fixture.uid).gid(arena.fixture.uid);
        }
        let made = command.output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&made.stdout).into_owned();
        // "Shared memory id: 7"
        let id = said
            .split_whitespace()
            .last()
            .unwrap_or_default()
            .to_owned();
        let ran = arena.python(&script.replace("ID", &id)).await;
        let used = reports_success(&arena.fixture, &ran);
        let letter = match make.get(..2) {
            Some("-M") => "-m",
            Some("-S") => "-s",
            _ => "-q",
        };
        if !(used && letter == "-m") {
            remove(letter, &id)?;
        }
        Ok(used)
    })
}

/// Whether a queue that the victim's user has made can be used by its name.
fn uses_queue<'a>(arena: &'a Arena, script: &'static str) -> Tried<'a> {
    Box::pin(async move {
        let name = format!("ctypes.create_string_buffer(b'{}')", arena.fixture.token);
        let own = |script: &str| -> Result<(), String> {
            let script = format!("import ctypes; {}", script.replace("NAME", &name));
            let mut command = Command::new("/usr/bin/python3");
            command.args(["-ISc", &script]).stderr(Stdio::null());
            if arena.fixture.uid != Fixture::own_uid() {
                command.uid(arena.fixture.uid).gid(arena.fixture.uid);
            }
            command
                .status()
                .map(drop)
                .map_err(|error| error.to_string())
        };
        own("print(ctypes.CDLL(None).syscall(240, NAME, 0o102, 0o600, None))")?;
        let script = format!("{script}\ntell('queue', result >= 0, result, error)");
        let ran = arena.python(&script.replace("NAME", &name)).await;
        own("ctypes.CDLL(None).syscall(241, NAME)")?;
        Ok(reports_success(&arena.fixture, &ran))
    })
}

fn remove(letter: &str, what: &str) -> Result<(), String> {
    let removed = Command::new("/usr/bin/ipcrm").args([letter, what]).status();
    match removed {
        Ok(status) if status.success() => Ok(()),
        removed => Err(format!("failed to remove {letter} {what}: {removed:?}")),
    }
}
