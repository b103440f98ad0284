//! `cantle-result.json`: the result of a run, for programs.
//!
//! It is written last and atomically, so its presence means that the run is complete; the file of an
//! earlier run is put aside before the next run begins. Its digests tell which output files may be replaced.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cantle::agent::Outcome;
use cantle::core::event::{Finish, RunStatus};
use cantle::core::ledger::Ledger;
use cantle::core::sandbox::RefusedFile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::exit::{Failure, FailureExt as _};
use crate::trust::read_regular;

pub(crate) const FILE_NAME: &str = "cantle-result.json";

/// The result file of an earlier run, while there is no new one.
const EARLIER: &str = ".cantle-earlier.json";

/// Version of the format; adding fields does not change it.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct ResultFile<'a> {
    version: u32,
    run: String,
    status: RunStatus,
    finish: Option<&'a Finish>,
    outputs: Vec<SavedOutput<'a>>,
    refused: &'a [RefusedFile],
    /// Files that a run which ended with an answer in text did not deliver.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    undelivered: &'a [String],
    turns: u32,
    duration_s: f64,
    ledger: &'a Ledger,
    /// The ledger in Stirrup's format.
    dotted: Map<String, Value>,
    /// SHA-256 of files of earlier runs, by their path below the output directory.
    earlier: &'a SavedDigests,
}

/// The part of a result file that the next run reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct EarlierResult {
    outputs: Vec<EarlierOutput>,
    earlier: SavedDigests,
}

#[derive(Deserialize)]
struct EarlierOutput {
    name: Option<PathBuf>,
    sha256: Option<String>,
}

/// The digests of saved files, by their path below the output directory.
pub(crate) type SavedDigests = BTreeMap<PathBuf, String>;

#[derive(Serialize)]
struct SavedOutput<'a> {
    source: &'a str,
    path: String,
    /// The path below the output directory.
    name: &'a Path,
    size_bytes: u64,
    /// By the file's name.
    media_type: String,
    sha256: Option<&'a str>,
}

/// Returns the digests of files that earlier runs saved, by their path below the output directory.
///
/// A result file that can't be read is none: its files are not replaced.
pub(crate) fn earlier(output_dir: &Path) -> SavedDigests {
    let read = |name| {
        let (text, _) = read_regular(&output_dir.join(name)).ok()??;
        serde_json::from_str::<EarlierResult>(&text).ok()
    };
    let result = read(FILE_NAME)
        .or_else(|| read(EARLIER))
        .unwrap_or_default();
    let mut digests = result.earlier;
    let outputs = result.outputs.into_iter();
    digests.extend(outputs.filter_map(|output| output.name.zip(output.sha256)));
    digests
}

/// Puts the result file of an earlier run aside.
pub(crate) fn put_aside(output_dir: &Path) -> Result<(), Failure> {
    let path = output_dir.join(FILE_NAME);
    let move_file = || match std::fs::symlink_metadata(&path)?.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => std::fs::rename(&path, output_dir.join(EARLIER)),
    };
    match move_file() {
        // Problems of the directory itself are reported when the run begins.
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Err(error)
                .with_context(|| format!("failed to move {} of an earlier run", path.display()))
                .usage()
        }
        _ => Ok(()),
    }
}

/// Writes the result file of a finished run.
pub(crate) fn write(outcome: &Outcome, output_dir: &Path) -> anyhow::Result<()> {
    let json = json(outcome, output_dir)?;
    write_atomically(&output_dir.join(FILE_NAME), json.as_bytes())?;
    // It may remain: the result file is preferred.
    let _ = std::fs::remove_file(output_dir.join(EARLIER));
    Ok(())
}

fn json(outcome: &Outcome, output_dir: &Path) -> anyhow::Result<String> {
    let saved = outcome.outputs.saved.iter();
    let outputs = saved.map(|file| SavedOutput {
        source: &file.source,
        path: file.path.display().to_string(),
        name: file.path.strip_prefix(output_dir).unwrap_or(&file.path),
        size_bytes: file.size_bytes,
        media_type: mime_guess::from_path(&file.path)
            .first_or_octet_stream()
            .to_string(),
        sha256: file.sha256.as_deref(),
    });
    let result = ResultFile {
        version: VERSION,
        run: outcome.run.to_string(),
        status: outcome.status(),
        finish: outcome.finish.as_ref(),
        outputs: outputs.collect(),
        refused: &outcome.outputs.refused,
        undelivered: &outcome.undelivered,
        turns: outcome.turns,
        duration_s: outcome.duration.as_secs_f64(),
        ledger: &outcome.ledger,
        dotted: outcome.ledger.stirrup_metadata(),
        earlier: &earlier(output_dir),
    };
    Ok(serde_json::to_string_pretty(&result)? + "\n")
}

/// Writes a file atomically.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let written = || -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        let mut file = tempfile::Builder::new()
            .prefix(".cantle-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    written().with_context(|| format!("failed to write {}", path.display()))
}
