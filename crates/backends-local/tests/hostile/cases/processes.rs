//! The host's processes: seeing them, looking into them, changing and ending them.

use cantle_backends_local::Mechanism;
use cantle_core::sandbox::{SandboxExt as _, SpawnRequest};

use super::{reports_success, shows_secret};
use crate::arena::{Arena, LATE};
use crate::case::{Case, FILTER, Gap, NAMESPACES, NegativeControl, Tried};
use crate::traces;

/// Landlock keeps from other processes, too.
const EITHER: &[Mechanism] = &[Mechanism::Namespaces, Mechanism::Landlock];
const INTO: &[Mechanism] = &[
    Mechanism::Namespaces,
    Mechanism::Landlock,
    Mechanism::SystemCalls,
];

pub(super) fn cases() -> Vec<Case> {
    [seeing(), looking_into(), changing()].concat()
}

fn seeing() -> Vec<Case> {
    vec![
        Case::python(
            "see the host's processes",
            r#"
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if E["VICTIM_MARK"] in open(f"/proc/{pid}/cmdline").read():
            print("GOT", pid)
    except OSError:
        pass
"#,
            reports_success,
        )
        .stopped_by(NAMESPACES, VISIBLE),
        Case::shell(
            "see whether a process is there",
            r#"[ -e "/proc/$VICTIM" ] && echo GOT"#,
            reports_success,
        )
        .stopped_by(NAMESPACES, VISIBLE),
    ]
}

const VISIBLE: Gap = Gap::Known("without namespaces the list of processes can be read");

fn looking_into() -> Vec<Case> {
    let reads =
        |name, script| Case::python(name, script, shows_secret).stopped_by(EITHER, Gap::Mechanism);
    vec![
        reads(
            "read the environment of a process",
            r#"print(open(f"/proc/{E['VICTIM']}/environ").read())"#,
        ),
        reads(
            "read the memory of a process through a file",
            r#"
for line in open(f"/proc/{E['VICTIM']}/maps"):
    if "[stack]" in line:
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        memory = open(f"/proc/{E['VICTIM']}/mem", "rb", 0)
        memory.seek(start)
        sys.stdout.buffer.write(memory.read(end - start))
"#,
        ),
        Case::python(
            "read the memory of a process with a system call",
            // 310 is process_vm_readv; the address doesn't matter to whether it is allowed.
            r#"
here = ctypes.create_string_buffer(8)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
own = Vector(ctypes.addressof(here), 8)
theirs = Vector(4096, 8)
result, error = call(310, int(E["VICTIM"]), ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0)
tell("process_vm_readv", error == errno.EFAULT, result, error)
"#,
            reports_success,
        )
        .stopped_by(INTO, Gap::None),
        Case::python(
            "trace a process",
            r#"
result, error = call(101, 16, int(E["VICTIM"]), 0, 0)
tell("ptrace", result == 0, result, error)
"#,
            reports_success,
        )
        .stopped_by(INTO, Gap::None),
        Case::python(
            "trace a child of one's own",
            r#"
child = os.fork()
if child == 0:
    time.sleep(5)
    os._exit(0)
result, error = call(101, 0x4206, child, 0, 0)
tell("ptrace", result == 0, result, error)
os.kill(child, 9)
"#,
            reports_success,
        )
        .stopped_by(FILTER, Gap::Mechanism),
        Case::python(
            "take a descriptor of a process",
            r#"
pidfd, error = call(434, int(E["VICTIM"]), 0)
result, error = call(438, pidfd, 0, 0)
tell("pidfd_getfd", result >= 0, result, error)
"#,
            reports_success,
        )
        .stopped_by(INTO, Gap::None),
        Case::shell(
            "open the memory of the supervisor",
            r#"for pid in 1 $PPID; do for mode in '<' '>>' '<>'; do
                 eval "exec 3$mode /proc/$pid/mem" && echo GOT; done; done; true"#,
            reports_success,
        )
        .control(NegativeControl::Raw),
        Case::shell(
            "enter the namespaces of a process",
            r#"nsenter -t "$VICTIM" -m -n -p true && echo GOT; nsenter -t 1 -m true && echo GOT"#,
            reports_success,
        )
        .takes_root(),
    ]
}

fn changing() -> Vec<Case> {
    let ends = |name, line| {
        Case::shell(name, line, |fixture, _| !fixture.victim_runs())
            .stopped_by(EITHER, Gap::Mechanism)
    };
    vec![
        ends("kill a process", r#"kill -9 "$VICTIM" && sleep 2"#),
        ends(
            "kill a process group",
            r#"kill -9 -- "-$VICTIM" && sleep 2"#,
        ),
        Case::python(
            "kill a process through a descriptor",
            r#"
pidfd, error = call(434, int(E["VICTIM"]), 0)
result, error = call(424, pidfd, 9, 0, 0)
time.sleep(2 if result == 0 else 0)
"#,
            |fixture, _| !fixture.victim_runs(),
        )
        .stopped_by(EITHER, Gap::Mechanism),
        Case::python(
            "limit what a process may use",
            // The same as killing it, a little later: of processor time, or of open files.
            r#"
limits = (ctypes.c_uint64 * 2)(7, 7)
call(302, int(E["VICTIM"]), 7, ctypes.byref(limits), None)
"#,
            |fixture, _| {
                let limits = fixture.victim_file("limits");
                let mut lines = limits
                    .lines()
                    .filter(|line| line.starts_with("Max open files"));
                lines.any(|line| line.split_whitespace().nth(3) == Some("7"))
            },
        )
        .stopped_by(
            &[Mechanism::Namespaces, Mechanism::SystemCalls],
            Gap::Mechanism,
        ),
        Case::shell(
            "slow a process down",
            r#"renice -n 7 -p "$VICTIM""#,
            |fixture, _| {
                let stat = fixture.victim_file("stat");
                let fields = stat.rsplit(')').next().unwrap_or_default();
                fields.split_whitespace().nth(16) == Some("7")
            },
        )
        .stopped_by(
            &[Mechanism::Namespaces],
            Gap::Known("what else the user runs can be slowed down or moved"),
        ),
        Case::shell(
            "pin a process to one processor",
            r#"taskset -p 1 "$VICTIM""#,
            |fixture, _| {
                let status = fixture.victim_file("status");
                status.lines().any(|line| line == "Cpus_allowed_list:\t0")
            },
        )
        .stopped_by(
            &[Mechanism::Namespaces],
            Gap::Known("what else the user runs can be slowed down or moved"),
        ),
        Case::custom(
            "kill a process of another sandbox",
            kills_in_another_sandbox,
        )
        .stopped_by(EITHER, Gap::Mechanism),
        Case::custom("read a file of another sandbox", reads_in_another_sandbox)
            .stopped_by(EITHER, Gap::Mechanism),
        Case::shell(
            "run before others",
            "nice -n -5 true 2>&1 | grep -q cannot || echo GOT; chrt -f 1 true && echo GOT",
            reports_success,
        )
        .takes_root(),
    ]
}

/// A process of another sandbox, by the id that the host knows.
fn kills_in_another_sandbox(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let other = arena.another().await.map_err(|error| error.to_string())?;
        let mark = format!("other-{}", arena.fixture.token);
        let request = SpawnRequest::shell("exec sleep 60").with_env("OTHER", mark.as_str());
        let running = other
            .spawn(request)
            .await
            .map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        traces::soon(LATE, || {
            found = traces::marked(&mark);
            !found.is_empty()
        })
        .await;
        let Some(pid) = found.first() else {
            return Err("the other process was not found".to_owned());
        };
        arena.shell(&format!("kill -9 {pid} && sleep 2")).await;
        let dead = !traces::runs(*pid);
        drop(running);
        other.close().await.map_err(|error| error.to_string())?;
        Ok(dead)
    })
}

/// By its path on the host, which is known from its name.
fn reads_in_another_sandbox(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let other = arena.another().await.map_err(|error| error.to_string())?;
        let written = format!("echo {} > own", arena.fixture.secret);
        other
            .run(SpawnRequest::shell(written))
            .await
            .map_err(|error| error.to_string())?;
        let place = arena.fixture.sandboxes().join(&other.info().id);
        let ran = arena
            .shell(&format!("cat {}/work/own", place.display()))
            .await;
        other.close().await.map_err(|error| error.to_string())?;
        Ok(shows_secret(&arena.fixture, &ran))
    })
}
