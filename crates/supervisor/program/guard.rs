//! The guard: the process that the owner starts.
//!
//! It forks init into the sandbox's namespaces, writes its user mapping, and waits for its end: with a
//! PID namespace no process can be left then. Without one it adopts init's orphans and kills them in the
//! end; commands cannot signal it where Landlock scopes signals.

use core::ffi::CStr;

use crate::image;
use crate::init;
use crate::setup::Mounts;
use crate::sys::{self, Errno, Fd, Forked, NONE};
use crate::text::Text;
use crate::tree::{self, Tree};
use crate::wire::{ControlGroup, MappedDirectory, ORDER_BYTES, Order, Reader, Setup, SetupReply};

const CLONE_NEWPID: u64 = 0x2000_0000;
const CLONE_NEWUSER: u64 = 0x1000_0000;

/// Attempts to remove a control group that is in use, and the pause between them.
const MAX_REMOVALS: u32 = 200;
const REMOVAL_PAUSE_US: u32 = 500;

/// Builds the sandbox and returns when it has ended.
pub fn run() -> i32 {
    let owner = sys::getppid();
    sys::default_signals();
    // Init may end before its mapping is written.
    sys::set_signal_mask(1 << (sys::SIGPIPE - 1));
    let Ok(control) = detach() else {
        return 1;
    };
    let mut message = [0; ORDER_BYTES];
    let Ok(received) = sys::receive(control, &mut message) else {
        return 1;
    };
    let Some((body, others)) = received.fds.split_first() else {
        // The owner has closed the socket.
        return 0;
    };
    if Order::decode(&message) != Some(Order::Setup) {
        return 1;
    }
    match start(control, *body, others) {
        Ok(sandbox) => {
            // The owner must see the socket closed when init ends, which has its own copy.
            sys::close(control);
            sandbox.wait(owner);
            0
        }
        Err(failure) => {
            let failed = SetupReply::Failed {
                step: failure.step,
                errno: failure.errno.0,
            };
            // The owner may be gone.
            let _ = sys::send(control, &failed.encode(), &[]);
            1
        }
    }
}

/// stdout: a pipe whose end of file tells the owner that nothing of the sandbox is left.
const LIFETIME_PIPE: Fd = Fd(1);
/// stderr, which is `/dev/null`.
const NULL: Fd = Fd(2);

/// Detaches from the owner: keeps only the control socket (passed as stdin), the lifetime pipe and
/// `/dev/null`.
fn detach() -> sys::Result<Fd> {
    sys::close_from(3);
    let control = sys::dup_above(Fd(0), 3)?;
    sys::dup_to(NULL, Fd(0))?;
    // No controlling terminal; no directory that could not be unmounted.
    sys::setsid()?;
    sys::chdir(c"/")?;
    // Steps state their modes exactly.
    sys::umask(0);
    sys::set_name(c"cantle-guard");
    Ok(control)
}

/// The reason why init could not be started.
struct StartFailure {
    /// A "step" of [`SetupReply::Failed`].
    step: u32,
    errno: Errno,
}

impl From<Errno> for StartFailure {
    fn from(errno: Errno) -> Self {
        let step = SetupReply::BEFORE_STEPS;
        Self { step, errno }
    }
}

/// Creates the namespaces by forking init into them. `others` are the descriptors behind the body's.
fn start(control: Fd, body: Fd, others: &[Fd]) -> Result<GuardedSandbox, StartFailure> {
    let mut reader = Reader::new(sys::map_file(body)?);
    let setup = reader.read::<Setup<'static>>().ok_or(sys::EINVAL)?;
    let control_groups = ControlGroups {
        groups: reader.clone(),
        count: setup.groups,
    };
    let mut reader = control_groups.for_each(|_| {});
    // Only here, outside of the sandbox's user namespace, may they be made.
    let mut mounts = Mounts::new();
    for _ in 0..setup.mapped {
        let directory = reader.read::<MappedDirectory<'_>>().ok_or(sys::EINVAL)?;
        let mapped = clone_mapped(&directory).unwrap_or(NONE);
        mounts.mapped.push(mapped)?;
    }
    let (image, others) = others.split_at(usize::from(setup.has_image).min(others.len()));
    let (group, groups) = others.split_at(usize::from(setup.has_group).min(others.len()));
    if let Some(image) = image.first() {
        let step = SetupReply::IMAGE;
        mounts.image = image::mount(*image).map_err(|errno| StartFailure { step, errno })?;
        sys::close(*image);
    }
    let has_pid_namespace = setup.namespaces & CLONE_NEWPID != 0;
    if !has_pid_namespace {
        sys::adopt_orphans()?;
    }
    let (mapped, map) = sys::pipe()?;
    // To move init would wait for RCU grace periods; creating it in its group does not.
    let created = group
        .first()
        .map(|group| sys::fork_into(*group, setup.namespaces));
    let (forked, to_join) = match created {
        Some(Ok(forked)) => (forked, None),
        _ => (sys::fork(setup.namespaces)?, group.first()),
    };
    match forked {
        Forked::Child => {
            sys::close(map);
            sys::dup_to(NULL, LIFETIME_PIPE)?;
            let mut is_outside = [0];
            // Nothing arrives if the guard has failed.
            if sys::read(mapped, &mut is_outside) != Ok(1) {
                sys::exit(1);
            }
            sys::close(mapped);
            let mut missing = u64::from(is_outside[0]) << SetupReply::GROUPS;
            for group in groups {
                if sys::write(*group, b"0").is_err() {
                    missing |= 1 << SetupReply::GROUPS;
                }
            }
            group.iter().chain(groups).copied().for_each(sys::close);
            init::run(control, reader, &mounts, missing, has_pid_namespace)
        }
        Forked::Parent { child } => {
            sys::close(mapped);
            hold_mounts(child);
            if let Err(errno) = map_users(child, &setup) {
                // Init exits. The owner removes the control groups once the guard has exited, so they must be empty.
                sys::close(map);
                let _ = sys::wait(true, false);
                return Err(errno.into());
            }
            let is_outside = to_join.is_some_and(|group| join(*group, child).is_err());
            sys::write(map, &[u8::from(is_outside)])?;
            sys::close(map);
            mounts.close();
            group.iter().chain(groups).copied().for_each(sys::close);
            Ok(GuardedSandbox {
                init: child,
                has_pid_namespace,
                groups: control_groups,
                shared_group: setup.shared_group,
            })
        }
    }
}

/// Moves a process into a control group of version 2.
fn join(group: Fd, process: i32) -> sys::Result<()> {
    let file = sys::openat(group, c"cgroup.procs", sys::O_WRONLY, 0)?;
    let written = sys::write(file, Text::new().number(process).as_c().to_bytes());
    sys::close(file);
    written.map(drop)
}

/// Pins init's mount namespace until the guard exits, so that unmounting, which waits for RCU grace periods,
/// does not delay the end of the sandbox.
fn hold_mounts(child: i32) {
    let path = Text::new().text(b"/proc/").number(child).text(b"/ns/mnt");
    // Without it, closing merely takes longer.
    let _ = sys::open(path.as_c(), sys::O_RDONLY);
}

/// Maps the users of the new user namespace, if there is one.
fn map_users(child: i32, setup: &Setup<'_>) -> sys::Result<()> {
    if setup.deny_setgroups {
        write_process_file(child, b"/setgroups", c"deny")?;
    }
    write_maps(child, setup.uid_map, setup.gid_map)
}

/// Writes the mapping of a user namespace; an empty one stands for none.
fn write_maps(child: i32, uid_map: &CStr, gid_map: &CStr) -> sys::Result<()> {
    if !uid_map.is_empty() {
        write_process_file(child, b"/uid_map", uid_map)?;
        write_process_file(child, b"/gid_map", gid_map)?;
    }
    Ok(())
}

/// Clones the mounts of a directory and maps the owners of their files. The mapping is that of a user namespace, which
/// a process must be in while it is written.
fn clone_mapped(directory: &MappedDirectory<'_>) -> sys::Result<Fd> {
    let (end, hold) = sys::pipe()?;
    let child = match sys::fork(CLONE_NEWUSER)? {
        Forked::Child => {
            sys::close(hold);
            let _ = sys::read(end, &mut [0]);
            sys::exit(0)
        }
        Forked::Parent { child } => child,
    };
    sys::close(end);
    let path = Text::new().text(b"/proc/").number(child).text(b"/ns/user");
    let namespace = write_maps(child, directory.uid_map, directory.gid_map)
        .and_then(|()| sys::open(path.as_c(), sys::O_RDONLY));
    sys::close(hold);
    let _ = sys::wait(true, false);
    let namespace = namespace?;
    let mapped = sys::clone_mounts(directory.path).and_then(|mounts| {
        sys::map_owners(mounts, namespace).inspect_err(|_| sys::close(mounts))?;
        Ok(mounts)
    });
    sys::close(namespace);
    mapped
}

fn write_process_file(pid: i32, name: &[u8], content: &CStr) -> sys::Result<()> {
    let path = Text::new().text(b"/proc/").number(pid).text(name);
    sys::write_file(path.as_c(), content.to_bytes())
}

/// A running sandbox.
struct GuardedSandbox {
    init: i32,
    has_pid_namespace: bool,
    groups: ControlGroups,
    shared_group: &'static CStr,
}

impl GuardedSandbox {
    /// Waits until init and everything it started have ended.
    fn wait(&self, owner: i32) {
        while let Ok(Some(changed)) = sys::wait(true, true) {
            if changed.pid == self.init && changed.is_over() {
                break;
            }
            // Without a PID namespace a command can stop init.
            changed.continue_if_stopped();
        }
        if !self.has_pid_namespace {
            self.groups.stop();
            Tree::kill_descendants();
        }
        self.groups.remove();
        let is_owned = || sys::getppid() == owner && !tree::is_exiting(owner);
        if !self.shared_group.is_empty() && !is_owned() {
            remove(self.shared_group);
        }
        sys::close(LIFETIME_PIPE);
    }
}

/// The sandbox's control groups. The guard removes them, because it survives the owner.
struct ControlGroups {
    groups: Reader<'static>,
    count: u32,
}

impl ControlGroups {
    /// Calls `found` for each and returns the reader behind them.
    fn for_each(&self, mut found: impl FnMut(ControlGroup<'_>)) -> Reader<'static> {
        let mut groups = self.groups.clone();
        for _ in 0..self.count {
            if let Some(group) = groups.read() {
                found(group);
            }
        }
        groups
    }

    /// Prevents new processes in them, so that killed ones are not replaced.
    fn stop(&self) {
        self.for_each(|group| {
            let _ = sys::write_file(group.stop, group.stop_value.to_bytes());
        });
    }

    fn remove(&self) {
        self.for_each(|group| remove(group.directory));
    }
}

/// Removes a control group once it is empty.
fn remove(directory: &CStr) {
    for _ in 0..MAX_REMOVALS {
        // A process that has just ended may still be counted.
        if sys::rmdir(directory) != Err(sys::EBUSY) {
            break;
        }
        sys::pause_us(REMOVAL_PAUSE_US);
    }
}
