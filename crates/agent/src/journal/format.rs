//! The entries of a journal, one per line.

use std::borrow::Cow;
use std::io;

use cantle_core::event::{EventKind, Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::message::Message;
use cantle_core::sandbox::{RefusedFile, SandboxHandle, SandboxInfo, SavedOutputs};
use cantle_core::tool::ToolSpec;
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::identity::Identity;
use super::media::{self, MediaFiles};
use super::seal::{self, Seal};
use crate::rules::{Fact, Rules, ToolTraits};

/// The version of the format. Fields may be added without a new one.
pub(crate) const VERSION: u32 = 1;

/// Initial capacity of a line; most are shorter.
const LINE_CAPACITY: usize = 512;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(crate) enum Entry<'a> {
    /// The first line.
    #[serde(rename = "begun")]
    Header(Box<Header>),
    Fact {
        fact: Cow<'a, Fact>,
    },
    /// The run ended. It may be resumed all the same.
    #[serde(rename = "ended")]
    End(End),
}

/// The end of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) status: RunStatus,
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finish: Option<Finish>,
    #[serde(default, skip_serializing_if = "DeliveredFiles::is_empty")]
    pub(crate) files: DeliveredFiles,
}

/// The files that a finish call named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeliveredFiles {
    #[serde(deserialize_with = "saved_files")]
    pub(crate) saved: Vec<DeliveredFile>,
    #[serde(deserialize_with = "refused_files")]
    pub(crate) refused: Vec<RefusedFile>,
}

impl DeliveredFiles {
    fn is_empty(&self) -> bool {
        self.saved.is_empty() && self.refused.is_empty()
    }

    /// The events of the files.
    pub(crate) fn events(self) -> impl Iterator<Item = EventKind> {
        let saved = self.saved.into_iter().map(|file| EventKind::OutputSaved {
            source: file.source,
            path: file.path,
            size_bytes: file.size_bytes,
        });
        let refused = self.refused.into_iter();
        saved.chain(refused.map(|file| EventKind::OutputRefused {
            source: file.source,
            reason: file.reason,
        }))
    }
}

impl From<&SavedOutputs> for DeliveredFiles {
    fn from(outputs: &SavedOutputs) -> Self {
        let saved = outputs.saved.iter().map(|file| DeliveredFile {
            source: file.source.clone(),
            path: file.path.display().to_string(),
            size_bytes: file.size_bytes,
        });
        Self {
            saved: saved.collect(),
            refused: outputs.refused.clone(),
        }
    }
}

/// A file that was saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeliveredFile {
    /// The path that the model named.
    pub(crate) source: String,
    /// The path on the host.
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
}

/// Reads saved files. Version 0.1.0 wrote each as `SOURCE`.
fn saved_files<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<DeliveredFile>, D::Error> {
    files(from, |text| DeliveredFile {
        source: text.to_owned(),
        path: String::new(),
        size_bytes: 0,
    })
}

/// Reads refused files. Earlier versions wrote each as `SOURCE: REASON`.
fn refused_files<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RefusedFile>, D::Error> {
    files(from, |text| {
        let (source, reason) = text.split_once(": ").unwrap_or((text, ""));
        RefusedFile::new(source, reason)
    })
}

/// Reads files, of which earlier versions wrote a text.
fn files<'de, D: Deserializer<'de>, F: Deserialize<'de>>(
    from: D,
    parse: impl Fn(&str) -> F,
) -> Result<Vec<F>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Record<F> {
        Text(String),
        File(F),
    }

    let records = Vec::<Record<F>>::deserialize(from)?.into_iter();
    let files = records.map(|record| match record {
        Record::Text(text) => parse(&text),
        Record::File(file) => file,
    });
    Ok(files.collect())
}

/// The state in which a run began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) run: RunId,
    /// Seconds since the Unix epoch.
    pub(crate) time: f64,
    pub(crate) identity: Identity,
    /// Data of the caller.
    pub(crate) note: Value,
    pub(crate) rules: Rules,
    /// The task, as text.
    pub(crate) task: String,
    /// Paths of the input files in the sandbox.
    pub(crate) input_files: Vec<String>,
    /// Paths of the skills' files in the sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) skill_files: Vec<String>,
    /// The sandbox, if it outlives the process.
    pub(crate) sandbox: Option<SandboxHandle>,
    /// The tools; empty in journals of version 0.1.0.
    #[serde(default)]
    pub(crate) tools: IndexMap<String, ToolTraits>,
    /// The sandbox as it is described to readers of events.
    #[serde(default)]
    pub(crate) sandbox_info: Option<SandboxInfo>,
    /// Warnings at the start.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    /// The conversation: instructions, history, task.
    pub(crate) messages: Vec<Message>,
}

impl Header {
    /// The tools as the model sees them; none in journals of version 0.1.0.
    pub(crate) fn tool_specs(&self) -> Vec<ToolSpec> {
        let names = self.tools.keys();
        names
            .filter_map(|name| self.identity.recorded_spec(name))
            .collect()
    }

    /// The properties of the tools. Those of version 0.1.0 are known as far as needed to compute a ledger.
    pub(crate) fn tool_traits(&self) -> IndexMap<String, ToolTraits> {
        match self.tools.is_empty() {
            true => self.identity.tool_traits(),
            false => self.tools.clone(),
        }
    }
}

/// A background sub-agent, recorded in the note of its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackgroundAgentRecord {
    /// The id by which the model refers to it.
    pub(crate) id: String,
    /// Number of background sub-agents that the run started before.
    pub(crate) number: u64,
    /// The tool that started it.
    pub(crate) tool: String,
    /// The call that started it.
    pub(crate) call_id: String,
}

impl BackgroundAgentRecord {
    pub(crate) fn to_note(&self) -> Value {
        json!({ "background": self })
    }

    pub(crate) fn from_note(note: &Value) -> Option<Self> {
        Self::deserialize(note.get("background")?).ok()
    }
}

/// An entry that is not written yet.
#[derive(Debug)]
pub(super) struct Line {
    json: Vec<u8>,
    may_hold_media: bool,
}

impl Line {
    /// Serializes an entry.
    pub(super) fn new(entry: &Entry<'_>) -> io::Result<Self> {
        let mut json = Vec::with_capacity(LINE_CAPACITY);
        serde_json::to_writer(&mut json, entry)?;
        Ok(Self {
            may_hold_media: media::may_hold_media(&json),
            json,
        })
    }

    /// Size in bytes, including media.
    pub(super) fn len(&self) -> usize {
        self.json.len()
    }

    /// Returns the line as it is written. Writes its media, and therefore blocks.
    pub(super) fn finish(self, media: &MediaFiles, seal: Seal) -> io::Result<Vec<u8>> {
        let mut json = self.json;
        if self.may_hold_media {
            let mut value: Value = serde_json::from_slice(&json)?;
            media.extract(&mut value)?;
            json = serde_json::to_vec(&value)?;
        }
        seal::append(&mut json, seal);
        json.push(b'\n');
        Ok(json)
    }
}

/// Parses a line.
pub(super) fn parse(line: &[u8], media: &MediaFiles) -> io::Result<Entry<'static>> {
    if !media::may_hold_media(line) {
        return Ok(serde_json::from_slice(line)?);
    }
    let mut value: Value = serde_json::from_slice(line)?;
    media.restore(&mut value)?;
    Ok(serde_json::from_value(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_files_are_read_in_both_forms() {
        let refused = |source: &str| RefusedFile::new(source, "it is gone");
        let record = json!({"source": "b: c.txt", "reason": "it is gone"});
        let files = json!({"saved": [], "refused": ["a.txt: it is gone", record]});
        let files: DeliveredFiles = serde_json::from_value(files).unwrap();
        assert_eq!(files.refused, [refused("a.txt"), refused("b: c.txt")]);
        assert_eq!(json!(files)["refused"][1], record);
    }
}
