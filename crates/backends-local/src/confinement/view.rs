//! The private view of the file system: only what the policy names, at the same paths as on the host, and
//! the sandbox's own directories at fixed paths.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use cantle_core::policy::{Access, Limits, Policy, ReadRoots};
use cantle_core::sandbox::SandboxError;
use cantle_supervisor::wire::Step;

use super::TERMINALS;
use super::memory;
use super::owners::MappedRoot;
use super::quotas;
use super::steps::{Steps, ms};
use crate::files::HostPaths;
use crate::identity::Identity;
use crate::storage::Storage;

/// An empty file of the view, which covers hidden files.
const EMPTY: &str = "/.empty";
/// A file of the view with the sandbox's own boot id, which covers the host's.
const OWN_BOOT_ID: &str = "/.boot_id";

/// Default path of the working directory, and the one if the policy has a root there.
const WORKSPACE: &str = "/workspace";
const OTHER_WORKSPACE: &str = "/cantle-workspace";
/// Path of the temporary directory.
pub(crate) const TEMPORARY: &str = "/tmp";

/// Harmless devices.
const DEVICES: &[&str] = &["full", "null", "random", "tty", "urandom", "zero"];

/// Files of `/proc` about the host that no ordinary program needs.
const MASKED: &[&str] = &[
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    BOOT_ID,
];
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Neither set-user-id programs nor devices.
const RESTRICTED: u64 = ms::NO_SUID | ms::NO_DEVICES;

/// The sandbox's own part of the view.
#[derive(Clone, Copy, Debug)]
pub(super) struct SandboxMounts<'s> {
    pub(super) paths: &'s HostPaths,
    /// Path of the working directory in the view.
    pub(super) workspace: &'s Path,
    pub(super) storage: Storage,
    /// The write roots with mapped owners.
    pub(super) mapped_roots: &'s [MappedRoot],
}

/// Returns the path of the working directory in the view: `configured`, if that is possible.
pub(crate) fn workspace<'p>(
    configured: Option<&'p Path>,
    policy: &Policy,
) -> Result<&'p Path, SandboxError> {
    let Some(path) = configured else {
        let (read, written) = roots(policy);
        let is_there = |root: &PathBuf| {
            let target = fs::canonicalize(root);
            root.starts_with(WORKSPACE) || target.is_ok_and(|it| it.starts_with(WORKSPACE))
        };
        return Ok(Path::new(match read.iter().chain(written).any(is_there) {
            true => OTHER_WORKSPACE,
            false => WORKSPACE,
        }));
    };
    let own = [TEMPORARY, "/proc", "/dev"];
    let is_plain = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str()
        && path.is_absolute()
        && !path.components().any(|part| part == Component::ParentDir);
    let is_text = path
        .to_str()
        .is_some_and(|text| !text.contains([':', '\n', '\0']));
    let system = ReadRoots::SYSTEM.iter().copied();
    let is_taken = own
        .into_iter()
        .chain(system)
        .any(|taken| path.starts_with(taken));
    if is_plain && is_text && path.parent().is_some() && !is_taken {
        return Ok(path);
    }
    let message = format!(
        "the working directory can't be mounted at `{}`",
        path.display()
    );
    Err(SandboxError::invalid_input(message).with_advice(
        "Choose an absolute path outside the system's directories, such as `/home/user`.",
    ))
}

/// Adds the steps that build the view, up to the change of the root.
pub(super) fn build(
    steps: &mut Steps,
    policy: &Policy,
    identity: Identity,
    mounts: SandboxMounts<'_>,
) -> Result<(), SandboxError> {
    let SandboxMounts {
        paths,
        workspace,
        storage,
        mapped_roots,
    } = mounts;
    let mut view = ViewBuilder {
        steps,
        root: paths.view(),
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
    view.steps.add("make mounts private", &private);
    let (work, temporary) = view.own_directories(paths, storage, &policy.limits)?;
    let root = view.root.clone();
    view.steps
        .mount(c"tmpfs", &root, RESTRICTED, c"mode=755,size=4m")?;
    let mut read_roots = policy.read_roots.clone().unwrap_or_default();
    let named = read_roots.paths.clone();
    let write_roots = targets(policy.write_roots.as_deref().unwrap_or_default())?;
    let read_only_parts: Vec<PathBuf>;
    (read_only_parts, read_roots.paths) = targets(&read_roots.paths)?
        .into_iter()
        .partition(|path| is_part(path, &write_roots));
    view.show_read_roots(&read_roots)?;
    for path in named.iter().chain(policy.write_roots.iter().flatten()) {
        let target = canonical(path)?;
        if target != *path && !view.is_covered(path) {
            // Also reachable by the name in the policy.
            view.link(path, &target)?;
        }
    }
    for path in &write_roots {
        if !view.is_covered(path) {
            view.make_target(path)?;
        }
    }
    view.make_system_files(identity)?;
    if !policy.hidden_paths.is_empty() {
        let empty = view.host_path(Path::new(EMPTY));
        view.steps.file(&empty, c"")?;
    }
    // Before the writable mounts are added on top.
    view.steps
        .set_attributes(&root, RESTRICTED | ms::READ_ONLY)?;
    // Files there are not kept.
    let memory_files = (storage == Storage::Memory).then(|| paths.sized().memory());
    view.mount_devices(memory_files.as_deref())?;
    let read_only = match policy.working_directory {
        Access::ReadOnly => ms::READ_ONLY,
        _ => 0,
    };
    view.cover(&work, workspace, RESTRICTED | read_only)?;
    view.cover(&temporary, Path::new(TEMPORARY), RESTRICTED)?;
    for path in &read_roots.paths {
        if view.is_covered(path) {
            view.make_target(path)?;
            view.cover(path, path, RESTRICTED | ms::READ_ONLY)?;
        }
    }
    view.mount_write_roots(&write_roots, &read_only_parts, mapped_roots)?;
    let roots: Vec<_> = write_roots.into_iter().chain(read_roots.paths).collect();
    view.hide_all(&policy.hidden_paths, &roots)?;
    view.steps.pivot_root(&root)
}

/// Returns a random boot id, so that programs see a machine that has started with the sandbox. It is empty if the kernel
/// makes none.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default()
}

/// Whether a path is below one of these roots.
fn is_part(path: &Path, roots: &[PathBuf]) -> bool {
    roots
        .iter()
        .any(|root| path != root && path.starts_with(root))
}

/// Whether a read root is below a write root.
pub(super) fn has_read_only_parts(policy: &Policy) -> bool {
    let found = |roots: &[PathBuf]| -> Vec<PathBuf> {
        let found = roots.iter().map(fs::canonicalize);
        found.filter_map(Result::ok).collect()
    };
    let written = found(policy.write_roots.as_deref().unwrap_or_default());
    let read = policy.read_roots.as_ref().map(|roots| found(&roots.paths));
    read.is_some_and(|read| read.iter().any(|path| is_part(path, &written)))
}

/// Returns the read and the write roots of a policy.
fn roots(policy: &Policy) -> (&[PathBuf], &[PathBuf]) {
    let read = policy.read_roots.as_ref().map(|roots| &*roots.paths);
    let written = policy.write_roots.as_deref();
    (read.unwrap_or_default(), written.unwrap_or_default())
}

/// Returns the canonical paths of the roots that are mounted in the sandbox's own directories.
///
/// # Errors
/// If one takes the place of such a directory.
pub(crate) fn roots_within(
    policy: &Policy,
    workspace: &Path,
) -> Result<Vec<PathBuf>, SandboxError> {
    let (read, written) = roots(policy);
    let (read, written) = (targets(read)?, targets(written)?);
    let own = [workspace.to_owned(), PathBuf::from(TEMPORARY)];
    let is_taken =
        |own: &&PathBuf| read.contains(own) || written.iter().any(|root| own.starts_with(root));
    if let Some(taken) = own.iter().find(is_taken) {
        let message = format!(
            "a root of the policy would take the place of the sandbox's own directory `{}`",
            taken.display()
        );
        return Err(SandboxError::invalid_input(message)
            .with_advice("Name what commands need in it, not all of it."));
    }
    let all = read.into_iter().chain(written);
    Ok(all.filter(|path| is_part(path, &own)).collect())
}

/// Returns the canonical paths of roots, parents before children.
pub(super) fn targets(roots: &[PathBuf]) -> Result<Vec<PathBuf>, SandboxError> {
    let targets = roots.iter().map(|root| canonical(root));
    let mut targets = targets.collect::<Result<Vec<_>, _>>()?;
    targets.sort();
    Ok(targets)
}

/// Returns the canonical path of a root of the policy.
pub(super) fn canonical(path: &Path) -> Result<PathBuf, SandboxError> {
    if !path.is_absolute() {
        let message = format!(
            "the root `{}` of the policy is not absolute",
            path.display()
        );
        return Err(SandboxError::invalid_input(message));
    }
    fs::canonicalize(path).map_err(|error| {
        let doing = format!("failed to find the root `{}` of the policy", path.display());
        SandboxError::io(doing, error).with_advice("Name a path that exists, or take it out.")
    })
}

/// Returns the paths of [`ReadRoots::SYSTEM`] that this machine has.
pub(super) fn system_roots() -> impl Iterator<Item = &'static Path> {
    let all = ReadRoots::SYSTEM.iter().map(Path::new);
    all.filter(|path| fs::symlink_metadata(path).is_ok())
}

struct ViewBuilder<'s> {
    steps: &'s mut Steps,
    /// The host path at which the new root is built.
    root: PathBuf,
    /// Path of the working directory in the view.
    workspace: &'s Path,
    /// Directories created in the view.
    made: BTreeSet<PathBuf>,
    /// Symbolic links created in the view.
    links: BTreeSet<PathBuf>,
    /// Roots bound with everything below them.
    shown: Vec<PathBuf>,
}

impl ViewBuilder<'_> {
    /// Whether a root is below a directory of the sandbox, on top of which it must be mounted.
    fn is_covered(&self, path: &Path) -> bool {
        path.starts_with(self.workspace) || path.starts_with(TEMPORARY)
    }

    /// Returns the host path of a path in the view, while it is built.
    fn host_path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Prepares the medium of the sandbox's own files. Returns the paths of the working and the temporary directory.
    fn own_directories(
        &mut self,
        paths: &HostPaths,
        storage: Storage,
        limits: &Limits,
    ) -> Result<(PathBuf, PathBuf), SandboxError> {
        let sized = paths.sized();
        let base = sized.base();
        match storage {
            Storage::Directory => return Ok((paths.work(), paths.temporary())),
            Storage::Memory => {
                let options = memory::options(limits);
                self.steps.mount(c"tmpfs", &base, RESTRICTED, &options)?;
                self.steps.directory(&sized.memory(), 0o777)?;
            }
            Storage::Image => self.steps.attach_image(&base)?,
        }
        // An image that was used before has them.
        for directory in [sized.work(), sized.temporary()] {
            self.steps.directory(&directory, 0o777)?;
        }
        self.steps.open_directory(&base)?;
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
        self.steps.bind(path, &self.host_path(path))?;
        self.shown.push(path.to_owned());
        Ok(())
    }

    /// Creates a symbolic link, unless the path exists already.
    fn link(&mut self, path: &Path, target: &Path) -> Result<(), SandboxError> {
        let is_below_link = path.ancestors().any(|above| self.links.contains(above));
        if is_below_link || self.is_shown(path) || self.made.contains(path) {
            return Ok(());
        }
        self.make_parents(path)?;
        self.steps.link(&self.host_path(path), target)?;
        self.links.insert(path.to_owned());
        Ok(())
    }

    /// Mounts the write roots, and on top of them what is read-only there.
    fn mount_write_roots(
        &mut self,
        write_roots: &[PathBuf],
        read_only_parts: &[PathBuf],
        mapped_roots: &[MappedRoot],
    ) -> Result<(), SandboxError> {
        // Parents before what is in them.
        let mut roots: Vec<_> = write_roots.iter().chain(read_only_parts).collect();
        roots.sort();
        for path in roots {
            let host_path = self.host_path(path);
            if read_only_parts.contains(path) {
                // As it is seen there, with the same owners.
                self.cover(&host_path, path, RESTRICTED | ms::READ_ONLY)?;
                continue;
            }
            if self.is_covered(path) {
                self.make_target(path)?;
            }
            match mapped_roots.iter().position(|root| root.path == *path) {
                Some(number) => self.steps.bind_mapped(number, path, &host_path)?,
                None => self.steps.bind(path, &host_path)?,
            }
            self.steps.set_attributes(&host_path, RESTRICTED)?;
        }
        Ok(())
    }

    /// Binds `source` on top of what is mounted at `target`.
    fn cover(&mut self, source: &Path, target: &Path, attributes: u64) -> Result<(), SandboxError> {
        let host_path = self.host_path(target);
        self.steps.bind(source, &host_path)?;
        self.steps.set_attributes(&host_path, attributes)
    }

    /// Hides what the view has of these paths, in a root or in what is shown.
    fn hide_all(&mut self, paths: &[PathBuf], roots: &[PathBuf]) -> Result<(), SandboxError> {
        let mut hidden: Vec<_> = paths.iter().flat_map(fs::canonicalize).collect();
        hidden.sort();
        hidden.retain(|path| {
            let mut seen = roots.iter().chain(&self.shown);
            seen.any(|root| path.starts_with(root))
        });
        // What is below a hidden directory is hidden with it.
        hidden.dedup_by(|path, above| path.starts_with(above));
        hidden.iter().try_for_each(|path| self.hide(path))
    }

    /// Covers a file or directory by an empty one.
    fn hide(&mut self, path: &Path) -> Result<(), SandboxError> {
        let attributes = RESTRICTED | ms::READ_ONLY;
        if path.is_dir() {
            let (target, options) = (self.host_path(path), c"mode=755,size=4k");
            return self.steps.mount(c"tmpfs", &target, attributes, options);
        }
        let empty = self.host_path(Path::new(EMPTY));
        self.cover(&empty, path, attributes)
    }

    /// Creates a mount point, unless a bound root contains it already.
    fn make_target(&mut self, path: &Path) -> Result<(), SandboxError> {
        if self.is_shown(path) {
            return Ok(());
        }
        if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
            return self.make_directories(path);
        }
        self.make_parents(path)?;
        self.steps.file(&self.host_path(path), c"")
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
        self.steps.directory(&self.host_path(path), 0o755)?;
        self.made.insert(path.to_owned());
        Ok(())
    }

    /// Creates the files that describe the machine and its users.
    fn make_system_files(&mut self, identity: Identity) -> Result<(), SandboxError> {
        let own = ["/proc", "/dev", "/dev/pts", "/dev/shm", TEMPORARY].map(Path::new);
        for directory in own.into_iter().chain([self.workspace]) {
            self.make_directories(directory)?;
        }
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            if path.exists() && !self.is_shown(&path) {
                self.steps.file(&self.host_path(&path), c"")?;
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
            (OWN_BOOT_ID, boot_id()),
        ];
        for (path, content) in files {
            let path = Path::new(path);
            if !self.is_shown(path) {
                self.make_parents(path)?;
                let content = CString::new(content).unwrap_or_default();
                self.steps.file(&self.host_path(path), &content)?;
            }
        }
        Ok(())
    }

    /// Mounts `/proc` and `/dev`. `memory_files` is the directory for `/dev/shm` if its size is limited
    /// together with all other files.
    fn mount_devices(&mut self, memory_files: Option<&Path>) -> Result<(), SandboxError> {
        let flags = RESTRICTED | ms::NO_EXEC | ms::READ_ONLY;
        let proc = self.host_path(Path::new("/proc"));
        self.steps.mount(c"proc", &proc, flags, c"")?;
        for path in MASKED.iter().map(Path::new) {
            if path.exists() {
                let own = Path::new(OWN_BOOT_ID);
                let cover = match path == Path::new(BOOT_ID) && !self.is_shown(own) {
                    true => self.host_path(own),
                    false => "/dev/null".into(),
                };
                self.steps.bind(&cover, &self.host_path(path))?;
            }
        }
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            if path.exists() && !self.is_shown(&path) {
                let host_path = self.host_path(&path);
                self.steps.bind(&path, &host_path)?;
                // A read-only mount still allows writing to a device.
                let attributes = ms::NO_SUID | ms::NO_EXEC | ms::READ_ONLY;
                self.steps.set_attributes(&host_path, attributes)?;
            }
        }
        let memory = self.host_path(Path::new("/dev/shm"));
        match memory_files {
            Some(directory) => {
                self.steps.bind(directory, &memory)?;
                self.steps.set_attributes(&memory, RESTRICTED)?;
            }
            None => {
                let options = c"mode=1777,size=64m,nr_inodes=4k";
                self.steps.mount(c"tmpfs", &memory, RESTRICTED, options)?;
            }
        }
        let terminals = super::steps::c_path(&self.host_path(Path::new("/dev/pts")))?;
        let options = quotas::terminals();
        let mount = Step::Mount {
            source: c"devpts",
            target: &terminals,
            kind: c"devpts",
            flags: ms::NO_SUID | ms::NO_EXEC,
            data: &options,
        };
        self.steps.add_optional(TERMINALS, &mount);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writing(root: impl Into<PathBuf>) -> Policy {
        let mut policy = Policy::workspace();
        policy.write_roots = Some(vec![root.into()]);
        policy
    }

    #[test]
    fn default_working_directory_gives_way_to_roots() {
        for (root, expected) in [
            ("/data", WORKSPACE),
            ("/workspaces/project", WORKSPACE),
            ("/workspace", OTHER_WORKSPACE),
            ("/workspace/project", OTHER_WORKSPACE),
        ] {
            let found = workspace(None, &writing(root)).unwrap();
            assert_eq!(found, Path::new(expected), "{root}");
        }
    }

    #[test]
    fn roots_do_not_take_the_place_of_own_directories() {
        let place = tempfile::tempdir().unwrap();
        let above = place.path().canonicalize().unwrap();
        let home = above.join("home");
        let below = home.join("data");
        fs::create_dir_all(&below).unwrap();
        assert_eq!(roots_within(&writing(&below), &home).unwrap(), [below]);
        let mut reading = Policy::workspace();
        reading.read_roots = Some(ReadRoots::system().with_paths([home.clone()]));
        for refused in [reading, writing(&home), writing(&above), writing("/tmp")] {
            let error = roots_within(&refused, &home).unwrap_err();
            assert!(error.to_string().contains("own directory"), "{error}");
        }
    }
}
