//! Calls of a sub-agent that wait for its result.

use std::sync::Arc;

use cantle_core::metadata::Metadata;
use cantle_core::tool::{ToolContext, ToolError, ToolOutput};
use serde_json::Value;

use super::options::SubAgent;
use super::work::{EarlierRun, Params, find_earlier_run};
use crate::scope::SubAgentCall;

impl SubAgent {
    /// Runs the sub-agent, and waits for its result.
    pub(super) async fn call_and_wait(
        &self,
        params: Params,
        cx: &ToolContext,
        call: &Arc<SubAgentCall>,
    ) -> Result<ToolOutput, ToolError> {
        if let Some(refusal) = self.refusal(call, cx) {
            return Ok(refusal);
        }
        let work = match find_earlier_run(call).await? {
            EarlierRun::Nothing => self.begin(params, call, cx, Value::Null).await,
            EarlierRun::Unfinished(run, _) => self.resume(run, call, cx).await,
            EarlierRun::Ended(content) => Err(self.ended(*content, call).await),
        };
        let result = match work {
            Ok(work) => {
                let suspends = || call.scope.suspends_calls();
                work.run(&cx.cancellation, suspends, None).await
            }
            Err(result) => result,
        };
        if let Some(report) = result.report {
            call.set_report(report);
        }
        let mut output = ToolOutput::text(result.text).with_metadata(Metadata::uses(1));
        output.success = result.success;
        Ok(output)
    }
}
