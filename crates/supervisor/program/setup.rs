//! Building a sandbox: does, one after the other, the steps that our process has planned.

use core::ffi::CStr;

use crate::files;
use crate::sys::{self, Errno, Fd, Forked, MOST_FDS};
use crate::wire::{Numbered, Reader, Ready, Step};

/// The highest capability number there may be.
const MOST_CAPABILITIES: u32 = 64;

/// What holds for every command alone.
pub struct Limits {
    limits: [(u32, u64, u64); 16],
    count: usize,
    filter: Option<&'static [u8]>,
    victims: Option<Victims>,
    identity: Option<(u32, u32)>,
    root: &'static CStr,
}

impl Limits {
    /// Forks a process which, with all that it starts, is killed before us where there is a limit to
    /// the memory of all and it is used up.
    pub fn fork(&self) -> sys::Result<Forked> {
        let Some(victims) = &self.victims else {
            return sys::fork(0);
        };
        victims.mark(b"1000");
        let forked = sys::fork(0);
        if let Ok(Forked::Parent { .. }) | Err(_) = forked {
            victims.mark(&victims.own[..victims.length]);
        }
        forked
    }

    /// Whether a tracer is asked before a program is executed.
    pub fn ask_before_programs(&self) -> bool {
        self.filter.is_some()
    }

    /// Installs the filter for commands.
    pub fn filter(&self) -> sys::Result<()> {
        self.filter.map_or(Ok(()), sys::seccomp_filter)
    }

    /// Puts the limits on the calling process, and makes it who commands are.
    pub fn apply(&self) -> sys::Result<()> {
        for (resource, soft, hard) in &self.limits[..self.count] {
            sys::lower_limit(*resource, *soft, *hard)?;
        }
        match self.identity {
            Some(_) => give_up_privileges(self.identity),
            None => Ok(()),
        }
    }

    /// Lets who commands are open a pipe or a terminal again, by its name (`/dev/stderr`).
    pub fn give(&self, channel: Fd) {
        if let Some((uid, gid)) = self.identity {
            // Its owner may always do the one, but not always the other. That it can be opened by
            // name takes the right to look into the process.
            let _ = sys::give_to(channel, uid, gid).or_else(|_| sys::fchmod(channel, 0o666));
        }
    }

    /// The directory that no link leads out of.
    pub fn root(&self) -> &'static CStr {
        self.root
    }
}

/// What makes the kernel choose commands where it kills for memory.
struct Victims {
    /// Our own `oom_score_adj`, which is inherited. It can't be opened behind the walls.
    file: Fd,
    /// What was in it.
    own: [u8; 8],
    length: usize,
}

impl Victims {
    fn new() -> sys::Result<Self> {
        let path = c"/proc/self/oom_score_adj";
        let file = sys::openat(sys::AT_FDCWD, path, sys::O_RDWR, 0)?;
        let mut own = [0; 8];
        let length = sys::read(file, &mut own)?;
        Ok(Self { file, own, length })
    }

    /// Where it can't be, somebody else is chosen.
    fn mark(&self, score: &[u8]) {
        let _ = sys::rewind(self.file);
        let _ = sys::write(self.file, score);
    }
}

/// What came of the steps.
pub struct Built {
    /// One bit for each wall that could not be built.
    pub missing: u64,
    /// The version of Landlock that is in force; 0 for none.
    pub landlock: u32,
    pub limits: Limits,
    opened: [Fd; MOST_FDS],
    opened_count: usize,
}

impl Built {
    /// Descriptors for the owner.
    pub fn opened(&self) -> &[Fd] {
        &self.opened[..self.opened_count]
    }

    fn open(&mut self, fd: Fd) -> sys::Result<()> {
        let slot = self.opened.get_mut(self.opened_count).ok_or(sys::EINVAL)?;
        *slot = fd;
        self.opened_count += 1;
        Ok(())
    }

    fn limit(&mut self, limit: (u32, u64, u64)) -> sys::Result<()> {
        let slot = self
            .limits
            .limits
            .get_mut(self.limits.count)
            .ok_or(sys::EINVAL)?;
        *slot = limit;
        self.limits.count += 1;
        Ok(())
    }
}

/// Does all steps, or says which one failed. `groups` are files of control groups that this process
/// joins, and with it all that it starts.
pub fn build(mut steps: Reader<'static>, groups: &[Fd], alone: bool) -> Result<Built, Ready> {
    let failed = |step, Errno(errno)| Ready::Failed { step, errno };
    let mut built = Built {
        missing: 0,
        landlock: 0,
        limits: Limits {
            limits: [(0, 0, 0); 16],
            count: 0,
            filter: None,
            victims: None,
            identity: None,
            root: c"/",
        },
        opened: [Fd(-1); MOST_FDS],
        opened_count: 0,
    };
    for group in groups {
        if sys::write(*group, b"0").is_err() {
            built.missing |= 1 << Ready::GROUPS;
        }
        sys::close(*group);
    }
    if !groups.is_empty() {
        built.limits.victims = Victims::new().ok();
    }
    let mut number = 0;
    while !steps.is_empty() {
        let Some(Numbered { wall, step }) = steps.step() else {
            return Err(failed(number, sys::EINVAL));
        };
        match (perform(&step, &mut steps, &mut built), wall) {
            (Ok(()), _) => {}
            (Err(_), Some(wall)) => built.missing |= 1 << (wall & 63),
            (Err(errno), None) => return Err(failed(number, errno)),
        }
        number += 1;
    }
    let finish = || {
        sys::set_dumpable(false)?;
        if alone {
            // Without a process namespace, init outlives the guard to kill what there is.
            sys::die_with_parent()
        } else {
            sys::adopt_orphans()
        }
    };
    finish().map_err(|errno| failed(number, errno))?;
    Ok(built)
}

fn perform(
    step: &Step<'static>,
    steps: &mut Reader<'static>,
    built: &mut Built,
) -> sys::Result<()> {
    match *step {
        Step::Mount {
            source,
            target,
            kind,
            flags,
            data,
        } => sys::mount(source, target, kind, flags, data),
        Step::Attributes { target, set } => sys::set_mount_attributes(target, set),
        Step::MakeDirectory { path, mode } => sys::mkdir(path, mode),
        Step::Give {
            path,
            identity,
            mode,
        } => give(path, identity, mode),
        Step::Staging => files::make_staging(),
        Step::MakeFile { path, content } => make_file(path, content),
        Step::Link { path, target } => sys::symlink(target, path),
        Step::Root { path } => {
            sys::chdir(path)?;
            sys::pivot_to_current_directory()?;
            sys::chdir(c"/")
        }
        Step::HostName { name } => sys::set_host_name(name),
        Step::Loopback => sys::loopback_up(),
        Step::OpenDirectory { path } => built.open(sys::openat(
            sys::AT_FDCWD,
            path,
            sys::O_PATH | sys::O_DIRECTORY,
            0,
        )?),
        Step::Listen { port } => built.open(sys::listen_on_loopback(port)?),
        Step::Unprivileged { identity } => give_up_privileges(identity),
        Step::Landlock { rules } => {
            built.landlock = landlock(rules, steps)?;
            Ok(())
        }
        // Counted by the Landlock step it belongs to.
        Step::Allow { .. } => Err(sys::EINVAL),
        Step::Filter { program } => sys::seccomp_filter(program),
        Step::FilterCommands { program } => {
            built.limits.filter = Some(program);
            Ok(())
        }
        Step::Commands { identity, root } => {
            built.limits.identity = identity;
            built.limits.root = root;
            Ok(())
        }
        Step::Limit {
            resource,
            soft,
            hard,
        } => built.limit((resource, soft, hard)),
    }
}

fn give(path: &CStr, identity: Option<(u32, u32)>, mode: u32) -> sys::Result<()> {
    match sys::mkdir(path, mode) {
        // Only its owner may. What is somebody else's has the mode that he gave it.
        Err(sys::EEXIST) => drop(sys::chmod(path, mode)),
        made => made?,
    }
    match identity {
        Some((uid, gid)) => sys::chown(path, uid, gid),
        None => Ok(()),
    }
}

fn make_file(path: &CStr, content: &CStr) -> sys::Result<()> {
    let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL;
    let file = sys::openat(sys::AT_FDCWD, path, flags, 0o644)?;
    let written = match content.to_bytes() {
        [] => Ok(0),
        bytes => sys::write(file, bytes),
    };
    sys::close(file);
    written.map(drop)
}

fn give_up_privileges(identity: Option<(u32, u32)>) -> sys::Result<()> {
    for capability in 0..MOST_CAPABILITIES {
        // An ordinary user may not, and needn't: no program gives privileges any more.
        if sys::drop_bounding_capability(capability).is_err() {
            break;
        }
    }
    // Linux before 4.3 has none.
    let _ = sys::clear_ambient_capabilities();
    if let Some((uid, gid)) = identity {
        // Where a user namespace forbids it, nobody else's groups are in it either.
        let _ = sys::set_groups_empty();
        sys::set_gid(gid)?;
        sys::set_uid(uid)?;
    }
    sys::drop_capabilities()?;
    sys::no_new_privileges()
}

/// Builds the ruleset of the rules that follow, and enters it; returns its version. The rules are
/// read even where it can't be made, so that the next step is found.
fn landlock(rules: u32, steps: &mut Reader<'_>) -> sys::Result<u32> {
    /// Rights to files of each version; a bit each.
    const FILE_RIGHTS: [u32; 10] = [0, 13, 14, 15, 15, 16, 16, 16, 16, 17];
    /// Connecting to abstract sockets, and sending signals, of others.
    const SCOPES: u64 = 3;

    let version = sys::landlock_version();
    let known = version.unwrap_or(0).min(FILE_RIGHTS.len() - 1);
    let rights = (1 << FILE_RIGHTS[known]) - 1;
    let scopes = if known >= 6 { SCOPES } else { 0 };
    // What a kernel doesn't know of the structure must not be there.
    let size = match known {
        ..4 => 8,
        4..6 => 16,
        _ => 24,
    };
    let ruleset = version.and_then(|_| sys::landlock_ruleset(&[rights, 0, scopes], size));
    let mut result = ruleset.map(drop);
    for _ in 0..rules {
        let Some(Numbered {
            step: Step::Allow { path, access },
            ..
        }) = steps.step()
        else {
            return Err(sys::EINVAL);
        };
        if let (Ok(ruleset), Ok(())) = (ruleset, result) {
            result = allow(ruleset, path, access & rights);
        }
    }
    let ruleset = ruleset?;
    if result.is_ok() {
        result = sys::landlock_restrict(ruleset);
    }
    sys::close(ruleset);
    result.map(|()| version.unwrap_or(0) as u32)
}

fn allow(ruleset: Fd, path: &CStr, access: u64) -> sys::Result<()> {
    let opened = match sys::openat(sys::AT_FDCWD, path, sys::O_PATH, 0) {
        // What isn't there needs no permission.
        Err(sys::ENOENT | sys::EACCES) => return Ok(()),
        opened => opened?,
    };
    let result = sys::landlock_allow_path(ruleset, opened, access);
    sys::close(opened);
    result
}
