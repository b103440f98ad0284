//! The tool of a sub-agent whose calls wait for its result.

use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::metadata::Metadata;
use cantle_core::tool::{ToolContext, ToolError, ToolOutput};
use serde::Deserialize;
use serde_json::Value;

use super::options::SubAgent;
use super::work::{Begun, Params, find_begun};
use crate::scope::{SubAgentCall, SubAgentTool};

/// A sub-agent whose calls wait.
pub(super) struct CallTool(pub(super) SubAgent);

#[async_trait]
impl SubAgentTool for CallTool {
    async fn call(
        &self,
        arguments: Value,
        cx: ToolContext,
        call: Arc<SubAgentCall>,
    ) -> Result<ToolOutput, ToolError> {
        let params = parse::<Params>(arguments)?;
        if let Some(refusal) = self.0.refusal(&call, &cx) {
            return Ok(ToolOutput::failure(refusal.text));
        }
        let work = match find_begun(&call).await? {
            Begun::Nothing => self.0.begin(params, &call, &cx, Value::Null).await,
            Begun::Unfinished(run, _) => self.0.resume(run, &call, &cx).await,
            Begun::Finished(content) => Err(self.0.finished(*content).await),
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
        let mut output = ToolOutput::text(result.rendered.text).with_metadata(Metadata::uses(1));
        output.success = result.rendered.success;
        Ok(output)
    }
}

/// Deserializes parsed arguments.
pub(super) fn parse<P: for<'de> Deserialize<'de>>(arguments: Value) -> Result<P, ToolError> {
    P::deserialize(arguments).map_err(|error| ToolError::failed(error.to_string()))
}
