//! Writing down the steps of building a sandbox, and what to call each where it fails.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_supervisor::Writer;
use cantle_supervisor::wire::{Group, Setup, Step};

use crate::groups::End;

/// `MS_…` of `mount(2)`.
pub(super) mod ms {
    pub(crate) const READ_ONLY: u64 = 1;
    pub(crate) const NO_SUID: u64 = 2;
    pub(crate) const NO_DEVICES: u64 = 4;
    pub(crate) const NO_EXEC: u64 = 8;
    pub(crate) const RECURSIVE_BIND: u64 = 0x1000 | 0x4000;
    pub(crate) const RECURSIVE_PRIVATE: u64 = 0x4_0000 | 0x4000;
}

/// Steps, in the order in which they are done.
#[derive(Debug)]
pub(super) struct Steps {
    writer: Writer,
    names: Vec<String>,
}

impl Steps {
    pub(super) fn new(setup: &Setup<'_>, groups: &[End]) -> Self {
        let mut writer = Writer::new();
        writer.setup(setup);
        for group in groups {
            writer.group(&Group {
                directory: &group.directory,
                stop: &group.stop,
                word: &group.word,
            });
        }
        Self {
            writer,
            names: Vec::new(),
        }
    }

    /// The body for the supervisor, and a name for each step.
    pub(super) fn finish(self) -> (Vec<u8>, Vec<String>) {
        (self.writer.into_bytes(), self.names)
    }

    /// A step that must succeed; `name` completes "failed to …".
    pub(super) fn add(&mut self, name: impl Into<String>, step: &Step<'_>) {
        self.names.push(name.into());
        self.writer.step(step);
    }

    /// A step that may fail, which the bit `wall` then says.
    pub(super) fn add_optional(&mut self, wall: u8, step: &Step<'_>) {
        self.names.push(String::new());
        self.writer.optional(wall, step);
    }

    /// Restricts access by Landlock to `rules`; optional where there is a bit for it.
    pub(super) fn landlock(&mut self, wall: Option<u8>, rules: &[(CString, u64)]) {
        let count = Step::Landlock {
            rules: u32::try_from(rules.len()).unwrap_or(u32::MAX),
        };
        match wall {
            Some(wall) => self.add_optional(wall, &count),
            None => self.add("restrict access to files (Landlock)", &count),
        }
        for (path, access) in rules {
            let access = *access;
            // Part of the step before, and not counted.
            self.writer.step(&Step::Allow { path, access });
        }
    }

    pub(super) fn mount(&mut self, kind: &CStr, target: &Path, flags: u64, data: &CStr) -> Done {
        let step = Step::Mount {
            source: kind,
            target: &c_path(target)?,
            kind,
            flags,
            data,
        };
        self.add(format!("mount {}", target.display()), &step);
        Ok(())
    }

    /// Shows what is at `source`, with all that is mounted below it, at `target`.
    pub(super) fn bind(&mut self, source: &Path, target: &Path) -> Done {
        let step = Step::Mount {
            source: &c_path(source)?,
            target: &c_path(target)?,
            kind: c"",
            flags: ms::RECURSIVE_BIND,
            data: c"",
        };
        self.add(format!("show {}", source.display()), &step);
        Ok(())
    }

    /// Sets `MOUNT_ATTR_…`; the first bits are the same as of `MS_…`.
    pub(super) fn attributes(&mut self, target: &Path, set: u64) -> Done {
        let step = Step::Attributes {
            target: &c_path(target)?,
            set,
        };
        self.add(format!("restrict {}", target.display()), &step);
        Ok(())
    }

    pub(super) fn directory(&mut self, path: &Path, mode: u32) -> Done {
        let step = Step::MakeDirectory {
            path: &c_path(path)?,
            mode,
        };
        self.add(format!("make {}", path.display()), &step);
        Ok(())
    }

    pub(super) fn file(&mut self, path: &Path, content: &CStr) -> Done {
        let step = Step::MakeFile {
            path: &c_path(path)?,
            content,
        };
        self.add(format!("make {}", path.display()), &step);
        Ok(())
    }

    pub(super) fn link(&mut self, path: &Path, target: &Path) -> Done {
        let step = Step::Link {
            path: &c_path(path)?,
            target: &c_path(target)?,
        };
        self.add(format!("make {}", path.display()), &step);
        Ok(())
    }

    pub(super) fn open_directory(&mut self, path: &Path) -> Done {
        let step = Step::OpenDirectory {
            path: &c_path(path)?,
        };
        self.add(format!("open {}", path.display()), &step);
        Ok(())
    }

    pub(super) fn root(&mut self, path: &Path) -> Done {
        let path = &c_path(path)?;
        self.add("change the root", &Step::Root { path });
        Ok(())
    }
}

type Done = Result<(), SandboxError>;

/// A path for the kernel.
pub(super) fn c_path(path: &Path) -> Result<CString, SandboxError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        let message = format!("the path `{}` has a NUL in it", path.display());
        SandboxError::new(SandboxErrorKind::InvalidInput, message)
    })
}
