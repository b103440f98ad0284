//! `cantle-result.json`: what came of a run, for programs. It is written last and all at once, so its
//! presence says that the run is complete; it is removed before another run begins.

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

/// The version of the format: fields are added without a new one.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Record<'a> {
    version: u32,
    run: String,
    status: RunStatus,
    finish: Option<&'a Finish>,
    outputs: Vec<Output<'a>>,
    refused: Vec<Refused<'a>>,
    turns: u32,
    duration_s: f64,
    ledger: &'a Ledger,
    /// The same accounts in Stirrup's form.
    dotted: Map<String, Value>,
}

#[derive(Serialize)]
struct Output<'a> {
    source: &'a str,
    path: String,
    size_bytes: u64,
}

#[derive(Serialize)]
struct Refused<'a> {
    source: &'a str,
    reason: &'a str,
}

/// Removes what an earlier run left.
pub(crate) fn remove(output_dir: &Path) -> Result<(), Failure> {
    let path = output_dir.join(FILE_NAME);
    match std::fs::remove_file(&path) {
        // What is wrong with the directory itself is found, and said better, when the run begins.
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

/// Writes down a run that finished.
pub(crate) fn write(outcome: &Outcome, output_dir: &Path) -> anyhow::Result<()> {
    let outputs = outcome.outputs.saved.iter().map(|file| Output {
        source: &file.source,
        path: file.path.display().to_string(),
        size_bytes: file.size_bytes,
    });
    let refused = outcome.outputs.refused.iter().map(|refusal| Refused {
        source: &refusal.source,
        reason: &refusal.reason,
    });
    let record = Record {
        version: VERSION,
        run: outcome.run.to_string(),
        status: outcome.status(),
        finish: outcome.finish.as_ref(),
        outputs: outputs.collect(),
        refused: refused.collect(),
        turns: outcome.turns,
        duration_s: outcome.duration.as_secs_f64(),
        ledger: &outcome.ledger,
        dotted: outcome.ledger.dotted(),
    };
    let mut json = serde_json::to_vec_pretty(&record)?;
    json.push(b'\n');
    write_whole(&output_dir.join(FILE_NAME), &json)
}

/// Writes a file that appears whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
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
