//! The kernel's attack surface: unusual system calls, other system call interfaces, privileges.

use cantle_backends_local::Mechanism;

use super::reports_success;
use crate::case::{Case, FILTER, Gap, NegativeControl};

pub(super) fn cases() -> Vec<Case> {
    [calls(), other_interfaces(), privileges()].concat()
}

fn calls() -> Vec<Case> {
    let filtered = |name, script| {
        Case::python(name, script, reports_success)
            .stopped_by(FILTER, Gap::Mechanism)
            .control(NegativeControl::Without(&[Mechanism::SystemCalls]))
    };
    vec![
        filtered(
            "reach parts of the kernel with a history",
            // With invalid arguments, so that nothing is done.
            r#"
reaches("bpf", 321, 9999, None, 0)
reaches("userfaultfd", 323, 1)
reaches("io_uring_setup", 425, 0, None)
reaches("io_uring_enter", 426, -1, 0, 0, 0, None)
reaches("io_uring_register", 427, -1, 9999, None, 0)
reaches("keyctl", 250, 9999)
reaches("keyctl search", 250, 10, -3, b"user", b"x", 0)
reaches("add_key", 248, None, None, None, 0, 0)
reaches("request_key", 249, None, None, None, 0)
reaches("memfd_secret", 447, 9999)
reaches("vmsplice", 278, -1, None, 0, 0)
reaches("modify_ldt", 154, 0, None, 0)
reaches("perf_event_open", 298, None, 0, -1, -1, 0)
reaches("name_to_handle_at", 303, -100, b"/", None, None, 0)
reaches("open_by_handle_at", 304, -1, None, 0)
reaches("process_vm_readv", 310, 0, None, 0, None, 0, 0)
reaches("process_vm_writev", 311, 0, None, 0, None, 0, 0)
reaches("process_madvise", 440, -1, None, 0, 0, 0)
reaches("kcmp", 312, os.getpid(), os.getpid(), 9999, 0, 0)
reaches("pidfd_getfd", 438, -1, 0, 0)
reaches("unshare", 272, 0x80000000)
reaches("setns", 308, -1, 0)
reaches("move_pages", 279, 0, 0, None, None, None, 9999)
reaches("migrate_pages", 256, 0, 0, None, None)
reaches("adjtimex", 159, None)
reaches("personality", 135, 0x0040000)
reaches("quotactl", 179, 0x80000000, b"/nonexistent", 0, None)
reaches("settimeofday", 164, ctypes.byref((ctypes.c_long * 2)(-1, -1)), None)
reaches("clock_settime", 227, 9999, None)
"#,
        ),
        Case::python(
            "reach parts of the kernel that are root's",
            r#"
reaches("mount", 165, b"x", b"/proc/self", b"nonexistent", 0, None)
reaches("umount2", 166, b"/proc/self", 0)
reaches("pivot_root", 155, b"/nonexistent", b"/nonexistent")
reaches("chroot", 161, b"/")
reaches("open_tree", 428, -100, b"/nonexistent", 1)
reaches("move_mount", 429, -1, b"", -1, b"", 0)
reaches("fsopen", 430, b"nonexistent", 0)
reaches("mount_setattr", 442, -100, b"/proc/self", 0, ctypes.create_string_buffer(32), 32)
reaches("swapon", 167, b"/nonexistent", 0)
reaches("swapoff", 168, b"/nonexistent")
reaches("reboot", 169, 1, 2, 3, None)
reaches("sethostname", 170, None, -1)
reaches("setdomainname", 171, None, -1)
reaches("iopl", 172, 9)
reaches("ioperm", 173, 0x10000, 1, 1)
reaches("init_module", 175, None, 0, None)
reaches("finit_module", 313, -1, None, 0)
reaches("delete_module", 176, None, 0)
reaches("kexec_load", 246, 0, 9999, None, 0)
reaches("acct", 163, b"/nonexistent")
reaches("syslog", 103, 3, None, -1)
reaches("fanotify_init", 300, 0x80000000, 0)
"#,
            reports_success,
        )
        .stopped_by(FILTER, Gap::None)
        .takes_root(),
        filtered(
            "take huge pages, which no limit counts",
            // Without reserved ones an allowed call fails with another error.
            r#"
reaches("mmap", 9, 0, 2 << 20, 3, 0x40022, -1, 0)
reaches("memfd_create", 319, b"x", 4)
"#,
        ),
        filtered(
            "have others wait for a lease on a file",
            r#"
file = os.open("leased", os.O_RDONLY | os.O_CREAT)
reaches("F_SETLEASE", 72, file, 1024, 0)
reaches("F_SETDELEG", 72, file, 1040, None)
"#,
        ),
        filtered(
            "make namespaces by system calls",
            r#"
def cloned(name, number, *arguments):
    result, error = call(number, *arguments)
    if result == 0:
        os._exit(0)
    tell(name, result > 0, result, error)

cloned("user", 56, 0x10000000 | 17, 0, 0, 0, 0)
cloned("everything", 56, 0x7E020000 | 17, 0, 0, 0, 0)
cloned("with high bits", 56, 1 << 40 | 0x10000000 | 17, 0, 0, 0, 0)
result, error = call(272, 0x10000000)
tell("unshare", result == 0, result, error)
"#,
        ),
        Case::python(
            "make namespaces by the newest system call",
            r#"
arguments = (ctypes.c_uint64 * 11)(0x10000000, *[0] * 3, 17, *[0] * 6)
result, error = call(435, ctypes.byref(arguments), 88)
if result == 0:
    os._exit(0)
tell("clone3", result > 0, result, error)
"#,
            reports_success,
        )
        .stopped_by(FILTER, Gap::Mechanism)
        .control(NegativeControl::Without(&[Mechanism::SystemCalls])),
        filtered(
            "write into a terminal's input",
            // Without a terminal an allowed call fails with ENOTTY.
            r#"
reaches("TIOCSTI", 16, 0, 0x5412, b"x")
reaches("TIOCSTI with high bits", 16, 0, 1 << 32 | 0x5412, b"x")
reaches("TIOCLINUX", 16, 0, 0x541C, b"\2")
"#,
        ),
        filtered(
            "load a line discipline",
            r#"reaches("TIOCSETD", 16, 0, 0x5423, b"\x15\0\0\0")"#,
        ),
    ]
}

/// System calls of other architectures, from executable memory.
fn other_interfaces() -> Vec<Case> {
    let filtered = |name, script| {
        Case::python(name, script, reports_success)
            .stopped_by(FILTER, Gap::Mechanism)
            .control(NegativeControl::Without(&[Mechanism::SystemCalls]))
    };
    vec![
        filtered(
            "call the kernel as a 32-bit program",
            // mov eax, 20 (getpid); push rbx; int 0x80; pop rbx; ret
            r#"
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000" "53" "cd80" "5b" "c3"))
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
tell("getpid", function() == os.getpid())
"#,
        ),
        filtered(
            "call the kernel as an x32 program",
            // A kernel without the interface fails with ENOSYS, but was called nonetheless.
            r#"
for number in (39, 101, 41, 0x200, 0x208):
    result, error = call(0x40000000 | number, 0, 0, 0, 0)
    tell(hex(number), error != errno.EPERM, result, error)
"#,
        ),
    ]
}

/// Capabilities, groups, identity.
fn privileges() -> Vec<Case> {
    vec![
        // An ordinary user can't drop capabilities from the bounding set.
        Case::shell(
            "have a capability",
            "grep -E '^Cap(Inh|Prm|Eff|Amb):.*[1-9a-f]' /proc/self/status && echo GOT",
            reports_success,
        )
        .takes_root(),
        Case::shell(
            "be able to gain privileges",
            "grep -q 'NoNewPrivs:.0' /proc/self/status && echo GOT",
            reports_success,
        ),
        Case::shell(
            "be without a filter",
            "grep -q 'Seccomp:.2' /proc/self/status || echo GOT",
            reports_success,
        )
        .stopped_by(FILTER, Gap::Mechanism),
        Case::shell(
            "be root",
            r#"[ "$(id -u)" = 0 ] && echo GOT"#,
            reports_success,
        )
        .stopped_by(&[Mechanism::Identity], Gap::Mechanism)
        .takes_root(),
        Case::shell(
            "be in root's group",
            r#"id -G | grep -qw 0 && echo GOT"#,
            reports_success,
        )
        .stopped_by(&[Mechanism::Identity], Gap::Mechanism)
        .takes_root(),
        Case::shell(
            "become another user",
            "python3 -ISc 'import os; os.setgroups([7]); os.setuid(7); print(\"GOT\")'",
            reports_success,
        )
        .takes_root(),
        Case::shell(
            "leave a core file",
            "ulimit -H -c unlimited; [ \"$(ulimit -H -c)\" != 0 ] && echo GOT",
            reports_success,
        ),
        Case::shell(
            "see our environment",
            "env | grep -q ^CARGO && echo GOT",
            reports_success,
        )
        .control(NegativeControl::Raw),
        Case::shell(
            "keep a terminal",
            // Not even if this process has one.
            "python3 -ISc 'import os; print(\"GOT\" if os.getsid(0) != os.getpgid(0) else \"no\")'",
            reports_success,
        )
        .control(NegativeControl::No(
            "whether the test has a terminal depends on who runs it",
        )),
    ]
}
