//! Build contexts: a directory packed as an archive, with a digest of its content.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use cantle_core::sandbox::SandboxError;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType};

use super::ignore::IgnoreRules;
use crate::program::header;

/// The Dockerfile's name in the archive; its own path may be outside the context or excluded.
const DOCKERFILE_NAME: &str = ".cantle.Dockerfile";

/// A packed context.
#[derive(Debug)]
pub(crate) struct PackedContext {
    /// The archive, an unnamed temporary file, positioned at its start.
    pub(crate) archive: File,
    /// The Dockerfile's name in the archive.
    pub(crate) dockerfile: &'static str,
    /// SHA-256 of the archive; equal for equal files, modes and Dockerfile, whatever their owner and time.
    pub(crate) digest: String,
}

/// Packs `context` and `dockerfile`, and calls `on_file` for each file and each link that it reads; blocks.
pub(crate) fn pack(
    dockerfile: &Path,
    context: &Path,
    on_file: &mut dyn FnMut(&Path, &Metadata),
) -> Result<PackedContext, SandboxError> {
    let failed = |path: &Path, error: io::Error| {
        let message = format!("failed to read `{}` for a build: {error}", path.display());
        SandboxError::unavailable(message)
            .with_advice("Give the path of a Dockerfile and of the directory it builds from.")
    };
    let recipe = read_regular(dockerfile, on_file).map_err(|error| failed(dockerfile, error))?;
    let ignore = read_ignore(dockerfile, context, on_file);
    let ignore = ignore.map_err(|error| failed(context, error))?;
    if !context.is_dir() {
        return Err(failed(context, io::ErrorKind::NotADirectory.into()));
    }
    let mut pack = || -> Result<PackedContext, (PathBuf, io::Error)> {
        let temporary = |error| (std::env::temp_dir(), error);
        let mut output = HashingFile {
            file: tempfile::tempfile().map_err(temporary)?,
            digest: Sha256::new(),
        };
        {
            let mut archive = Builder::new(&mut output);
            append_directory(&mut archive, context, "", &ignore, on_file)?;
            let mut header = header(EntryType::Regular, 0o644);
            header.set_size(recipe.len() as u64);
            let append = archive.append_data(&mut header, DOCKERFILE_NAME, &*recipe);
            append.and_then(|()| archive.finish()).map_err(temporary)?;
        }
        io::Seek::rewind(&mut output.file).map_err(temporary)?;
        Ok(PackedContext {
            archive: output.file,
            dockerfile: DOCKERFILE_NAME,
            digest: format!("{:x}", output.digest.finalize()),
        })
    };
    pack().map_err(|(path, error)| failed(&path, error))
}

/// Reads a file; a pipe would wait for its writer.
fn read_regular(path: &Path, on_file: &mut dyn FnMut(&Path, &Metadata)) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        let message = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    on_file(path, &metadata);
    fs::read(path)
}

/// Reads `NAME.dockerignore` beside the Dockerfile, or else the context's `.dockerignore`.
fn read_ignore(
    dockerfile: &Path,
    context: &Path,
    on_file: &mut dyn FnMut(&Path, &Metadata),
) -> io::Result<IgnoreRules> {
    let mut specific = dockerfile.as_os_str().to_owned();
    specific.push(".dockerignore");
    for path in [PathBuf::from(specific), context.join(".dockerignore")] {
        match read_regular(&path, on_file) {
            Ok(text) => return Ok(IgnoreRules::parse(&String::from_utf8_lossy(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(IgnoreRules::default())
}

fn append_directory<W: Write>(
    archive: &mut Builder<W>,
    directory: &Path,
    above: &str,
    ignore: &IgnoreRules,
    on_file: &mut dyn FnMut(&Path, &Metadata),
) -> Result<(), (PathBuf, io::Error)> {
    let at = |error| (directory.to_owned(), error);
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut entries = entries.map_err(at)?;
    // The digest must not depend on the order in which the system lists them.
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let at = |error| (path.clone(), error);
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| {
            let why = "names in a build context must be UTF-8";
            at(io::Error::new(io::ErrorKind::InvalidInput, why))
        })?;
        let name = if above.is_empty() {
            name.to_owned()
        } else {
            format!("{above}/{name}")
        };
        let excluded = ignore.excludes(&name);
        let metadata = entry.metadata().map_err(at)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            if !excluded {
                let mut header = header(EntryType::Directory, mode(&metadata));
                archive
                    .append_data(&mut header, format!("{name}/"), io::empty())
                    .map_err(at)?;
            }
            if !excluded || ignore.has_inclusions() {
                append_directory(archive, &path, &name, ignore, on_file)?;
            }
        } else if excluded {
            // Not opened: it may be a socket or unreadable.
        } else if kind.is_symlink() {
            on_file(&path, &metadata);
            let target = fs::read_link(&path).map_err(at)?;
            let mut header = header(EntryType::Symlink, 0o777);
            archive
                .append_link(&mut header, &name, target)
                .map_err(at)?;
        } else if kind.is_file() {
            on_file(&path, &metadata);
            let file = File::open(&path).map_err(at)?;
            let size = metadata.len();
            let mut header = header(EntryType::Regular, mode(&metadata));
            header.set_size(size);
            // Keeps the length in the header even if the file changes meanwhile.
            let padded = file.take(size).chain(io::repeat(0)).take(size);
            archive
                .append_data(&mut header, &name, padded)
                .map_err(at)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn mode(metadata: &Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o7777
}

#[cfg(not(unix))]
fn mode(_metadata: &Metadata) -> u32 {
    0o755
}

struct HashingFile {
    file: File,
    digest: Sha256,
}

impl Write for HashingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cantle_core::sandbox::SandboxErrorKind;

    use super::*;

    fn pack(dockerfile: &Path, context: &Path) -> Result<PackedContext, SandboxError> {
        super::pack(dockerfile, context, &mut |_, _| {})
    }

    fn names(packed: &mut PackedContext) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(&packed.archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (name, bytes)
        });
        entries.collect()
    }

    #[test]
    fn excluded_files_are_not_packed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for (path, text) in [
            ("Dockerfile", "FROM scratch"),
            (".dockerignore", "*.log\nbig\n!big/keep"),
            ("a.txt", "a"),
            ("a.log", "log"),
            ("big/data", "data"),
            ("big/keep", "kept"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        let mut packed = pack(&root.join("Dockerfile"), root).unwrap();
        let expected = [
            (".cantle.Dockerfile", "FROM scratch"),
            (".dockerignore", "*.log\nbig\n!big/keep"),
            ("Dockerfile", "FROM scratch"),
            ("a.txt", "a"),
            ("big/keep", "kept"),
        ];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        assert_eq!(names(&mut packed), BTreeMap::from(expected));

        let again = pack(&root.join("Dockerfile"), root).unwrap().digest;
        assert_eq!(again, packed.digest);
        fs::write(root.join("a.log"), "other").unwrap();
        assert_eq!(
            pack(&root.join("Dockerfile"), root).unwrap().digest,
            packed.digest
        );
        fs::write(root.join("a.txt"), "b").unwrap();
        assert_ne!(
            pack(&root.join("Dockerfile"), root).unwrap().digest,
            packed.digest
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn special_files_are_refused() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let directory = tempfile::tempdir().unwrap();
        let dockerfile = directory.path().join("Dockerfile");
        fs::write(&dockerfile, "FROM scratch").unwrap();
        for name in [".dockerignore", "Dockerfile"] {
            let path = directory.path().join(name);
            let _ = fs::remove_file(&path);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
            let error = pack(&dockerfile, directory.path()).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
    }

    #[test]
    fn missing_dockerfile_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("Dockerfile");
        let error = pack(&missing, directory.path()).unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
        assert!(error.to_string().contains("Dockerfile"), "{error}");
    }
}
