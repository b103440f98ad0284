//! Resource limits of each process.

use cantle_core::policy::Limits;
use cantle_supervisor::wire::Step;
use rustix::process::Resource;

use super::quotas;
use super::steps::Steps;
use crate::groups::OWN_PROCESSES;

const CPU: u32 = 0;
const FILE_SIZE: u32 = 1;
const DATA: u32 = 2;
const CORE: u32 = 4;
const PROCESSES: u32 = 6;
const OPEN_FILES: u32 = 7;
const LOCKED_MEMORY: u32 = 8;
const PENDING_SIGNALS: u32 = 11;
const MESSAGE_QUEUES: u32 = 12;
const NICE: u32 = 13;
const REAL_TIME: u32 = 14;

/// Adds the steps. Processes are counted per user, so their limit is set only if the user is the sandbox's
/// own.
pub(super) fn build(steps: &mut Steps, limits: &Limits, is_confined: bool, own_user: bool) {
    let mut set = |resource, soft, hard| {
        let step = Step::CommandLimit {
            resource,
            soft,
            hard,
        };
        steps.add("set a resource limit", &step);
    };
    if is_confined {
        // No file is as small. And if the host has a program for core dumps, the kernel passes it any but one that is limited
        // to 1 (`do_coredump` in the kernel's `fs/coredump.c`).
        set(CORE, 1, 1);
        for resource in [MESSAGE_QUEUES, NICE, REAL_TIME] {
            set(resource, 0, 0);
        }
        // Signals that wait for processes, a timer among them, and memory that can't be swapped out, as that of messages which
        // are sent without a copy (`MSG_ZEROCOPY`).
        for (resource, shared) in [
            (PENDING_SIGNALS, Resource::Sigpending),
            (LOCKED_MEMORY, Resource::Memlock),
        ] {
            if let Some(share) = quotas::share(shared) {
                set(resource, share, share);
            }
        }
    }
    if let Some(time) = limits.cpu_time {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        // SIGXCPU at the soft limit, SIGKILL at the hard one.
        set(CPU, seconds, seconds.saturating_add(1));
    }
    let plain = [
        (FILE_SIZE, limits.file_size_bytes),
        (OPEN_FILES, limits.open_files),
        // Not the address space, of which programs reserve gigabytes that they never use.
        (DATA, limits.memory_bytes),
    ];
    for (resource, limit) in plain {
        if let Some(limit) = limit {
            set(resource, limit, limit);
        }
    }
    if let (Some(processes), true) = (limits.processes, own_user) {
        let all = processes.saturating_add(OWN_PROCESSES);
        set(PROCESSES, all, all);
    }
}
