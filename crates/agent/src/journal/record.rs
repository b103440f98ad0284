//! The records of a journal, a line each.

use std::borrow::Cow;
use std::io;

use cantle_core::event::{Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::message::Message;
use cantle_core::sandbox::SandboxHandle;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Identity;
use super::media::{self, MediaFiles};
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
    },
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

/// A record as its line. Media are written beside it before.
pub(super) fn to_line(record: &Record<'_>, media: &MediaFiles) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    if media::may_hold_media(&line) {
        let mut value: Value = serde_json::from_slice(&line)?;
        media.take_out(&mut value)?;
        line = serde_json::to_vec(&value)?;
    }
    line.push(b'\n');
    Ok(line)
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
