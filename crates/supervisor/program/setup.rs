//! Setting up a sandbox: performs the steps that the owner has planned.

use core::ffi::CStr;

use crate::sys::{self, Errno, Fd, Forked, List, MAX_FDS, NONE};
use crate::tasks::EntryKind;
use crate::wire::{Identity, MAX_MAPPED, PlannedStep, Reader, SetupReply, Step};

/// An upper bound of capability numbers.
const MAX_CAPABILITIES: u32 = 64;
/// `MS_BIND | MS_REC`.
const BIND_RECURSIVELY: u64 = 0x1000 | 0x4000;
/// The most resource limits of a plan.
const MAX_LIMITS: usize = 16;

/// The settings of every command that init itself does not have.
pub struct CommandProfile {
    limits: List<(u32, u64, u64), MAX_LIMITS>,
    filter: Option<&'static [u8]>,
    oom_score: Option<OomScore>,
    identity: Option<Identity>,
    /// The directory that no symbolic link leads out of.
    pub root: &'static CStr,
}

impl CommandProfile {
    /// Forks a process which the kernel's OOM killer prefers over the supervisor, with its descendants.
    pub fn fork(&self) -> sys::Result<Forked> {
        let Some(oom_score) = &self.oom_score else {
            return sys::fork(0);
        };
        oom_score.set(b"1000");
        let forked = sys::fork(0);
        if !matches!(forked, Ok(Forked::Child)) {
            oom_score.set(&oom_score.original);
        }
        forked
    }

    /// Whether the command filter asks the tracer before a program is executed.
    pub fn asks_before_exec(&self) -> bool {
        self.filter.is_some()
    }

    /// Installs the command filter.
    pub fn install_filter(&self) -> sys::Result<()> {
        self.filter.map_or(Ok(()), sys::seccomp_filter)
    }

    /// Applies the limits and the identity to the calling process, which becomes a command.
    pub fn apply(&self) -> sys::Result<()> {
        self.apply_with(sys::set_uid)
    }

    /// Applies the limits and the identity to the calling process, which becomes a file task.
    ///
    /// Its files are those of the identity. But it keeps the supervisor's real user, so that commands can neither
    /// signal nor stop it.
    pub fn apply_to_file_task(&self) -> sys::Result<()> {
        self.apply_with(sys::set_effective_uid)
    }

    fn apply_with(&self, set_uid: fn(u32) -> sys::Result<()>) -> sys::Result<()> {
        for (resource, soft, hard) in &*self.limits {
            sys::set_limit(*resource, *soft, *hard)?;
        }
        self.identity
            .map_or(Ok(()), |_| drop_privileges(self.identity, set_uid))
    }

    /// Lets the commands' user reopen a pipe or terminal by its name (`/dev/stderr`).
    pub fn give(&self, stream: Fd) {
        if let Some((uid, gid)) = self.identity {
            // Changing the owner may be refused. Opening by name also takes the right to inspect the process.
            let _ = sys::fchown(stream, uid, gid).or_else(|_| sys::fchmod(stream, 0o666));
        }
    }
}

/// The supervisor's own `oom_score_adj`, which children inherit.
struct OomScore {
    /// Opened before confinement hides it.
    file: Fd,
    original: List<u8, 8>,
}

impl OomScore {
    fn open() -> sys::Result<Self> {
        let file = sys::open(c"/proc/self/oom_score_adj", sys::O_RDWR)?;
        let mut original = [0; 8];
        let length = sys::read(file, &mut original)?;
        let original = List::of(&original[..length]);
        Ok(Self { file, original })
    }

    /// Sets the score, which is only a preference.
    fn set(&self, score: &[u8]) {
        let _ = sys::write_at(self.file, score, 0);
    }
}

/// The result of a successful setup.
pub struct SetupOutcome {
    /// One bit for each optional step that failed.
    pub missing: u64,
    /// The Landlock ABI version in force; 0 for none.
    pub landlock: u32,
    pub profile: CommandProfile,
    /// The descriptors to pass to the owner.
    pub opened: List<Fd, MAX_FDS>,
}

/// Mounts that the guard has made outside of the sandbox's user namespace, and that belong to no mount namespace yet.
pub struct Mounts {
    /// Directories with mapped owners; [`NONE`] for one that the kernel could not map.
    pub mapped: List<Fd, MAX_MAPPED>,
    /// The file system of the disk image; [`NONE`] without one.
    pub image: Fd,
}

impl Mounts {
    pub fn new() -> Self {
        Self {
            mapped: List::new(),
            image: NONE,
        }
    }

    pub fn close(&self) {
        self.mapped.iter().copied().for_each(sys::close);
        sys::close(self.image);
    }
}

/// Performs all steps, or returns the failed one. `missing` is what the guard could not do.
pub fn build(
    mut steps: Reader<'static>,
    mounts: &Mounts,
    missing: u64,
    alone: bool,
) -> Result<SetupOutcome, SetupReply> {
    let failed = |step, Errno(errno)| SetupReply::Failed { step, errno };
    let mut built = SetupOutcome {
        missing,
        landlock: 0,
        profile: CommandProfile {
            limits: List::new(),
            filter: None,
            oom_score: OomScore::open().ok(),
            identity: None,
            root: c"/",
        },
        opened: List::new(),
    };
    let mut number = 0;
    while !steps.is_empty() {
        let Some(PlannedStep { optional, step }) = steps.read() else {
            return Err(failed(number, sys::EINVAL));
        };
        match (perform(&step, &mut steps, mounts, &mut built), optional) {
            (Ok(()), _) => {}
            (Err(_), Some(bit)) => built.missing |= 1 << (bit & 63),
            (Err(errno), None) => return Err(failed(number, errno)),
        }
        number += 1;
    }
    mounts.close();
    let finish = || {
        sys::set_dumpable(false)?;
        if alone {
            // Without a PID namespace init outlives the guard, to kill its descendants.
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
    mounts: &Mounts,
    built: &mut SetupOutcome,
) -> sys::Result<()> {
    let profile = &mut built.profile;
    match *step {
        Step::Mount {
            source,
            target,
            kind,
            flags,
            data,
        } => sys::mount(source, target, kind, flags, data)?,
        Step::BindMapped {
            number,
            source,
            target,
        } => {
            let mapped = mounts.mapped.get(number as usize).copied();
            let mapped = mapped.filter(|mapped| *mapped != NONE);
            let attached = mapped.map(|mapped| sys::attach_mounts(mapped, target));
            if attached != Some(Ok(())) {
                sys::mount(source, target, c"", BIND_RECURSIVELY, c"")?;
            }
        }
        Step::AttachImage { target } => sys::attach_mounts(mounts.image, target)?,
        Step::SetMountAttributes { target, set } => sys::set_mount_attributes(target, set)?,
        Step::MakeDirectory { path, mode } => {
            accept_existing(sys::mkdir(path, mode), path, EntryKind::Directory)?;
        }
        Step::OwnedDirectory {
            path,
            identity,
            mode,
        } => make_owned_directory(path, identity, mode)?,
        Step::MakeFile { path, content } => make_file(path, content)?,
        Step::WriteFile { path, content } => sys::write_file(path, content.to_bytes())?,
        Step::Symlink { path, target } => sys::symlink(target, path)?,
        Step::PivotRoot { path } => {
            sys::chdir(path)?;
            sys::pivot_to_current_directory()?;
            sys::chdir(c"/")?;
        }
        Step::Hostname { name } => sys::set_host_name(name)?,
        Step::Loopback => sys::loopback_up()?,
        Step::OpenDirectory { path } => {
            let flags = sys::O_PATH | sys::O_DIRECTORY;
            built.opened.push(sys::open(path, flags)?)?;
        }
        Step::Listen { port } => built.opened.push(sys::listen_on_loopback(port)?)?,
        Step::DropPrivileges { identity } => drop_privileges(identity, sys::set_uid)?,
        Step::Landlock { rules } => built.landlock = landlock(rules, steps)?,
        // Consumed by the Landlock step it belongs to.
        Step::LandlockRule { .. } => return Err(sys::EINVAL),
        Step::Filter { program } => sys::seccomp_filter(program)?,
        Step::CommandFilter { program } => profile.filter = Some(program),
        Step::CommandIdentity { identity, root } => {
            (profile.identity, profile.root) = (identity, root)
        }
        Step::CommandLimit {
            resource,
            soft,
            hard,
        } => profile.limits.push((resource, soft, hard))?,
    }
    Ok(())
}

fn make_owned_directory(path: &CStr, identity: Option<Identity>, mode: u32) -> sys::Result<()> {
    match sys::mkdir(path, mode) {
        // Only its owner may change the mode; a directory of another user keeps it.
        Err(sys::EEXIST) => drop(sys::chmod(path, mode)),
        made => made?,
    }
    identity.map_or(Ok(()), |(uid, gid)| sys::chown(path, uid, gid))
}

/// Accepts that an entry of this kind exists: the mount points in the directories of a kept sandbox are there already,
/// unless its commands have replaced them.
fn accept_existing(made: sys::Result<()>, path: &CStr, kind: EntryKind) -> sys::Result<()> {
    match made {
        Err(sys::EEXIST) if sys::statat(sys::AT_FDCWD, path)?.kind() == kind => Ok(()),
        made => made,
    }
}

fn make_file(path: &CStr, content: &CStr) -> sys::Result<()> {
    let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL;
    let file = match sys::openat(sys::AT_FDCWD, path, flags, 0o644) {
        Err(error) if content.is_empty() => {
            return accept_existing(Err(error), path, EntryKind::File);
        }
        file => file?,
    };
    let written = match content.to_bytes() {
        [] => Ok(0),
        bytes => sys::write(file, bytes),
    };
    sys::close(file);
    written.map(drop)
}

fn drop_privileges(
    identity: Option<Identity>,
    set_uid: fn(u32) -> sys::Result<()>,
) -> sys::Result<()> {
    for capability in 0..MAX_CAPABILITIES {
        // Refused to an unprivileged user, for whom `no_new_privs` suffices.
        if sys::drop_bounding_capability(capability).is_err() {
            break;
        }
    }
    // Linux before 4.3 has none.
    let _ = sys::clear_ambient_capabilities();
    if let Some((uid, gid)) = identity {
        // A user namespace that refuses it contains no other user's groups.
        let _ = sys::set_groups_empty();
        sys::set_gid(gid)?;
        set_uid(uid)?;
    }
    sys::drop_capabilities()?;
    sys::no_new_privileges()
}

/// Restricts the calling process to reading and removing files; devices stay writable.
pub fn forbid_writing() -> sys::Result<()> {
    const WRITE_FILE: u64 = 1 << 1;
    /// The rights to create an entry of each kind.
    const MAKE: u64 = 0b111_1111 << 6;

    restrict(&[WRITE_FILE | MAKE, 0, 0], 8, |ruleset| {
        allow(ruleset, c"/dev", WRITE_FILE)
    })
}

/// Restricts the calling process to reading files, and to changing those below one directory; harmless devices stay
/// writable. Fails if the kernel can't restrict every right to change a file.
pub fn forbid_changes_outside(directory: &CStr) -> sys::Result<()> {
    const WRITE_FILE: u64 = 1 << 1;
    const TRUNCATE: u64 = 1 << 14;
    /// Writing, and the rights from removing a directory up to truncation.
    const CHANGE: u64 = WRITE_FILE | (0b111_1111_1111 << 4);
    /// The first version that restricts truncation.
    const MIN_VERSION: usize = 3;
    const DEVICES: [&CStr; 7] = [
        c"/dev/null",
        c"/dev/zero",
        c"/dev/full",
        c"/dev/random",
        c"/dev/urandom",
        c"/dev/tty",
        c"/dev/pts",
    ];

    if sys::landlock_version()? < MIN_VERSION {
        return Err(sys::ENOSYS);
    }
    restrict(&[CHANGE, 0, 0], 8, |ruleset| {
        for device in DEVICES {
            allow(ruleset, device, WRITE_FILE | TRUNCATE)?;
        }
        // Another process of the sandbox could have replaced it by a link.
        let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;
        let opened = sys::open(directory, flags)?;
        let allowed = sys::landlock_allow_path(ruleset, opened, CHANGE);
        sys::close(opened);
        allowed
    })
}

/// Enforces the rules that follow; returns the ABI version. Skips the rules even if that fails, so that the reader is at
/// the next step.
fn landlock(count: u32, steps: &mut Reader<'_>) -> sys::Result<u32> {
    /// The number of file access rights of each ABI version.
    const FILE_RIGHTS: [u32; 10] = [0, 13, 14, 15, 15, 16, 16, 16, 16, 17];
    /// Abstract Unix sockets, and signals to processes outside.
    const SCOPES: u64 = 3;

    let mut rules = steps.clone();
    for _ in 0..count {
        steps.read::<PlannedStep<'_>>().ok_or(sys::EINVAL)?;
    }
    let version = sys::landlock_version()?;
    let known = version.min(FILE_RIGHTS.len() - 1);
    let rights = (1 << FILE_RIGHTS[known]) - 1;
    let scopes = if known >= 6 { SCOPES } else { 0 };
    // The kernel refuses a structure longer than it knows.
    let size = match known {
        ..4 => 8,
        4..6 => 16,
        _ => 24,
    };
    restrict(&[rights, 0, scopes], size, |ruleset| {
        for _ in 0..count {
            let Some(PlannedStep {
                step: Step::LandlockRule { path, access },
                ..
            }) = rules.read()
            else {
                return Err(sys::EINVAL);
            };
            allow(ruleset, path, access & rights)?;
        }
        Ok(())
    })?;
    Ok(version as u32)
}

/// Creates a ruleset, has its exceptions added, and enforces it for the calling process.
fn restrict(
    attributes: &[u64; 3],
    size: usize,
    add_rules: impl FnOnce(Fd) -> sys::Result<()>,
) -> sys::Result<()> {
    // Needed without privileges.
    sys::no_new_privileges()?;
    let ruleset = sys::landlock_ruleset(attributes, size)?;
    let restricted = add_rules(ruleset).and_then(|()| sys::landlock_restrict(ruleset));
    sys::close(ruleset);
    restricted
}

fn allow(ruleset: Fd, path: &CStr, access: u64) -> sys::Result<()> {
    let opened = match sys::open(path, sys::O_PATH) {
        // A missing file needs no rule.
        Err(sys::ENOENT | sys::EACCES) => return Ok(()),
        opened => opened?,
    };
    let result = sys::landlock_allow_path(ruleset, opened, access);
    sys::close(opened);
    result
}
