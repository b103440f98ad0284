//! The response stream of one subscriber of a command: start, output, end.

use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc;

use crate::envd::commands::command::ProcessEvent;
use crate::envd::commands::messages;
use crate::envd::rpc::{self, CallTimes, StreamItem, StreamItems};

/// Streams the events of a command. The starter gets a deadline error when the command's time limit expires; other
/// subscribers see a killed process.
pub(super) fn subscription(
    pid: u32,
    events: mpsc::Receiver<ProcessEvent>,
    times: CallTimes,
    is_starter: bool,
) -> StreamItems {
    let items = stream::unfold(Some(events), move |events| async move {
        let mut events = events?;
        let (items, events) = match events.recv().await {
            Some(ProcessEvent::Output(event)) => (vec![StreamItem::Message(event)], Some(events)),
            Some(ProcessEvent::Ended { timed_out, .. }) if timed_out && is_starter => {
                (vec![StreamItem::End(Err(rpc::deadline_exceeded()))], None)
            }
            Some(ProcessEvent::Ended { event, .. }) => {
                let end = [StreamItem::Message(event), StreamItem::End(Ok(()))];
                (Vec::from(end), None)
            }
            // The subscriber was too slow, or the sandbox has ended.
            None => (vec![StreamItem::Abort], None),
        };
        Some((stream::iter(items), events))
    });
    let (start, keepalive) = (messages::started(pid), messages::keepalive());
    rpc::timed(start, keepalive, times, items.flatten())
}
