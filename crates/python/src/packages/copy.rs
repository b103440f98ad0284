//! Copies of sets, for sandboxes that see none of this machine's files.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use cantle_core::sandbox::{Sandbox, SandboxError, SandboxExt as _, SandboxPath, SpawnRequest};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use super::PackageSet;
use super::store::archive_of;

const UNPACK: &str = include_str!("unpack.py");
const UNPACK_TIMEOUT: Duration = Duration::from_secs(10 * 60);

impl PackageSet {
    /// Copies the set into a sandbox, for its Python `program`, and returns the path of the copy's Python, or why it can't be
    /// used. A copy that is there is used again.
    pub(crate) async fn copy_into(
        &self,
        sandbox: &dyn Sandbox,
        program: &str,
    ) -> Result<Result<String, String>, SandboxError> {
        let place = format!(".cantle/packages/{}", self.set.key);
        let python = sandbox
            .info()
            .working_directory
            .join(format!("{place}/bin/python"))?;
        if sandbox
            .is_file(&SandboxPath::new(format!("{place}/pyvenv.cfg"))?)
            .await?
        {
            return Ok(Ok(python.to_string()));
        }
        let directory = self.set.path.clone();
        let packed = tokio::task::spawn_blocking(move || archive(&directory)).await;
        let packed = packed.unwrap_or_else(|error| Err(io::Error::other(error)));
        let digest = packed.map_err(|error| SandboxError::io("failed to pack packages", error))?;
        let archive = SandboxPath::new(format!("{place}.tar.gz"))?;
        sandbox
            .upload(&archive_of(&self.set.path), &archive)
            .await?;
        let target = &self.set.content.target;
        let version = format!("{}.{}", target.version.0, target.version.1);
        let archive = archive.to_string();
        let arguments = [
            program,
            "-c",
            UNPACK,
            &archive,
            &digest,
            &place,
            &version,
            &target.platform,
        ];
        let unpack = SpawnRequest::argv(arguments).with_timeout(UNPACK_TIMEOUT);
        let output = sandbox.run(unpack).await?;
        if output.exit.status.success() {
            return Ok(Ok(python.to_string()));
        }
        let reason: String = output.stderr.text().trim().chars().take(500).collect();
        let status = output.exit.status;
        Ok(Err(format!(
            "The packages can't be used in the sandbox ({status}): {reason}"
        )))
    }
}

/// Packs the libraries of a set, once, and returns the archive's digest.
fn archive(directory: &Path) -> io::Result<String> {
    let path = archive_of(directory);
    if !path.exists() {
        // Of this call, because another one may do the same. One that is not completed is removed.
        let temporary = tempfile::Builder::new()
            // Copies have the archive's mode, and not every sandbox reads them as their owner.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory.parent().unwrap_or(directory))?;
        let encoder = GzEncoder::new(temporary, Compression::fast());
        let mut packed = tar::Builder::new(BufWriter::new(encoder));
        packed.follow_symlinks(false);
        packed.append_dir_all("lib", directory.join("lib"))?;
        let encoder = packed.into_inner()?.into_inner().map_err(io::Error::from)?;
        let complete = encoder.finish()?.persist(&path);
        complete.map_err(|error| error.error)?;
    }
    let (mut file, mut digest) = (File::open(&path)?, Sha256::new());
    io::copy(&mut file, &mut digest)?;
    Ok(format!("{:x}", digest.finalize()))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::{fs, thread};

    use super::*;

    #[test]
    fn an_archive_that_fails_leaves_nothing() {
        let store = tempfile::tempdir().unwrap();
        let set = store.path().join("set");
        fs::create_dir(&set).unwrap();
        archive(&set).unwrap_err();
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_archive_that_is_packed_several_times_at_once_is_whole() {
        let store = tempfile::tempdir().unwrap();
        let set = store.path().join("set");
        fs::create_dir_all(set.join("lib")).unwrap();
        fs::write(set.join("lib/data"), vec![7; 16 << 20]).unwrap();
        let barrier = Barrier::new(4);
        let digests = thread::scope(|scope| {
            let pack = || {
                barrier.wait();
                archive(&set).unwrap()
            };
            let threads = [(); 4].map(|()| scope.spawn(pack));
            threads.map(|thread| thread.join().unwrap())
        });
        let whole = archive(&set).unwrap();
        assert!(digests.iter().all(|it| *it == whole), "{digests:?}");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&archive_of(&set)), mode(&set.join("lib/data")));
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 2);
    }
}
