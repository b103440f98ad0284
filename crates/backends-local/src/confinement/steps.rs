//! The steps that build a sandbox, and a name for each in case it fails.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cantle_core::sandbox::SandboxError;
use cantle_supervisor::Writer;
use cantle_supervisor::wire::{ControlGroup, MappedDirectory, Setup, Step};

use crate::groups::GroupCleanup;

/// `MS_…` of `mount(2)`.
pub(super) mod ms {
    pub(crate) const READ_ONLY: u64 = 1;
    pub(crate) const NO_SUID: u64 = 2;
    pub(crate) const NO_DEVICES: u64 = 4;
    pub(crate) const NO_EXEC: u64 = 8;
    pub(crate) const RECURSIVE_BIND: u64 = 0x1000 | 0x4000;
    pub(crate) const RECURSIVE_PRIVATE: u64 = 0x4_0000 | 0x4000;
}

/// The steps of a plan, in order.
#[derive(Debug)]
pub(super) struct Steps {
    writer: Writer,
    names: Vec<String>,
}

impl Steps {
    pub(super) fn new(
        setup: &Setup<'_>,
        groups: &[GroupCleanup],
        mapped: &[MappedDirectory<'_>],
    ) -> Self {
        let mut writer = Writer::new();
        writer.write(setup);
        for group in groups {
            writer.write(&ControlGroup {
                directory: &group.directory,
                stop: &group.stop,
                stop_value: &group.stop_value,
            });
        }
        for directory in mapped {
            writer.write(directory);
        }
        Self {
            writer,
            names: Vec::new(),
        }
    }

    /// Returns the body for the supervisor, and a name for each step.
    pub(super) fn finish(self) -> (Vec<u8>, Vec<String>) {
        (self.writer.into_bytes(), self.names)
    }

    /// Adds a step that must succeed; `name` completes "failed to …".
    pub(super) fn add(&mut self, name: impl Into<String>, step: &Step<'_>) {
        self.names.push(name.into());
        self.writer.step(step);
    }

    /// Adds a step that may fail, which `bit` then reports.
    pub(super) fn add_optional(&mut self, bit: u8, step: &Step<'_>) {
        self.names.push(String::new());
        self.writer.optional_step(bit, step);
    }

    /// Restricts access by Landlock to `rules`; optional if a bit is given.
    pub(super) fn landlock(&mut self, bit: Option<u8>, rules: &[(CString, u64)]) {
        let count = Step::Landlock {
            rules: u32::try_from(rules.len()).unwrap_or(u32::MAX),
        };
        match bit {
            Some(bit) => self.add_optional(bit, &count),
            None => self.add("restrict access to files (Landlock)", &count),
        }
        for (path, access) in rules {
            let access = *access;
            // Part of the Landlock step, without a number of its own.
            self.writer.step(&Step::LandlockRule { path, access });
        }
    }

    /// Adds a step about a path, with the verb for its name.
    fn add_at(&mut self, doing: &str, path: &Path, step: &Step<'_>) -> StepResult {
        self.add(format!("{doing} {}", path.display()), step);
        Ok(())
    }

    pub(super) fn mount(
        &mut self,
        kind: &CStr,
        target: &Path,
        flags: u64,
        data: &CStr,
    ) -> StepResult {
        let step = Step::Mount {
            source: kind,
            target: &c_path(target)?,
            kind,
            flags,
            data,
        };
        self.add_at("mount", target, &step)
    }

    /// Binds `source`, with all mounts below it, to `target`.
    pub(super) fn bind(&mut self, source: &Path, target: &Path) -> StepResult {
        let step = Step::Mount {
            source: &c_path(source)?,
            target: &c_path(target)?,
            kind: c"",
            flags: ms::RECURSIVE_BIND,
            data: c"",
        };
        self.add_at("bind", source, &step)
    }

    /// Binds the mapped root of this number to `target`.
    pub(super) fn bind_mapped(
        &mut self,
        number: usize,
        source: &Path,
        target: &Path,
    ) -> StepResult {
        let step = Step::BindMapped {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            source: &c_path(source)?,
            target: &c_path(target)?,
        };
        self.add_at("bind", source, &step)
    }

    /// Attaches the file system of the disk image to a directory.
    pub(super) fn attach_image(&mut self, target: &Path) -> StepResult {
        let target = &c_path(target)?;
        self.add("attach the disk image", &Step::AttachImage { target });
        Ok(())
    }

    /// Sets `MOUNT_ATTR_…`; the low bits equal `MS_…`.
    pub(super) fn set_attributes(&mut self, path: &Path, set: u64) -> StepResult {
        let target = &c_path(path)?;
        self.add_at("restrict", path, &Step::SetMountAttributes { target, set })
    }

    pub(super) fn directory(&mut self, at: &Path, mode: u32) -> StepResult {
        let path = &c_path(at)?;
        self.add_at("make", at, &Step::MakeDirectory { path, mode })
    }

    pub(super) fn file(&mut self, at: &Path, content: &CStr) -> StepResult {
        let path = &c_path(at)?;
        self.add_at("make", at, &Step::MakeFile { path, content })
    }

    pub(super) fn link(&mut self, at: &Path, target: &Path) -> StepResult {
        let (path, target) = (&c_path(at)?, &c_path(target)?);
        self.add_at("make", at, &Step::Symlink { path, target })
    }

    pub(super) fn open_directory(&mut self, at: &Path) -> StepResult {
        let path = &c_path(at)?;
        self.add_at("open", at, &Step::OpenDirectory { path })
    }

    pub(super) fn pivot_root(&mut self, path: &Path) -> StepResult {
        let path = &c_path(path)?;
        self.add("change the root", &Step::PivotRoot { path });
        Ok(())
    }
}

type StepResult = Result<(), SandboxError>;

/// Converts a path for the kernel.
pub(super) fn c_path(path: &Path) -> Result<CString, SandboxError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        SandboxError::invalid_input(format!("the path `{}` contains NUL", path.display()))
    })
}
