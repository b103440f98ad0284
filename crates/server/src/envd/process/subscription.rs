//! The response stream of one subscriber of a command: start, output, end.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::envd::commands::command::ProcessEvent;
use crate::envd::commands::messages;
use crate::envd::rpc::{self, CallTimes, StreamItem, StreamItems};

pub(super) struct Subscription {
    stage: SubscriptionStage,
    events: mpsc::Receiver<ProcessEvent>,
    /// Silence after which a keep-alive message is sent.
    keepalive: Duration,
    deadline: Option<Instant>,
    /// The starter gets a deadline error when the time limit expires; other subscribers see a killed process.
    is_starter: bool,
}

enum SubscriptionStage {
    Starting(Bytes),
    Open,
    Ending,
    Ended,
}

impl Subscription {
    pub(super) fn new(
        pid: u32,
        events: mpsc::Receiver<ProcessEvent>,
        times: CallTimes,
        is_starter: bool,
    ) -> Self {
        Self {
            stage: SubscriptionStage::Starting(messages::started(pid)),
            events,
            keepalive: times.keepalive,
            deadline: times.limit.map(|limit| Instant::now() + limit),
            is_starter,
        }
    }

    pub(super) fn into_items(self) -> StreamItems {
        Box::pin(stream::unfold(self, Self::next))
    }

    async fn next(mut self) -> Option<(StreamItem, Self)> {
        let (item, stage) = match std::mem::replace(&mut self.stage, SubscriptionStage::Ended) {
            SubscriptionStage::Starting(event) => {
                (StreamItem::Message(event), SubscriptionStage::Open)
            }
            SubscriptionStage::Open => self.next_event().await,
            SubscriptionStage::Ending => (StreamItem::End(Ok(())), SubscriptionStage::Ended),
            SubscriptionStage::Ended => return None,
        };
        self.stage = stage;
        Some((item, self))
    }

    async fn next_event(&mut self) -> (StreamItem, SubscriptionStage) {
        tokio::select! {
            biased;
            event = self.events.recv() => match event {
                Some(ProcessEvent::Output(event)) => (StreamItem::Message(event), SubscriptionStage::Open),
                Some(ProcessEvent::Ended { timed_out: true, .. }) if self.is_starter => {
                    (StreamItem::End(Err(rpc::deadline_exceeded())), SubscriptionStage::Ended)
                }
                Some(ProcessEvent::Ended { event, .. }) => (StreamItem::Message(event), SubscriptionStage::Ending),
                // The subscriber was too slow, or the sandbox has ended.
                None => (StreamItem::Abort, SubscriptionStage::Ended),
            },
            () = reach(self.deadline) => (StreamItem::End(Err(rpc::deadline_exceeded())), SubscriptionStage::Ended),
            () = sleep(self.keepalive) => {
                (StreamItem::Message(messages::keepalive()), SubscriptionStage::Open)
            }
        }
    }
}

async fn reach(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
