//! `cantle-result.json`: the result of a run, for programs.
//!
//! It is written last and atomically, so its presence means that the run is complete; the file of an
//! earlier run is removed before the next run begins.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use cantle::agent::Outcome;
use cantle::core::event::{Finish, RunStatus};
use cantle::core::ledger::Ledger;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::exit::{Failure, FailureExt as _};

pub(crate) const FILE_NAME: &str = "cantle-result.json";

/// Version of the format; adding fields does not change it.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct ResultFile<'a> {
    version: u32,
    run: String,
    status: RunStatus,
    finish: Option<&'a Finish>,
    outputs: Vec<SavedOutput<'a>>,
    refused: Vec<RefusedOutput<'a>>,
    turns: u32,
    duration_s: f64,
    ledger: &'a Ledger,
    /// The ledger in Stirrup's format.
    dotted: Map<String, Value>,
}

#[derive(Serialize)]
struct SavedOutput<'a> {
    source: &'a str,
    path: String,
    size_bytes: u64,
}

#[derive(Serialize)]
struct RefusedOutput<'a> {
    source: &'a str,
    reason: &'a str,
}

/// Removes the result file of an earlier run.
pub(crate) fn remove(output_dir: &Path) -> Result<(), Failure> {
    let path = output_dir.join(FILE_NAME);
    match std::fs::remove_file(&path) {
        // Problems of the directory itself are reported when the run begins.
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Err(error)
                .with_context(|| format!("failed to remove {} of an earlier run", path.display()))
                .usage()
        }
        _ => Ok(()),
    }
}

/// Writes the result file of a finished run.
pub(crate) fn write(outcome: &Outcome, output_dir: &Path) -> anyhow::Result<()> {
    let outputs = outcome.outputs.saved.iter().map(|file| SavedOutput {
        source: &file.source,
        path: file.path.display().to_string(),
        size_bytes: file.size_bytes,
    });
    let refused = outcome.outputs.refused.iter().map(|refusal| RefusedOutput {
        source: &refusal.source,
        reason: &refusal.reason,
    });
    let result = ResultFile {
        version: VERSION,
        run: outcome.run.to_string(),
        status: outcome.status(),
        finish: outcome.finish.as_ref(),
        outputs: outputs.collect(),
        refused: refused.collect(),
        turns: outcome.turns,
        duration_s: outcome.duration.as_secs_f64(),
        ledger: &outcome.ledger,
        dotted: outcome.ledger.stirrup_metadata(),
    };
    let mut json = serde_json::to_vec_pretty(&result)?;
    json.push(b'\n');
    write_atomically(&output_dir.join(FILE_NAME), &json)
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
