//! Resource limits of each process.

use cantle_core::policy::Limits;
use cantle_supervisor::wire::Step;
use rustix::process::Resource;

use super::quotas;
use super::steps::Steps;
use crate::groups::OWN_PROCESSES;

/// Adds the steps. Processes are counted per user, so their limit is set only if the user is the sandbox's
/// own.
pub(super) fn build(steps: &mut Steps, limits: &Limits, is_confined: bool, own_user: bool) {
    let mut set = |resource: Resource, soft, hard| {
        let step = Step::CommandLimit {
            resource: resource as u32,
            soft,
            hard,
        };
        steps.add("set a resource limit", &step);
    };
    if is_confined {
        // No file is as small. And if the host has a program for core dumps, the kernel passes it any but one that is limited
        // to 1 (`do_coredump` in the kernel's `fs/coredump.c`).
        set(Resource::Core, 1, 1);
        for resource in [Resource::Msgqueue, Resource::Nice, Resource::Rtprio] {
            set(resource, 0, 0);
        }
        // Signals that wait for processes, a timer among them, and memory that can't be swapped out, as that of messages which
        // are sent without a copy (`MSG_ZEROCOPY`).
        for resource in [Resource::Sigpending, Resource::Memlock] {
            if let Some(share) = quotas::share(resource) {
                set(resource, share, share);
            }
        }
    }
    if let Some(time) = limits.cpu_time {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        // SIGXCPU at the soft limit, SIGKILL at the hard one.
        set(Resource::Cpu, seconds, seconds.saturating_add(1));
    }
    let plain = [
        (Resource::Fsize, limits.file_size_bytes),
        (Resource::Nofile, limits.open_files),
        // Not the address space, of which programs reserve gigabytes that they never use.
        (Resource::Data, limits.memory_bytes),
    ];
    for (resource, limit) in plain {
        if let Some(limit) = limit {
            set(resource, limit, limit);
        }
    }
    if let (Some(processes), true) = (limits.processes, own_user) {
        let all = processes.saturating_add(OWN_PROCESSES);
        set(Resource::Nproc, all, all);
    }
}
