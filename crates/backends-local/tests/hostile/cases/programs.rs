//! Starting programs where the policy says that a command may not.

use cantle_backends_local::Mechanism;
use cantle_core::policy::{Policy, PolicyField};

use super::reports_success;
use crate::case::{Case, FILTER, Gap, NegativeControl};

pub(super) fn cases() -> Vec<Case> {
    let starts = |name, script| {
        Case::python(name, script, reports_success)
            .under(|_| alone())
            .stopped_by(FILTER, Gap::Field(PolicyField::Subprocesses))
            .control(NegativeControl::Under(|_| Policy::workspace()))
    };
    vec![
        starts(
            "start a program from the shell of the time",
            "C.system(b'echo GOT')",
        ),
        starts("fork", "attempt('fork', lambda: os.fork() or os._exit(0))"),
        starts(
            "fork by system calls",
            // The child of vfork must not return; that of fork and clone ends at once.
            r#"
for name, number, *arguments in [("fork", 57), ("clone", 56, 17, 0, 0, 0, 0)]:
    result, error = call(number, *arguments)
    if result == 0:
        os._exit(0)
    tell(name, result > 0, result, error)
"#,
        ),
        starts(
            "fork by system calls with high bits",
            r#"
result, error = call(56, 17 | 1 << 40, 0, 0, 0, 0)
if result == 0:
    os._exit(0)
tell("clone", result > 0, result, error)
"#,
        ),
        starts(
            "fork by the newest system call",
            r#"
arguments = (ctypes.c_uint64 * 11)(*[0] * 4, 17, *[0] * 6)
result, error = call(435, ctypes.byref(arguments), 88)
if result == 0:
    os._exit(0)
tell("clone3", result > 0, result, error)
"#,
        )
        // No sandbox has this one, so that C libraries take the other.
        .control(NegativeControl::Raw),
        starts(
            "become another program",
            "os.execl('/bin/echo', 'echo', 'GOT')",
        ),
        starts(
            "become another program through a descriptor",
            "os.execve(os.open('/bin/echo', os.O_RDONLY), ['echo', 'GOT'], {})",
        ),
        starts(
            "become another program from memory",
            r#"
file = os.memfd_create("program")
os.write(file, open("/bin/echo", "rb").read())
os.execve(f"/proc/self/fd/{file}", ["echo", "GOT"], {})
"#,
        ),
        starts(
            "become another program through the loader",
            "os.execl('/lib64/ld-linux-x86-64.so.2', 'ld', '/bin/echo', 'GOT')",
        ),
        starts(
            "start a program as libraries do",
            "pid = os.posix_spawn('/bin/echo', ['echo', 'GOT'], {})\nos.waitpid(pid, 0)",
        ),
        starts("become another program from a thread", THREAD),
        starts(
            "become another program and answer the filter oneself",
            NOTIFIED,
        ),
        Case::python(
            "be traced by oneself",
            "reaches('traceme', 101, 0, 0, 0, 0)",
            reports_success,
        )
        .under(|_| alone())
        .stopped_by(FILTER, Gap::Field(PolicyField::Subprocesses))
        .control(NegativeControl::Without(&[Mechanism::SystemCalls])),
        // Not an attack, but what the mechanism must leave: a thread.
        Case::python(
            "be kept from making a thread",
            "import _thread\n\
             lock = _thread.allocate_lock(); lock.acquire()\n\
             _thread.start_new_thread(lock.release, ())\n\
             print('NO' if lock.acquire(timeout=10) else 'GOT')",
            reports_success,
        )
        .under(|_| alone())
        .control(NegativeControl::No(
            "a thread is allowed with mechanisms and without",
        )),
    ]
}

fn alone() -> Policy {
    let mut policy = Policy::workspace();
    policy.subprocesses = Some(false);
    policy
}

const THREAD: &str = r#"
thread = threading.Thread(target=lambda: os.execl("/bin/echo", "echo", "GOT"))
thread.start()
thread.join()
"#;

/// A filter of one's own that asks oneself comes before one that asks a tracer: whoever listens to
/// it says "go on".
const NOTIFIED: &str = r#"
class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("true", ctypes.c_uint8),
                ("false", ctypes.c_uint8), ("value", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filters", ctypes.POINTER(Filter))]
filters = (Filter * 4)(
    Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, 59),
    Filter(0x06, 0, 0, 0x7FC00000), Filter(0x06, 0, 0, 0x7FFF0000))
listener = -1
def answer():
    while listener < 0:
        time.sleep(0.001)
    asked = ctypes.create_string_buffer(80)
    C.ioctl(listener, ctypes.c_ulong(0xC0502100), asked)
    said = ctypes.create_string_buffer(asked.raw[:8] + b"\0" * 12 + b"\1\0\0\0", 24)
    C.ioctl(listener, ctypes.c_ulong(0xC0182101), said)
threading.Thread(target=answer, daemon=True).start()
call(157, 38, 1, 0, 0, 0)
listener, error = call(317, 1, 8, ctypes.byref(Program(4, filters)))
if listener < 0:
    print("no listener", error)
    os._exit(0)
os.set_inheritable(listener, True)
C.execve(b"/bin/echo", (ctypes.c_char_p * 3)(b"echo", b"GOT", None), None)
"#;
