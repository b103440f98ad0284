//! Hooks that record and replay the results of tools, beside the model's calls.
//!
//! A replayed run executes its tools again, so that their files exist, but the model receives the
//! recorded results and therefore makes the same calls, whatever time or process id a command prints
//! now. Results that differ are reported at the end. Calls that were refused when recorded are refused
//! with the same reason.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use cantle::agent::{AfterTool, BeforeTool, Hooks};
use cantle::clients::record::ResultLog;
use cantle::clients::replay::{RecordedResult, ReplayClient};
use cantle::core::content::Content;
use cantle::core::message::ToolCall;
use cantle::core::tool::{Answer, AskUser, Question, ToolError};
use parking_lot::Mutex;

/// Prefix of the result of a refused call; the reason follows.
const REFUSED_PREFIX: &str = "Not run: ";

/// Hooks that record tool results.
#[derive(Debug)]
pub(crate) struct RecordHooks(pub(crate) ResultLog);

#[async_trait]
impl Hooks for RecordHooks {
    async fn after_tool(&self, call: &ToolCall, result: &Content, success: bool) -> AfterTool {
        self.0.write(call, result, success);
        AfterTool::Keep
    }
}

/// Hooks that replace tool results by recorded ones.
#[derive(Clone, Debug)]
pub(crate) struct ReplayHooks {
    recording: ReplayClient,
    progress: Arc<Mutex<ReplayProgress>>,
}

#[derive(Debug, Default)]
struct ReplayProgress {
    /// Recorded results of calls that are running, by call id.
    running: HashMap<String, RecordedResult>,
    results: usize,
    differences: Vec<String>,
}

impl ReplayHooks {
    pub(crate) fn new(recording: ReplayClient) -> Self {
        Self {
            recording,
            progress: Arc::default(),
        }
    }

    /// Returns whether the recorded model had a tool of this name.
    pub(crate) fn was_offered(&self, tool: &str) -> bool {
        self.recording.has_tool(tool)
    }

    /// Returns lines about results that differed from the recorded ones.
    pub(crate) fn report(&self, verbose: bool) -> Vec<String> {
        let progress = self.progress.lock();
        if progress.differences.is_empty() {
            return Vec::new();
        }
        let (differ, all) = (progress.differences.len(), progress.results);
        let more = if verbose { "" } else { " (-v shows how)" };
        let summary = format!(
            "{differ} of {all} tool results differed from the recorded ones{more}; the model received the \
             recorded ones."
        );
        let details = progress.differences.iter().filter(|_| verbose).cloned();
        details.chain([summary]).collect()
    }
}

#[async_trait]
impl Hooks for ReplayHooks {
    async fn before_tool(&self, call: &ToolCall) -> BeforeTool {
        let Some(recorded) = self.recording.result_of(call) else {
            return BeforeTool::Call;
        };
        if !recorded.was_executed
            && let Some(reason) = recorded.content.text().strip_prefix(REFUSED_PREFIX)
        {
            let reason = reason.to_owned();
            return BeforeTool::Refuse { reason };
        }
        self.progress
            .lock()
            .running
            .insert(call.id.clone(), recorded);
        BeforeTool::Call
    }

    async fn after_tool(&self, call: &ToolCall, result: &Content, success: bool) -> AfterTool {
        let mut progress = self.progress.lock();
        progress.results += 1;
        let Some(recorded) = progress.running.remove(&call.id) else {
            return AfterTool::Keep;
        };
        if let Some(difference) = recorded.difference(result, success) {
            let tool = &call.name;
            let difference = format!("The result of {tool} ({}) differs at {difference}", call.id);
            progress.differences.push(difference);
        }
        AfterTool::Answer {
            content: recorded.content,
            success: recorded.success,
        }
    }
}

/// Stands for the user of a recorded run, whose answers are in the recording.
#[derive(Debug)]
pub(crate) struct RecordedUser;

#[async_trait]
impl AskUser for RecordedUser {
    fn is_available(&self) -> bool {
        true
    }

    async fn ask(&self, _: Question) -> Result<Answer, ToolError> {
        Err(ToolError::failed("the recording has no answer to this"))
    }
}
