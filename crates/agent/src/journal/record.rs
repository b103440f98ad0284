//! The records of a journal, a line each.

use std::borrow::Cow;
use std::io;

use cantle_core::event::{Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::message::Message;
use cantle_core::sandbox::{SandboxHandle, SavedOutputs};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Identity;
use super::media::{self, MediaFiles};
use super::seal::{self, Seal};
use crate::machine::{Fact, Rules};

/// The version of the format. Fields may be added without a new one.
pub(crate) const VERSION: u32 = 1;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(crate) enum Record<'a> {
    /// Always the first.
    Begun(Box<Header>),
    /// Something happened.
    Fact {
        /// What.
        fact: Cow<'a, Fact>,
    },
    /// The run ended; it may be resumed all the same.
    Ended {
        /// How.
        status: RunStatus,
        /// Why it did not finish.
        error: Option<String>,
        /// The call that finished it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish: Option<Finish>,
        /// The files that it handed over.
        #[serde(default, skip_serializing_if = "Files::is_empty")]
        files: Files,
    },
}

/// Files that a run handed over, by the names that it gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Files {
    pub(crate) saved: Vec<String>,
    /// Those that were not, each with the reason.
    pub(crate) refused: Vec<String>,
}

impl Files {
    fn is_empty(&self) -> bool {
        self.saved.is_empty() && self.refused.is_empty()
    }
}

impl From<&SavedOutputs> for Files {
    fn from(outputs: &SavedOutputs) -> Self {
        let saved = outputs.saved.iter().map(|file| file.source.clone());
        let refused = outputs.refused.iter();
        let refused = refused.map(|refusal| format!("{}: {}", refusal.source, refusal.reason));
        Self {
            saved: saved.collect(),
            refused: refused.collect(),
        }
    }
}

/// What a run began with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) run: RunId,
    /// When, in seconds since the Unix epoch.
    pub(crate) time: f64,
    pub(crate) identity: Identity,
    /// What whoever began the run wants to find again.
    pub(crate) note: Value,
    pub(crate) rules: Rules,
    /// The task, as text.
    pub(crate) task: String,
    /// Input files, as paths in the sandbox.
    pub(crate) input_files: Vec<String>,
    /// The sandbox that outlives the process.
    pub(crate) sandbox: Option<SandboxHandle>,
    /// The conversation that the run began with: instructions, history, task.
    pub(crate) messages: Vec<Message>,
}

/// Most lines are shorter.
const USUAL_BYTES: usize = 512;

/// A record on its way to the journal.
#[derive(Debug)]
pub(super) struct Line {
    json: Vec<u8>,
    may_hold_media: bool,
}

impl Line {
    /// Writes a record as JSON.
    pub(super) fn new(record: &Record<'_>) -> io::Result<Self> {
        let mut json = Vec::with_capacity(USUAL_BYTES);
        serde_json::to_writer(&mut json, record)?;
        Ok(Self {
            may_hold_media: media::may_hold_media(&json),
            json,
        })
    }

    /// Bytes that there are to write, with those of media.
    pub(super) fn len(&self) -> usize {
        self.json.len()
    }

    /// The line as it stands in the journal. Media are written beside that before. Blocks.
    pub(super) fn finish(self, media: &MediaFiles, at: Seal) -> io::Result<Vec<u8>> {
        let mut json = self.json;
        if self.may_hold_media {
            let mut value: Value = serde_json::from_slice(&json)?;
            media.take_out(&mut value)?;
            json = serde_json::to_vec(&value)?;
        }
        seal::seal(&mut json, at);
        json.push(b'\n');
        Ok(json)
    }
}

/// A line as the record it is.
pub(super) fn from_line(line: &[u8], media: &MediaFiles) -> io::Result<Record<'static>> {
    if !media::may_hold_media(line) {
        return Ok(serde_json::from_slice(line)?);
    }
    let mut value: Value = serde_json::from_slice(line)?;
    media.put_back(&mut value)?;
    Ok(serde_json::from_value(value)?)
}
