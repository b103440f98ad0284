//! Results of tools, written down beside the calls of the model.

use std::sync::{Arc, Mutex, PoisonError};

use cantle_core::content::Content;
use cantle_core::message::ToolCall;
use serde::{Deserialize, Serialize};

use super::{File, Line};

/// What a tool said, as a recording has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResultLine {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) arguments: String,
    pub(crate) content: Content,
    pub(crate) success: bool,
}

/// Where the results of tools go in a recording; from [`Recorder::results`](super::Recorder::results).
///
/// The loop around the model tells it what each call came to: from a hook after tool calls, for
/// instance.
#[derive(Clone, Debug)]
pub struct ResultLog {
    pub(super) file: Arc<Mutex<File>>,
}

impl ResultLog {
    /// Writes down what a call came to.
    ///
    /// A result that can't be written fails the next call of the model, since what is recorded after
    /// it would be of no use.
    pub fn write(&self, call: &ToolCall, content: &Content, success: bool) {
        let line = Line::Result(Box::new(ResultLine {
            id: call.id.clone(),
            tool: call.name.clone(),
            arguments: call.arguments.clone(),
            content: content.clone(),
            success,
        }));
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = serde_json::to_value(line)
            .map_err(Into::into)
            .and_then(|line| file.line(&line));
        if let Err(error) = written {
            file.failed.get_or_insert(error);
        }
    }
}
