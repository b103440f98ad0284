//! The guard: the process that our process starts.
//!
//! It forks init into the sandbox's namespaces, maps its user, and waits for its end: with a
//! process namespace nothing can be left then. Without one it adopts what init loses, and kills
//! that in the end; commands can't reach it where Landlock scopes signals.

use core::ffi::CStr;

use crate::init;
use crate::sys::{self, Errno, Fd, Forked};
use crate::text::Text;
use crate::tree::Tree;
use crate::wire::{Group, ORDER_BYTES, Order, Reader, Ready, Setup};

const CLONE_NEWPID: u64 = 0x2000_0000;

/// How often to try to remove a control group that is in use.
const MOST_REMOVALS: u32 = 200;

/// Builds the sandbox and returns when it is over.
pub fn run() -> i32 {
    sys::default_signals();
    // Init may end before it is told its map.
    sys::set_signal_mask(1 << (sys::SIGPIPE - 1));
    let Ok(control) = detach() else {
        return 1;
    };
    let mut message = [0; ORDER_BYTES];
    let Ok(received) = sys::receive(control, &mut message) else {
        return 1;
    };
    let fds = &received.fds[..received.fd_count];
    let Some((body, groups)) = fds.split_first() else {
        // The owner has changed its mind.
        return 0;
    };
    if Order::decode(&message) != Some(Order::Setup) {
        return 1;
    }
    match start(control, *body, groups) {
        Ok(started) => {
            // Init has its own; where it ends, the owner must see that the socket is closed.
            sys::close(control);
            started.wait();
            0
        }
        Err(errno) => {
            let step = Ready::BEFORE_STEPS;
            let failed = Ready::Failed {
                step,
                errno: errno.0,
            };
            // Where the owner is gone nobody needs to know.
            let _ = sys::send(control, &failed.encode(), &[]);
            1
        }
    }
}

/// What says that we are there, until nothing of the sandbox is left: our output, a pipe that the
/// owner reads.
const PRESENCE: Fd = Fd(1);
/// Our standard error, which is `/dev/null`.
const NULL: Fd = Fd(2);

/// Leaves everything of our process but the control socket, which comes as the input, our output
/// and `/dev/null`.
fn detach() -> sys::Result<Fd> {
    if sys::close_range(3, u32::MAX, false).is_err() {
        // Linux before 5.9.
        (3..4096).map(Fd).for_each(sys::close);
    }
    let control = sys::dup_above(Fd(0), 3)?;
    sys::dup_to(NULL, Fd(0))?;
    // No terminal, no signals from one; no directory that is in somebody's way.
    sys::setsid()?;
    sys::chdir(c"/")?;
    // The modes in the steps are meant as they are.
    sys::umask(0);
    sys::set_name(c"cantle-guard");
    Ok(control)
}

/// Forks init.
fn start(control: Fd, body: Fd, groups: &[Fd]) -> sys::Result<Started> {
    let bytes = sys::map_file(body, sys::file_length(body)?)?;
    sys::close(body);
    let mut reader = Reader::new(bytes);
    let setup = reader.setup().ok_or(sys::EINVAL)?;
    let own_groups = OwnGroups {
        groups: reader.clone(),
        count: setup.groups,
    };
    let reader = own_groups.each(|_| {});
    let has_processes = setup.namespaces & CLONE_NEWPID != 0;
    if !has_processes {
        sys::adopt_orphans()?;
    }
    let (mapped, map) = sys::pipe()?;
    match sys::fork(setup.namespaces)? {
        Forked::Child => {
            sys::close(map);
            sys::dup_to(NULL, PRESENCE)?;
            let mut go = [0];
            // Nothing comes where the guard has failed.
            if sys::read(mapped, &mut go) != Ok(1) {
                sys::exit(1);
            }
            sys::close(mapped);
            init::run(control, reader, groups, has_processes)
        }
        Forked::Parent { child } => {
            sys::close(mapped);
            hold_mounts(child);
            write_maps(child, &setup)?;
            sys::write(map, b"1")?;
            sys::close(map);
            groups.iter().copied().for_each(sys::close);
            Ok(Started {
                init: child,
                has_processes,
                groups: own_groups,
            })
        }
    }
}

/// Keeps init's mounts until we end. Taking them down takes longer than all the rest, and nobody
/// needs to wait for it.
fn hold_mounts(child: i32) {
    let path = Text::new().text(b"/proc/").number(child).text(b"/ns/mnt");
    // Open as long as we live; where it can't be, the end takes longer.
    let _ = sys::openat(sys::AT_FDCWD, path.as_c(), sys::O_RDONLY, 0);
}

/// Says who the users of the new user namespace are, where there is one.
fn write_maps(child: i32, setup: &Setup<'_>) -> Result<(), Errno> {
    if setup.deny_setgroups {
        write_process_file(child, b"/setgroups", c"deny")?;
    }
    if !setup.uid_map.is_empty() {
        write_process_file(child, b"/uid_map", setup.uid_map)?;
        write_process_file(child, b"/gid_map", setup.gid_map)?;
    }
    Ok(())
}

fn write_process_file(pid: i32, name: &[u8], content: &CStr) -> sys::Result<()> {
    let path = Text::new().text(b"/proc/").number(pid).text(name);
    let file = sys::openat(sys::AT_FDCWD, path.as_c(), sys::O_WRONLY, 0)?;
    let written = sys::write(file, content.to_bytes());
    sys::close(file);
    written.map(drop)
}

/// A sandbox, as its guard sees it.
struct Started {
    init: i32,
    /// Whether it has a process namespace of its own.
    has_processes: bool,
    groups: OwnGroups,
}

impl Started {
    /// Waits for init's end, and for the end of everything it started.
    fn wait(&self) {
        while let Ok(Some(changed)) = sys::wait(true, true) {
            if changed.pid == self.init && changed.is_over() {
                break;
            }
            // A command can stop init where they share a process namespace; not for long.
            changed.go_on_if_stopped();
        }
        if !self.has_processes {
            self.groups.stop();
            loop {
                let _ = Tree::below(sys::getpid()).kill(false);
                match sys::wait(false, false) {
                    Ok(Some(_)) => {}
                    Ok(None) => sys::pause_us(500),
                    Err(_) => break,
                }
            }
        }
        self.groups.remove();
        sys::close(PRESENCE);
    }
}

/// The sandbox's control groups. Nobody else removes them where our process is gone.
struct OwnGroups {
    groups: Reader<'static>,
    count: u32,
}

impl OwnGroups {
    /// Returns what follows them.
    fn each(&self, mut found: impl FnMut(Group<'_>)) -> Reader<'static> {
        let mut groups = self.groups.clone();
        for _ in 0..self.count {
            if let Some(group) = groups.group() {
                found(group);
            }
        }
        groups
    }

    /// Lets nothing in them start another process: what is killed then is not replaced.
    fn stop(&self) {
        self.each(|group| {
            if let Ok(file) = sys::openat(sys::AT_FDCWD, group.stop, sys::O_WRONLY, 0) {
                let _ = sys::write(file, group.word.to_bytes());
                sys::close(file);
            }
        });
    }

    fn remove(&self) {
        self.each(|group| {
            for _ in 0..MOST_REMOVALS {
                // What has just ended may still count.
                if sys::rmdir(group.directory) != Err(sys::EBUSY) {
                    break;
                }
                sys::pause_us(500);
            }
        });
    }
}
