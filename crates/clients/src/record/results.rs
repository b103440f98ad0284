//! Recorded tool results.

use std::sync::Arc;

use cantle_core::content::Content;
use cantle_core::message::ToolCall;
use parking_lot::Mutex;

use super::RecordingFile;
use crate::recording::{RecordingLine, ResultLine};

/// Adds tool results to a recording; see [`Recorder::results`](super::Recorder::results).
///
/// The loop around the model calls it for each result, for instance from a hook.
#[derive(Clone, Debug)]
pub struct ResultLog {
    pub(super) file: Arc<Mutex<RecordingFile>>,
}

impl ResultLog {
    /// Records the result of a tool call.
    ///
    /// If this fails, the next model call fails with the error, because the recording is incomplete.
    pub fn write(&self, call: &ToolCall, content: &Content, success: bool) {
        let line = RecordingLine::Result(Box::new(ResultLine {
            id: call.id.clone(),
            tool: call.name.clone(),
            arguments: call.arguments.clone(),
            content: content.clone(),
            success,
        }));
        let mut file = self.file.lock();
        if let Err(error) = file.write_line(&line) {
            file.result_error.get_or_insert(error);
        }
    }
}
