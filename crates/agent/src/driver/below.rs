//! What calls get, sub-agents among them, and what becomes of those that work in the background.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantle_core::event::EventKind;
use cantle_core::tool::{Progress, ToolContext};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::error::RunError;
use crate::hub::Hub;
use crate::machine::Machine;
use crate::sub_agent::Caller;

/// How long calls may take to end by themselves after they were told to.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// The part of that which a sub-agent's calls have: the rest is for what it does at its end.
const GRACE_BELOW: f64 = 0.6;

impl Driver {
    /// What a call gets.
    pub(super) fn context(
        &self,
        call_id: &str,
        token: &CancellationToken,
    ) -> (ToolContext, Arc<Caller>) {
        let mut cx = ToolContext::new(self.run, call_id);
        cx.depth = self.depth;
        cx.cancellation = token.child_token();
        cx.sandbox.clone_from(&self.sandbox);
        cx.user = Arc::clone(&self.user);
        cx.progress = Arc::new(CallProgress {
            hub: Arc::clone(&self.hub),
            call_id: call_id.to_owned(),
        });
        let caller = Arc::new(Caller {
            run: self.run,
            depth: self.depth,
            hub: Arc::clone(&self.hub),
            account: Arc::clone(&self.account),
            call_id: call_id.to_owned(),
            kept_in: self.store.clone(),
            skills: self.skills.clone(),
            ending: self.ending.clone(),
            questions: self.gate.asked.questions(),
            background: Arc::downgrade(&self.background),
            progress: Arc::default(),
            report: Mutex::default(),
        });
        cx.caller = Some(Arc::clone(&caller) as Arc<dyn Any + Send + Sync>);
        (cx, caller)
    }

    /// Lets the sub-agents go on that worked in the background when an earlier process ended. What
    /// comes of that they say as at any other time.
    pub(super) async fn take_up(&mut self) {
        let calls = std::mem::take(&mut self.left).into_iter();
        let calls = calls.filter_map(|left| {
            let tool = self.tools.get(&left.tool)?.clone();
            let (cx, _) = self.context(&left.call_id, &self.ending.cancellation);
            // The call that began it: made again, it goes on with what it finds.
            Some(async move { tool.call(json!({"action": "start"}), cx).await })
        });
        let taken_up = futures_util::future::join_all(calls);
        tokio::select! {
            taken_up = taken_up => {
                for error in taken_up.into_iter().filter_map(Result::err) {
                    let message = format!("A sub-agent in the background can't go on: {error}");
                    self.hub.emit(EventKind::Warning { message });
                }
            }
            () = self.ending.cancellation.cancelled() => {}
        }
    }

    /// Ends what works in the background, and accounts for it.
    pub(super) async fn end_background(
        &mut self,
        machine: &mut Machine,
        finished: bool,
    ) -> Result<(), RunError> {
        let leave_open = !finished && self.store.is_some() && !self.ending.is_for_good();
        self.background.end(leave_open, self.grace()).await;
        self.take_said(machine)
    }

    /// How long calls may take to end by themselves. A sub-agent's end before its caller's do.
    pub(super) fn grace(&self) -> Duration {
        let part = GRACE_BELOW.powi(i32::try_from(self.depth).unwrap_or(i32::MAX));
        CANCEL_GRACE.mul_f64(part)
    }
}

#[derive(Debug)]
struct CallProgress {
    hub: Arc<Hub>,
    call_id: String,
}

impl Progress for CallProgress {
    fn output(&self, text: &str) {
        if self.hub.is_watched() {
            let call_id = self.call_id.clone();
            self.hub.emit(EventKind::ToolOutputDelta {
                call_id,
                text: text.to_owned(),
            });
        }
    }
}
