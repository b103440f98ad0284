//! What commands see of the file system, where they have mount namespaces: nothing but what the
//! policy names, at the same paths as on the host, and their own directories at fixed ones.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use cantle_core::policy::{Access, Limits, Policy, ReadRoots};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::wire::Step;

use super::steps::{Steps, ms};
use super::{Identity, TERMINALS};
use crate::files::Places;

/// Where the working directory is seen, unless the backend says where.
const WORKSPACE: &str = "/workspace";
/// Where the temporary directory is seen.
pub(crate) const TEMPORARY: &str = "/tmp";

/// Devices that are harmless.
const DEVICES: &[&str] = &["full", "null", "random", "tty", "urandom", "zero"];

/// No set-user-id programs, no devices.
const TAME: u64 = ms::NO_SUID | ms::NO_DEVICES;

/// What becomes part of the view and belongs to the sandbox alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'s> {
    /// Its directories.
    pub(super) places: &'s Places,
    /// Where the working directory is seen.
    pub(super) workspace: &'s Path,
    /// Whether the files are kept on a file system of limited size, in memory.
    pub(super) has_storage: bool,
}

/// Where the working directory is to be seen: at `asked`, if that can be.
pub(crate) fn workspace(asked: Option<&Path>) -> Result<&Path, SandboxError> {
    let Some(asked) = asked else {
        return Ok(Path::new(WORKSPACE));
    };
    let own = [TEMPORARY, "/proc", "/dev"];
    let is_plain = asked.components().collect::<PathBuf>().as_os_str() == asked.as_os_str()
        && asked.is_absolute()
        && !asked.components().any(|part| part == Component::ParentDir);
    let is_text = asked
        .to_str()
        .is_some_and(|text| !text.contains([':', '\n', '\0']));
    let system = ReadRoots::SYSTEM.iter().copied();
    let is_taken = own
        .into_iter()
        .chain(system)
        .any(|taken| asked.starts_with(taken));
    if is_plain && is_text && asked.parent().is_some() && !is_taken {
        return Ok(asked);
    }
    let message = format!(
        "the working directory can't be seen at `{}`",
        asked.display()
    );
    Err(
        SandboxError::new(SandboxErrorKind::InvalidInput, message).with_advice(
            "Choose an absolute path of which nothing is the system's, such as `/home/user`.",
        ),
    )
}

/// Writes the steps that build the view, up to the change of the root.
pub(super) fn build(
    steps: &mut Steps,
    policy: &Policy,
    identity: Identity,
    site: Site<'_>,
) -> Result<(), SandboxError> {
    let Site {
        places,
        workspace,
        has_storage,
    } = site;
    let mut view = View {
        steps,
        root: places.view(),
        workspace,
        made: BTreeSet::new(),
        links: BTreeSet::new(),
        shown: Vec::new(),
    };
    let private = Step::Mount {
        source: c"",
        target: c"/",
        kind: c"",
        flags: ms::RECURSIVE_PRIVATE,
        data: c"",
    };
    view.steps.add("keep mounts apart", &private);
    let (work, temporary) = if has_storage {
        view.storage(places, &policy.limits)?
    } else {
        (places.work(), places.temporary())
    };
    let root = view.root.clone();
    view.steps
        .mount(c"tmpfs", &root, TAME, c"mode=755,size=4m")?;
    let mut read_roots = policy.read_roots.clone().unwrap_or_default();
    let named = read_roots.paths.clone();
    read_roots.paths = targets(&read_roots.paths)?;
    let write_roots = targets(policy.write_roots.as_deref().unwrap_or_default())?;
    view.show_read_roots(&read_roots)?;
    for path in named.iter().chain(policy.write_roots.iter().flatten()) {
        let target = canonical(path)?;
        if target != *path && !view.is_covered(path) {
            // Found by the name it was given, too.
            view.link(path, &target)?;
        }
    }
    for path in &write_roots {
        if view.is_covered(path) {
            continue;
        }
        view.make_target(path)?;
    }
    view.make_system_files(identity)?;
    for target in [workspace, Path::new(TEMPORARY)] {
        view.make_directories(target)?;
    }
    // All at once, before what may be written comes on top.
    view.steps.attributes(&root, TAME | ms::READ_ONLY)?;
    let memory_files = has_storage.then(|| places.sized().memory());
    view.mount_devices(memory_files.as_deref())?;
    let read_only = match policy.working_directory {
        Access::ReadOnly => ms::READ_ONLY,
        _ => 0,
    };
    view.cover(&work, workspace, TAME | read_only)?;
    view.cover(&temporary, Path::new(TEMPORARY), TAME)?;
    for path in &read_roots.paths {
        if view.is_covered(path) {
            view.make_target(path)?;
            view.cover(path, path, TAME | ms::READ_ONLY)?;
        }
    }
    for path in &write_roots {
        if view.is_covered(path) {
            view.make_target(path)?;
        }
        view.cover(path, path, TAME)?;
    }
    view.steps.root(&root)
}

/// Whether there is a limit to the size of all files, or to their number.
pub(super) fn is_sized(limits: &Limits) -> bool {
    limits.disk_bytes.is_some() || limits.inodes.is_some()
}

/// Where the user's roots really are, what is above before what is below.
fn targets(roots: &[PathBuf]) -> Result<Vec<PathBuf>, SandboxError> {
    let mut targets = Vec::new();
    for root in roots {
        targets.push(canonical(root)?);
    }
    targets.sort();
    Ok(targets)
}

/// The user's path of a root, without links.
pub(super) fn canonical(path: &Path) -> Result<PathBuf, SandboxError> {
    if !path.is_absolute() {
        let message = format!(
            "the root `{}` of the policy is not absolute",
            path.display()
        );
        return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
    }
    fs::canonicalize(path).map_err(|error| {
        let doing = format!("failed to find the root `{}` of the policy", path.display());
        SandboxError::io(doing, error).with_advice("Name a path that exists, or take it out.")
    })
}

/// The paths of [`ReadRoots::SYSTEM`] that this machine has.
pub(super) fn system_roots() -> impl Iterator<Item = &'static Path> {
    let all = ReadRoots::SYSTEM.iter().map(Path::new);
    all.filter(|path| fs::symlink_metadata(path).is_ok())
}

struct View<'s> {
    steps: &'s mut Steps,
    /// Where the new root is built, on the host.
    root: PathBuf,
    /// Where the working directory is seen.
    workspace: &'s Path,
    /// Directories made in it.
    made: BTreeSet<PathBuf>,
    /// Links made in it.
    links: BTreeSet<PathBuf>,
    /// Roots that can be seen with all that is below them.
    shown: Vec<PathBuf>,
}

impl View<'_> {
    /// Whether a root lies where the sandbox has a directory of its own, on top of which it must be
    /// shown.
    fn is_covered(&self, path: &Path) -> bool {
        path.starts_with(self.workspace) || path.starts_with(TEMPORARY)
    }

    fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Makes a file system of limited size with the working and the temporary directory.
    fn storage(
        &mut self,
        places: &Places,
        limits: &Limits,
    ) -> Result<(PathBuf, PathBuf), SandboxError> {
        let mut options = "mode=777".to_owned();
        if let Some(bytes) = limits.disk_bytes {
            options += &format!(",size={bytes}");
        }
        if let Some(inodes) = limits.inodes {
            // The root and the three directories in it are ours.
            options += &format!(",nr_inodes={}", inodes.saturating_add(4));
        }
        let options = CString::new(options).unwrap_or_default();
        let sized = places.sized();
        self.steps.mount(c"tmpfs", &sized.base(), TAME, &options)?;
        for directory in [sized.work(), sized.temporary(), sized.memory()] {
            self.steps.directory(&directory, 0o777)?;
        }
        self.steps.open_directory(&sized.base())?;
        Ok((sized.work(), sized.temporary()))
    }

    fn show_read_roots(&mut self, roots: &ReadRoots) -> Result<(), SandboxError> {
        if roots.system {
            for path in system_roots() {
                match fs::read_link(path) {
                    Ok(target) => self.link(path, &target)?,
                    Err(_) => self.show(path)?,
                }
            }
        }
        for path in &roots.paths {
            if !self.is_covered(path) {
                self.show(path)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, path: &Path) -> Result<(), SandboxError> {
        if self.is_shown(path) {
            return Ok(());
        }
        self.make_target(path)?;
        self.steps.bind(path, &self.place(path))?;
        self.shown.push(path.to_owned());
        Ok(())
    }

    /// Makes a link, unless something is there already.
    fn link(&mut self, path: &Path, target: &Path) -> Result<(), SandboxError> {
        let leads_there = path.ancestors().any(|above| self.links.contains(above));
        if leads_there || self.is_shown(path) || self.made.contains(path) {
            return Ok(());
        }
        self.make_parents(path)?;
        self.steps.link(&self.place(path), target)?;
        self.links.insert(path.to_owned());
        Ok(())
    }

    /// Shows something on top of what is there.
    fn cover(&mut self, source: &Path, target: &Path, attributes: u64) -> Result<(), SandboxError> {
        let place = self.place(target);
        self.steps.bind(source, &place)?;
        self.steps.attributes(&place, attributes)
    }

    /// Makes something to mount on, unless what is shown already has it.
    fn make_target(&mut self, path: &Path) -> Result<(), SandboxError> {
        if self.is_shown(path) {
            return Ok(());
        }
        if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
            return self.make_directories(path);
        }
        self.make_parents(path)?;
        self.steps.file(&self.place(path), c"")
    }

    fn is_shown(&self, path: &Path) -> bool {
        self.shown.iter().any(|shown| path.starts_with(shown))
    }

    fn make_parents(&mut self, path: &Path) -> Result<(), SandboxError> {
        path.parent()
            .map_or(Ok(()), |parent| self.make_directories(parent))
    }

    fn make_directories(&mut self, path: &Path) -> Result<(), SandboxError> {
        if path == Path::new("/") || self.is_shown(path) || self.made.contains(path) {
            return Ok(());
        }
        self.make_parents(path)?;
        self.steps.directory(&self.place(path), 0o755)?;
        self.made.insert(path.to_owned());
        Ok(())
    }

    /// What describes a machine, and so is made anew.
    fn make_system_files(&mut self, identity: Identity) -> Result<(), SandboxError> {
        for directory in ["/proc", "/dev", "/dev/pts", "/dev/shm"] {
            self.make_directories(Path::new(directory))?;
        }
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            if path.exists() && !self.is_shown(&path) {
                self.steps.file(&self.place(&path), c"")?;
            }
        }
        let links = [
            ("/dev/fd", "/proc/self/fd"),
            ("/dev/stdin", "/proc/self/fd/0"),
            ("/dev/stdout", "/proc/self/fd/1"),
            ("/dev/stderr", "/proc/self/fd/2"),
            ("/dev/ptmx", "pts/ptmx"),
            ("/var/tmp", TEMPORARY),
        ];
        for (path, target) in links {
            let path = Path::new(path);
            self.link(path, Path::new(target))?;
        }
        let (uid, gid) = (identity.uid, identity.gid);
        let passwd = format!(
            "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
             user:x:{uid}:{gid}:user:{}:/bin/bash\n",
            self.workspace.display()
        );
        let files = [
            ("/etc/passwd", passwd),
            ("/etc/group", format!("root:x:0:\nuser:x:{gid}:\n")),
            ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n".into()),
            ("/etc/resolv.conf", String::new()),
        ];
        for (path, content) in files {
            let path = Path::new(path);
            if !self.is_shown(path) {
                self.make_parents(path)?;
                let content = CString::new(content).unwrap_or_default();
                self.steps.file(&self.place(path), &content)?;
            }
        }
        Ok(())
    }

    /// `memory_files` is where the files of `/dev/shm` are, where their size is limited with all
    /// others'.
    fn mount_devices(&mut self, memory_files: Option<&Path>) -> Result<(), SandboxError> {
        let flags = TAME | ms::NO_EXEC | ms::READ_ONLY;
        let proc = self.place(Path::new("/proc"));
        self.steps.mount(c"proc", &proc, flags, c"")?;
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            if path.exists() && !self.is_shown(&path) {
                let place = self.place(&path);
                self.steps.bind(&path, &place)?;
                // What is written to a device is not written to its mount.
                let tame = ms::NO_SUID | ms::NO_EXEC | ms::READ_ONLY;
                self.steps.attributes(&place, tame)?;
            }
        }
        let memory = self.place(Path::new("/dev/shm"));
        match memory_files {
            Some(directory) => {
                self.steps.bind(directory, &memory)?;
                self.steps.attributes(&memory, TAME)?;
            }
            None => {
                let options = c"mode=1777,size=64m,nr_inodes=4k";
                self.steps.mount(c"tmpfs", &memory, TAME, options)?;
            }
        }
        let terminals = super::steps::c_path(&self.place(Path::new("/dev/pts")))?;
        let mount = Step::Mount {
            source: c"devpts",
            target: &terminals,
            kind: c"devpts",
            flags: ms::NO_SUID | ms::NO_EXEC,
            data: c"newinstance,ptmxmode=0666,mode=0620",
        };
        self.steps.add_optional(TERMINALS, &mount);
        Ok(())
    }
}
