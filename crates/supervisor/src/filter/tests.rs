use super::bpf::LAST_REVIEWED;
use super::*;

/// Runs a filter as the kernel does.
fn run(program: &[u8], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_le_bytes());
    data.extend(architecture.to_le_bytes());
    data.extend([0; 8]);
    data.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let (mut at, mut value) = (0, 0);
    loop {
        let instruction = &program[8 * at..8 * at + 8];
        let (code, jump_true, jump_false) = (instruction[0], instruction[2], instruction[3]);
        let constant = word(&instruction[4..]);
        at += 1;
        let mut jump_if =
            |holds: bool| at += usize::from(if holds { jump_true } else { jump_false });
        match code {
            0x20 => value = word(&data[constant as usize..][..4]),
            0x54 => value &= constant,
            0x05 => at += constant as usize,
            0x15 => jump_if(value == constant),
            0x35 => jump_if(value >= constant),
            0x06 => return constant,
            _ => panic!("instruction {code:#x}"),
        }
    }
}

const X86_64: u32 = 0xc000_003e;
const ALLOWED: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;

fn answer(program: &[u8], call: i64, arguments: &[u64]) -> u32 {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    run(program, X86_64, u32::try_from(call).unwrap(), all)
}

fn in_namespaces() -> Vec<u8> {
    program(FilterOptions {
        sockets: AllowedSockets::Ordinary,
        shares_with_host: false,
        subprocesses: true,
        set_id_modes: true,
    })
}

#[test]
fn only_named_and_unknown_calls_are_refused() {
    let program = in_namespaces();
    for call in 0..600 {
        let expected = if REFUSED.contains(&call) || call == libc::SYS_ptrace {
            EPERM
        } else if [libc::SYS_clone3, FILE_SETATTR].contains(&call)
            || call > i64::from(LAST_REVIEWED)
        {
            ENOSYS
        } else if [libc::SYS_socket, libc::SYS_socketpair].contains(&call) {
            // Of family 0.
            EPERM
        } else {
            ALLOWED
        };
        assert_eq!(answer(&program, call, &[]), expected, "{call}");
    }
}

#[test]
fn other_system_call_interfaces_are_refused() {
    let program = in_namespaces();
    let x32 = 0x4000_0000;
    for number in [x32, x32 | 1, x32 | 547, u32::MAX] {
        assert_eq!(run(&program, X86_64, number, [0; 6]), EPERM);
    }
    let i386 = 0x4000_0003;
    assert_eq!(run(&program, i386, 1, [0; 6]), 0x8000_0000);
}

#[test]
fn arguments_are_checked() {
    let program = in_namespaces();
    let high = 1 << 40;
    for (call, arguments, expected) in [
        (libc::SYS_socket, [1, 1, 0], ALLOWED),
        (libc::SYS_socket, [2, 0x80001, 6], ALLOWED),
        (libc::SYS_socket, [10 | high, 2, 0], ALLOWED),
        (libc::SYS_socket, [2, 3, 1], EPERM),
        (libc::SYS_socket, [10, 0x80803, 58], EPERM),
        (libc::SYS_socket, [2, 2, 17], ALLOWED),
        (libc::SYS_socket, [10, 2, 58], ALLOWED),
        (libc::SYS_socket, [2, 1, 262], EPERM),
        (libc::SYS_socket, [2, 2, 136], EPERM),
        (libc::SYS_socket, [2, 5, 132], EPERM),
        (libc::SYS_socket, [2, 10, 0], EPERM),
        (libc::SYS_socket, [1, 5, 0], ALLOWED),
        (libc::SYS_socket, [16, 3, 0], ALLOWED),
        (libc::SYS_socket, [16, 3, 9], EPERM),
        (libc::SYS_socket, [17, 3, 0], EPERM),
        (libc::SYS_socket, [38, 5, 0], EPERM),
        (libc::SYS_socket, [40, 1, 0], EPERM),
        (libc::SYS_socketpair, [1, 2, 0], ALLOWED),
        (libc::SYS_socketpair, [40, 1, 0], EPERM),
        (libc::SYS_clone, [0x11, 0, 0], ALLOWED),
        (libc::SYS_clone, [0x3d_0f00, 0, 0], ALLOWED),
        (libc::SYS_clone, [0x1000_0011, 0, 0], EPERM),
        (libc::SYS_clone, [0x0002_0000, 0, 0], EPERM),
        (libc::SYS_ioctl, [0, 0x5413, 0], ALLOWED),
        (libc::SYS_ioctl, [0, 0x5412, 0], EPERM),
        (libc::SYS_ioctl, [0, 0x5412 | high, 0], EPERM),
        (libc::SYS_ioctl, [0, 0x5423, 0], EPERM),
        (libc::SYS_ioctl, [0, 0x5424, 0], ALLOWED),
        (libc::SYS_ioctl, [3, 0x4004_9409, 4], ALLOWED),
        (libc::SYS_ioctl, [3, 0x5000_9417, 0], EPERM),
        (libc::SYS_ioctl, [3, 0x5000_9418, 0], EPERM),
        (libc::SYS_ioctl, [3, 0x4008_941a, 0], EPERM),
        (libc::SYS_fcntl, [3, 6, 0], ALLOWED),
        (libc::SYS_fcntl, [3, 1024, 0], EPERM),
        (libc::SYS_fcntl, [3, 1024 | high, 2], EPERM),
        (libc::SYS_fcntl, [3, 1025, 0], ALLOWED),
        (libc::SYS_fcntl, [3, 1040, 0], EPERM),
        (libc::SYS_memfd_create, [0, 3, 0], ALLOWED),
        (libc::SYS_memfd_create, [0, 5, 0], EPERM),
        (libc::SYS_shmget, [7, 4096, 0o1600], ALLOWED),
        (libc::SYS_shmget, [7, 4096, 0o5600], EPERM),
        (libc::SYS_personality, [0xffff_ffff, 0, 0], ALLOWED),
        (libc::SYS_personality, [0, 0, 0], ALLOWED),
        (libc::SYS_personality, [0x0040_0000, 0, 0], EPERM),
        (libc::SYS_sched_setscheduler, [0, 5, 0], ALLOWED),
        (libc::SYS_sched_setscheduler, [2, 5, 0], ALLOWED),
        (libc::SYS_sched_setscheduler, [1 | high, 5, 0], EPERM),
        (libc::SYS_sched_setparam, [1, 0, 0], EPERM),
        (libc::SYS_sched_setattr, [1, 0, 0], EPERM),
        (libc::SYS_sched_setaffinity, [1, 8, 0], EPERM),
        (libc::SYS_setpriority, [0, 2, 19], ALLOWED),
        (libc::SYS_setpriority, [1, 1, 19], ALLOWED),
        (libc::SYS_setpriority, [0, 1, 19], EPERM),
        (libc::SYS_setpriority, [2, 0, 19], EPERM),
        (libc::SYS_setpriority, [2, 1000, 19], EPERM),
        (libc::SYS_ioprio_set, [1, 0, 0], ALLOWED),
        (libc::SYS_ioprio_set, [1, 2, 0], ALLOWED),
        (libc::SYS_ioprio_set, [2, 1, 0], ALLOWED),
        (libc::SYS_ioprio_set, [1, 1, 0x6007], EPERM),
        (libc::SYS_ioprio_set, [3, 1000, 0x6007], EPERM),
        (libc::SYS_prlimit64, [0, 7, 0], ALLOWED),
        (libc::SYS_prlimit64, [2, 7, 0], ALLOWED),
        (libc::SYS_prlimit64, [1, 7, 0], EPERM),
    ] {
        assert_eq!(
            answer(&program, call, &arguments),
            expected,
            "{call} {arguments:?}"
        );
    }
}

#[test]
fn huge_pages_are_refused() {
    let program = in_namespaces();
    for (flags, expected) in [(0x22, ALLOWED), (0x4_0022, EPERM), (0x5404_0021, EPERM)] {
        let mapped = answer(&program, libc::SYS_mmap, &[0, 4096, 3, flags]);
        assert_eq!(mapped, expected, "{flags:#x}");
    }
}

#[test]
fn shared_network_and_ipc_are_refused() {
    let program = program(FilterOptions {
        sockets: AllowedSockets::PairsOnly,
        shares_with_host: true,
        subprocesses: true,
        set_id_modes: true,
    });
    assert_eq!(answer(&program, libc::SYS_socket, &[1, 1, 0]), EPERM);
    for (kind, expected) in [(1, ALLOWED), (0x80805, ALLOWED), (2, EPERM), (3, EPERM)] {
        let pair = answer(&program, libc::SYS_socketpair, &[1, kind, 0]);
        assert_eq!(pair, expected, "{kind}");
    }
    assert_eq!(answer(&program, libc::SYS_prlimit64, &[0, 7]), ALLOWED);
    assert_eq!(answer(&program, libc::SYS_prlimit64, &[1, 7]), EPERM);
    for call in SHARED {
        assert_eq!(answer(&program, *call, &[]), EPERM, "{call}");
    }
}

#[test]
fn set_id_modes_are_refused() {
    let program = program(FilterOptions {
        sockets: AllowedSockets::Ordinary,
        shares_with_host: false,
        subprocesses: true,
        set_id_modes: false,
    });
    let create = 0o101;
    for (call, arguments, expected) in [
        (libc::SYS_chmod, vec![0, 0o1777], ALLOWED),
        (libc::SYS_chmod, vec![0, 0o4755], EPERM),
        (libc::SYS_fchmod, vec![3, 0o2755], EPERM),
        (libc::SYS_fchmodat, vec![3, 0, 0o6755], EPERM),
        (libc::SYS_fchmodat2, vec![3, 0, 0o4000], EPERM),
        (libc::SYS_creat, vec![0, 0o4755], EPERM),
        (libc::SYS_mknod, vec![0, 0o4755], EPERM),
        (libc::SYS_mknodat, vec![3, 0, 0o2755], EPERM),
        (libc::SYS_open, vec![0, create, 0o755], ALLOWED),
        (libc::SYS_open, vec![0, create, 0o4755], EPERM),
        // Without a file to create, the mode is whatever is in the register.
        (libc::SYS_open, vec![0, 0, 0o4755], ALLOWED),
        (libc::SYS_openat, vec![3, 0, create, 0o2755], EPERM),
        (libc::SYS_openat, vec![3, 0, 0o2020_0002, 0o4755], EPERM),
        (libc::SYS_openat2, vec![], ENOSYS),
    ] {
        assert_eq!(
            answer(&program, call, &arguments),
            expected,
            "{call} {arguments:?}"
        );
    }
}

#[test]
fn command_without_subprocesses_may_start_threads() {
    let program = without_subprocesses();
    for call in STARTING {
        assert_eq!(answer(&program, *call, &[]), EPERM);
    }
    for call in EXECUTING {
        assert_eq!(answer(&program, *call, &[]), 0x7ff0_0000);
    }
    assert_eq!(answer(&program, libc::SYS_seccomp, &[1]), EPERM);
    assert_eq!(answer(&program, libc::SYS_clone, &[0x11]), EPERM);
    assert_eq!(answer(&program, libc::SYS_clone, &[0x3d_0f00]), ALLOWED);
}

#[test]
fn read_only_command_changes_no_attributes() {
    let program = without_metadata_changes();
    for request in [0x4008_6602, 0x4008_7602, 0x401c_5820, 0x4080_6685] {
        let refused = answer(&program, libc::SYS_ioctl, &[3, request]);
        assert_eq!(refused, EPERM, "{request:#x}");
    }
    // FS_IOC_GETFLAGS
    let read = answer(&program, libc::SYS_ioctl, &[3, 0x8008_6601]);
    assert_eq!(read, ALLOWED);
    assert_eq!(answer(&program, libc::SYS_utimensat, &[]), EPERM);
}

/// Add rules for what the new calls need, then raise [`LAST_REVIEWED`].
#[test]
fn every_call_of_the_installed_headers_is_reviewed() {
    let headers = [
        "/usr/include/asm/unistd_64.h",
        "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    ];
    let Some(text) = headers
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
    else {
        return cantle_testkit::lane::skip("linux-libc-dev is not installed");
    };
    let calls = text.lines().filter_map(|line| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((number.trim().parse::<u32>().ok()?, name))
    });
    let calls: Vec<_> = calls.collect();
    assert!(
        calls.contains(&(0, "read")),
        "{headers:?} have another form"
    );
    let new: Vec<_> = calls
        .iter()
        .filter(|(number, _)| *number > LAST_REVIEWED)
        .collect();
    assert!(new.is_empty(), "not reviewed: {new:?}");
}
