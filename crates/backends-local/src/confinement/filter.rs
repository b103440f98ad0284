//! The system calls that commands may make, as a filter (seccomp).
//!
//! It names what is refused, not what is allowed: allow-lists break some program every month. What
//! is refused either reaches parts of the kernel that no ordinary program needs and that have a
//! history of holes, or goes around the other walls. Refused calls answer `EPERM`, and `clone3`
//! `ENOSYS`, upon which C libraries use `clone`, whose flags can be seen here.

use std::collections::BTreeMap;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Calls that are refused to everybody.
const REFUSED: &[i64] = &[
    // Looking into other processes.
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts, namespaces, roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Interfaces with a history.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_memfd_secret,
    libc::SYS_vmsplice,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS__sysctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    // Files without a path.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // The machine itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
];

/// Calls by which processes that share the host's namespaces leave something behind, or meet.
const SHARED: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
];

/// Calls that start a process.
const STARTING: &[i64] = &[libc::SYS_fork, libc::SYS_vfork];
/// Calls that execute a program.
const EXECUTING: &[i64] = &[libc::SYS_execve, libc::SYS_execveat];

/// Calls with this bit are of the x32 interface, which nothing uses; filters that forget it see
/// other numbers.
const X32: u32 = 0x4000_0000;

const REFUSE: SeccompAction = SeccompAction::Errno(libc::EPERM.unsigned_abs());
const MISSING: SeccompAction = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());

/// For each call, when the filter's action is taken; where nothing is said, in any case.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What the filter depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Openness {
    pub(super) sockets: Sockets,
    /// Whether System V and POSIX message queues, shared memory and semaphores are the host's.
    pub(super) shares_ipc: bool,
    /// Whether a command may start processes.
    pub(super) subprocesses: bool,
}

/// The sockets that commands may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sockets {
    /// None but pairs: their network is the host's.
    None,
    /// Those of ordinary programs.
    Ordinary,
}

/// The filters, in the order in which they are installed, as the kernel reads them.
pub(super) fn programs(openness: Openness) -> Result<[Vec<u8>; 2], SandboxError> {
    let missing = unconditionally(&[libc::SYS_clone3]);
    Ok([
        encode(compile(rules(openness)?, REFUSE)?),
        encode(compile(missing, MISSING)?),
    ])
}

/// The filters that every command gets besides, where it may not start other programs. The first
/// program is executed with them in force: that asks a tracer, and after it there is none.
pub(super) fn for_single_programs() -> Result<[Vec<u8>; 2], SandboxError> {
    let thread = 0x1_0000;
    let no_thread = when(0, Compare::MaskedEq(thread), 0)
        .and_then(|condition| rule(vec![condition]))
        .map_err(|error| broken(&error))?;
    // Nobody may trace either: that would be somebody to be asked.
    let mut refused = unconditionally(STARTING.iter().chain(&[libc::SYS_ptrace]));
    refused.insert(libc::SYS_clone, vec![no_thread]);
    let asked = unconditionally(EXECUTING);
    Ok([
        encode(compile(refused, REFUSE)?),
        encode(compile(asked, SeccompAction::Trace(0))?),
    ])
}

fn unconditionally<'c>(calls: impl IntoIterator<Item = &'c i64>) -> Rules {
    // No conditions: in any case.
    calls.into_iter().map(|call| (*call, Vec::new())).collect()
}

fn rules(openness: Openness) -> Result<Rules, SandboxError> {
    let mut rules = unconditionally(REFUSED);
    if openness.shares_ipc {
        rules.extend(unconditionally(SHARED));
    }
    if openness.sockets == Sockets::None {
        rules.extend(unconditionally(&[libc::SYS_socket]));
    }
    if openness.subprocesses {
        rules.extend(unconditionally(&[libc::SYS_ptrace]));
    }
    rules.extend(conditional(openness).map_err(|error| broken(&error))?);
    Ok(rules)
}

/// Calls that depend on their arguments.
fn conditional(openness: Openness) -> Result<Vec<(i64, Vec<SeccompRule>)>, BackendError> {
    let is = |argument, value| when(argument, Compare::Eq, value);
    let is_not = |argument, value| when(argument, Compare::Ne, value);
    let mut calls = vec![
        (libc::SYS_clone, new_namespaces()?),
        // Putting words into a terminal's input.
        (
            libc::SYS_ioctl,
            vec![
                rule(vec![is(1, 0x5412 /* TIOCSTI */)?])?,
                rule(vec![is(1, 0x541C /* TIOCLINUX */)?])?,
            ],
        ),
        // Asking for it, and Linux's own.
        (
            libc::SYS_personality,
            vec![rule(vec![is_not(0, 0)?, is_not(0, 0xffff_ffff)?])?],
        ),
    ];
    if openness.sockets == Sockets::Ordinary {
        let (family, kind, protocol) = (0, 1, 2);
        let netlink = 16;
        let families = [
            1,  /* unix */
            2,  /* inet */
            10, /* inet6 */
            netlink,
        ];
        let others = families.map(|known| is_not(family, known));
        let mut rules = vec![
            rule(others.into_iter().collect::<Result<_, _>>()?)?,
            // `getifaddrs` needs routing information.
            rule(vec![is(family, netlink)?, is_not(protocol, 0)?])?,
        ];
        for family_number in families.into_iter().filter(|number| *number != netlink) {
            let raw = when(kind, Compare::MaskedEq(0xf), 3)?;
            rules.push(rule(vec![is(family, family_number)?, raw])?);
        }
        calls.push((libc::SYS_socket, rules));
    }
    Ok(calls)
}

/// `clone` with a flag for a new namespace.
fn new_namespaces() -> Result<Vec<SeccompRule>, BackendError> {
    const FLAGS: [u64; 7] = [
        0x0002_0000, // mounts
        0x0200_0000, // control groups
        0x0400_0000, // host name
        0x0800_0000, // IPC
        0x1000_0000, // users
        0x2000_0000, // processes
        0x4000_0000, // network
    ];
    let has = |flag| rule(vec![when(0, Compare::MaskedEq(flag), flag)?]);
    FLAGS.into_iter().map(has).collect()
}

fn when(argument: u8, operator: Compare, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Length::Dword, operator, value)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions)
}

fn compile(rules: Rules, action: SeccompAction) -> Result<BpfProgram, SandboxError> {
    SeccompFilter::new(rules, SeccompAction::Allow, action, TargetArch::x86_64)
        .and_then(TryInto::try_into)
        .map_err(|error| broken(&error))
}

fn broken(error: &BackendError) -> SandboxError {
    let message = format!("failed to compile the system call filter: {error}");
    SandboxError::new(SandboxErrorKind::Io, message)
}

/// The kernel's `struct sock_filter`s, with a refusal of the x32 interface in front.
fn encode(program: BpfProgram) -> Vec<u8> {
    const LOAD_NUMBER: (u16, u8, u8, u32) = (0x20, 0, 0, 0);
    const SKIP_UNLESS_X32: (u16, u8, u8, u32) = (0x35, 0, 1, X32);
    const ANSWER_EPERM: (u16, u8, u8, u32) = (0x06, 0, 0, 0x0005_0000 | libc::EPERM.unsigned_abs());
    let compiled = program.into_iter().map(|instruction| {
        (
            instruction.code,
            instruction.jt,
            instruction.jf,
            instruction.k,
        )
    });
    [LOAD_NUMBER, SKIP_UNLESS_X32, ANSWER_EPERM]
        .into_iter()
        .chain(compiled)
        .flat_map(|(code, jump_true, jump_false, value)| {
            let [code_low, code_high] = code.to_le_bytes();
            let [a, b, c, d] = value.to_le_bytes();
            [code_low, code_high, jump_true, jump_false, a, b, c, d]
        })
        .collect()
}
