//! What a recording has besides the model's calls: the results of tools.
//!
//! Where a recording is made, they are written down. Where one is played, tools are run all the same,
//! so that the files they make come about; but the model is told what was recorded, and so is asked
//! the same, whatever time and process id a command prints now. What differs is kept to be told at the
//! end. Calls that were refused when it was recorded are refused with the same words.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cantle::agent::{AfterTool, BeforeTool, Hooks};
use cantle::clients::record::ResultLog;
use cantle::clients::replay::{RecordedResult, ReplayClient};
use cantle::core::content::Content;
use cantle::core::message::ToolCall;
use cantle::core::tool::{Answer, AskUser, Question, ToolError};

/// What stands before the reason in the result of a call that was refused.
const REFUSED: &str = "Not run: ";

/// Writes down what tools say.
#[derive(Debug)]
pub(crate) struct Recording(pub(crate) ResultLog);

#[async_trait]
impl Hooks for Recording {
    async fn after_tool(&self, call: &ToolCall, result: &Content, success: bool) -> AfterTool {
        self.0.write(call, result, success);
        AfterTool::Keep
    }
}

/// Tells the model what tools said when it was recorded.
#[derive(Clone, Debug)]
pub(crate) struct Playing {
    recording: ReplayClient,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// What calls that are running came to, by call.
    running: HashMap<String, RecordedResult>,
    results: usize,
    differences: Vec<String>,
}

impl Playing {
    pub(crate) fn new(recording: ReplayClient) -> Self {
        Self {
            recording,
            seen: Arc::default(),
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the model could call a tool of this name.
    pub(crate) fn was_offered(&self, tool: &str) -> bool {
        self.recording.was_offered(tool)
    }

    /// What to say at the end of results that were others than the recorded ones.
    pub(crate) fn remarks(&self, verbose: bool) -> Vec<String> {
        let seen = self.seen();
        if seen.differences.is_empty() {
            return Vec::new();
        }
        let (differ, all) = (seen.differences.len(), seen.results);
        let more = if verbose { "" } else { " (-v shows how)" };
        let summary = format!(
            "Of {all} tool results, {differ} differed from the recorded ones{more}; the model was told \
             the recorded ones."
        );
        let details = seen.differences.iter().filter(|_| verbose).cloned();
        details.chain([summary]).collect()
    }
}

#[async_trait]
impl Hooks for Playing {
    async fn before_tool(&self, call: &ToolCall) -> BeforeTool {
        let Some(recorded) = self.recording.result_of(call) else {
            return BeforeTool::Call;
        };
        if !recorded.ran
            && let Some(reason) = recorded.content.text().strip_prefix(REFUSED)
        {
            let reason = reason.to_owned();
            return BeforeTool::Refuse { reason };
        }
        self.seen().running.insert(call.id.clone(), recorded);
        BeforeTool::Call
    }

    async fn after_tool(&self, call: &ToolCall, result: &Content, success: bool) -> AfterTool {
        let mut seen = self.seen();
        seen.results += 1;
        let Some(recorded) = seen.running.remove(&call.id) else {
            return AfterTool::Keep;
        };
        if let Some(difference) = recorded.difference(result, success) {
            let tool = &call.name;
            let difference = format!("The result of {tool} ({}) differs at {difference}", call.id);
            seen.differences.push(difference);
        }
        AfterTool::Answer {
            content: recorded.content,
            success: recorded.success,
        }
    }
}

/// Whoever was asked when it was recorded. The answers are in the recording.
#[derive(Debug)]
pub(crate) struct RecordedUser;

#[async_trait]
impl AskUser for RecordedUser {
    fn is_available(&self) -> bool {
        true
    }

    async fn ask(&self, _: Question) -> Result<Answer, ToolError> {
        Err(ToolError::failed(
            "nobody is asked while a recording is played",
        ))
    }
}
