//! The system call filter for the commands of local sandboxes and containers (seccomp).
//!
//! It names what is refused, not what is allowed: allow-lists break some program every month. Refused calls
//! either reach parts of the kernel that no ordinary program needs and that have a history of
//! vulnerabilities, or bypass the other mechanisms. They fail with `EPERM`; `clone3` fails with `ENOSYS`, so
//! that C libraries use `clone`, whose flags a filter can inspect, and so do calls newer than this filter.

mod bpf;

use self::bpf::{Action, Condition, FilterRules};

/// Calls that the `libc` crate does not name yet.
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;
const LISTNS: i64 = 470;

/// Calls that are always refused.
const REFUSED: &[i64] = &[
    // Access to other processes.
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
    OPEN_TREE_ATTR,
    LISTNS,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Interfaces with a history of vulnerabilities.
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
    // Access to files without a path.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // The machine.
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

/// Calls that act on System V and POSIX IPC objects, which outlive a process and are visible to others.
const SHARED: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Calls that change a file's mode, owner, times or attributes.
const METADATA: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
];

/// Calls that set a mode: the number of its argument.
const SETTING_MODES: [(i64, u32); 7] = [
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_creat, 1),
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
];

/// Calls that may create a file: the number of their flags, which the mode follows.
const OPENING: [(i64, u32); 2] = [(libc::SYS_open, 1), (libc::SYS_openat, 2)];

/// Calls that change how a process, their first argument, is scheduled.
const SCHEDULING: [i64; 4] = [
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
];

/// Calls that allocate memory: the number of their flags, and the flag for huge pages.
const HUGE_PAGES: [(i64, u32, u32); 3] = [
    (libc::SYS_mmap, 3, 0x4_0000),
    (libc::SYS_memfd_create, 1, 0x4),
    (libc::SYS_shmget, 2, 0o4000),
];

/// Requests of `ioctl` that are always refused.
const REFUSED_REQUESTS: [u32; 8] = [
    // Injecting input into a terminal, and line disciplines, which are loaded on demand and have a history of vulnerabilities.
    0x5412, // TIOCSTI
    0x541C, // TIOCLINUX
    0x5423, // TIOCSETD
    // Subvolumes of btrfs: what is in a read-only one can't be removed with the sandbox's directory.
    0x5000_9401, // BTRFS_IOC_SNAP_CREATE
    0x5000_940E, // BTRFS_IOC_SUBVOL_CREATE
    0x5000_9417, // BTRFS_IOC_SNAP_CREATE_V2
    0x5000_9418, // BTRFS_IOC_SUBVOL_CREATE_V2
    0x4008_941A, // BTRFS_IOC_SUBVOL_SETFLAGS
];

/// Calls that start a process.
const STARTING: &[i64] = &[libc::SYS_fork, libc::SYS_vfork];
/// Calls that execute a program.
const EXECUTING: &[i64] = &[libc::SYS_execve, libc::SYS_execveat];

/// A socket family, the bits of a socket's type that hold its kind, and some kinds.
const UNIX: u32 = 1;
const KIND: u32 = 0xf;
const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
const SEQUENCED: u32 = 5;

/// The input of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterOptions {
    /// The sockets that commands may create.
    pub sockets: AllowedSockets,
    /// Whether processes, message queues, shared memory and semaphores are the host's.
    pub shares_with_host: bool,
    /// Whether a command may start processes.
    pub subprocesses: bool,
    /// Whether programs that run as their owner may be made (set-user-id and set-group-id modes).
    pub set_id_modes: bool,
}

/// The sockets that commands may create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedSockets {
    /// Connected pairs only, since the network is the host's.
    PairsOnly,
    /// Those of ordinary programs.
    Ordinary,
}

/// Compiles the filter for everything in a sandbox.
pub fn program(options: FilterOptions) -> Vec<u8> {
    let mut rules = FilterRules::default();
    rules.always(REFUSED, Action::REFUSE);
    // `FS_IOC_FSSETXATTR` does the same for files that were opened, which Landlock can refuse.
    rules.always(&[libc::SYS_clone3, FILE_SETATTR], Action::MISSING);
    // The administrator has reserved them, and no limit on memory counts them.
    for (call, flags, huge) in HUGE_PAGES {
        rules.refuse_if(call, vec![vec![Condition::has_one_of(flags, huge)]]);
    }
    if options.shares_with_host {
        rules.always(SHARED, Action::REFUSE);
    }
    if options.subprocesses {
        rules.always(&[libc::SYS_ptrace], Action::REFUSE);
    }
    if !options.set_id_modes {
        refuse_set_id_modes(&mut rules);
    }
    rules.refuse_if(libc::SYS_clone, new_namespaces());
    protect_init(&mut rules, options.shares_with_host);
    let requests = REFUSED_REQUESTS.map(|request| vec![Condition::is(1, request)]);
    rules.refuse_if(libc::SYS_ioctl, requests.into());
    // Leases on files: whoever opens such a file outside, which may only be readable here, waits for the holder.
    let leases = [1024 /* F_SETLEASE */, 1040 /* F_SETDELEG */];
    let leases = leases.map(|command| vec![Condition::is(1, command)]);
    rules.refuse_if(libc::SYS_fcntl, leases.into());
    // All but a query, and Linux's own.
    let others = vec![Condition::is_not(0, 0), Condition::is_not(0, 0xffff_ffff)];
    rules.refuse_if(libc::SYS_personality, vec![others]);
    let (family, kind) = (0, 1);
    let mut pairs = vec![vec![Condition::is_not(family, UNIX)]];
    match options.sockets {
        AllowedSockets::PairsOnly => {
            rules.always(&[libc::SYS_socket], Action::REFUSE);
            // A datagram socket can be reconnected to any other; these kinds can't.
            pairs.push(vec![
                Condition::masked_not(kind, KIND, STREAM),
                Condition::masked_not(kind, KIND, SEQUENCED),
            ]);
        }
        AllowedSockets::Ordinary => rules.refuse_if(libc::SYS_socket, unusual_sockets()),
    }
    rules.refuse_if(libc::SYS_socketpair, pairs);
    rules.compile()
}

/// Compiles the additional filter of a command that may not start processes. It is in force when the
/// command's own program is executed, which the tracer allows; afterwards there is no tracer.
pub fn without_subprocesses() -> Vec<u8> {
    const THREAD: u32 = 0x1_0000;
    let mut rules = FilterRules::default();
    rules.always(STARTING, Action::REFUSE);
    // Either call could provide another tracer or listener, which could allow programs.
    rules.always(&[libc::SYS_ptrace, libc::SYS_seccomp], Action::REFUSE);
    rules.always(EXECUTING, Action::ASK_TRACER);
    rules.refuse_if(
        libc::SYS_clone,
        vec![vec![Condition::has_none_of(0, THREAD)]],
    );
    rules.compile()
}

/// Compiles the additional filter of a command that may only read files: it refuses to change their metadata, which
/// Landlock does not restrict.
pub fn without_metadata_changes() -> Vec<u8> {
    let mut rules = FilterRules::default();
    rules.always(METADATA, Action::REFUSE);
    rules.always(&[libc::SYS_clone3, FILE_SETATTR], Action::MISSING);
    let changes = [
        0x4008_6602, // FS_IOC_SETFLAGS
        0x4008_7602, // FS_IOC_SETVERSION
        0x401c_5820, // FS_IOC_FSSETXATTR
        0x4080_6685, // FS_IOC_ENABLE_VERITY: its content can't be changed any more.
    ];
    let changes = changes.map(|request| vec![Condition::is(1, request)]);
    rules.refuse_if(libc::SYS_ioctl, changes.into());
    rules.compile()
}

/// Refuses set-user-id and set-group-id modes.
fn refuse_set_id_modes(rules: &mut FilterRules) {
    const SET_ID: u32 = 0o6000;
    const CREATING: u32 = 0o100 | 0o2000_0000; // O_CREAT, and the bit of O_TMPFILE
    for (call, mode) in SETTING_MODES {
        rules.refuse_if(call, vec![vec![Condition::has_one_of(mode, SET_ID)]]);
    }
    for (call, flags) in OPENING {
        let creates = Condition::has_one_of(flags, CREATING);
        let conditions = vec![creates, Condition::has_one_of(flags + 1, SET_ID)];
        rules.refuse_if(call, vec![conditions]);
    }
    // Its mode is in memory, which a filter can't inspect.
    rules.always(&[libc::SYS_openat2], Action::MISSING);
}

/// Refuses to slow init down or to limit it, which may run as the commands' user: commands that also keep all
/// processors busy could not be killed any more.
fn protect_init(rules: &mut FilterRules, shares_with_host: bool) {
    const PROCESS: u32 = 0;
    const USER: u32 = 2;
    const INIT: u32 = 1;
    for call in SCHEDULING {
        rules.refuse_if(call, vec![vec![Condition::is(0, INIT)]]);
    }
    let init = vec![Condition::is(0, PROCESS), Condition::is(1, INIT)];
    // All processes of a user, and init among them.
    let user = vec![Condition::is(0, USER)];
    rules.refuse_if(libc::SYS_setpriority, vec![init, user]);
    // The same for the disk; the numbers are one higher.
    let init = vec![Condition::is(0, PROCESS + 1), Condition::is(1, INIT)];
    let user = vec![Condition::is(0, USER + 1)];
    rules.refuse_if(libc::SYS_ioprio_set, vec![init, user]);
    // Lowering another process's limits can kill it.
    let others = match shares_with_host {
        true => Condition::is_not(0, 0),
        false => Condition::is(0, INIT),
    };
    rules.refuse_if(libc::SYS_prlimit64, vec![vec![others]]);
}

/// `clone` with a flag for a new namespace.
fn new_namespaces() -> Vec<Vec<Condition>> {
    const FLAGS: u32 = 0x0002_0000 // mounts
        | 0x0200_0000 // control groups
        | 0x0400_0000 // host name
        | 0x0800_0000 // IPC
        | 0x1000_0000 // users
        | 0x2000_0000 // processes
        | 0x4000_0000; // network
    vec![vec![Condition::has_one_of(0, FLAGS)]]
}

/// `socket` of a family that ordinary programs do not use, and raw ones.
fn unusual_sockets() -> Vec<Vec<Condition>> {
    const NETLINK: u32 = 16;
    const RAW: u32 = 3;
    let (family, kind, protocol) = (0, 1, 2);
    let families = [UNIX, 2 /* inet */, 10 /* inet6 */, NETLINK];
    let mut rules = vec![
        families
            .map(|known| Condition::is_not(family, known))
            .into(),
        // `getifaddrs` needs routing information, from a socket that is nominally raw.
        vec![
            Condition::is(family, NETLINK),
            Condition::is_not(protocol, 0),
        ],
    ];
    rules.push(vec![
        Condition::is_not(family, NETLINK),
        Condition::masked(kind, KIND, RAW),
    ]);
    // Of the internet families only streams and datagrams of TCP, UDP and ICMP: other protocols are rarely
    // used, often loaded on demand, and have a history of vulnerabilities.
    let internet = [UNIX, NETLINK].map(|other| Condition::is_not(family, other));
    let kinds = [STREAM, DATAGRAM].map(|usual| Condition::masked_not(kind, KIND, usual));
    rules.push(internet.into_iter().chain(kinds).collect());
    let protocols = [
        0, 1,  /* ICMP */
        6,  /* TCP */
        17, /* UDP */
        58, /* ICMPv6 */
    ];
    let protocols = protocols.map(|usual| Condition::is_not(protocol, usual));
    rules.push(internet.into_iter().chain(protocols).collect());
    rules
}

#[cfg(test)]
mod tests;
