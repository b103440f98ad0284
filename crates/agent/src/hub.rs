//! The events of a run on their way to its handle.
//!
//! Durable events wait in a queue until they are read; a delta is joined to the one before it. Beyond a
//! limit the oldest text of a delta is dropped, then the oldest delta, so that a slow reader uses bounded
//! memory and never delays the run.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use cantle_core::event::{Event, EventKind};
use cantle_core::ids::RunId;
use futures_core::Stream;
use parking_lot::Mutex;

/// Maximum size of a waiting delta.
const MAX_DELTA_BYTES: usize = 64 * 1024;

/// Maximum number of waiting deltas.
const MAX_DELTAS: usize = 64;

/// Numbers the events of one run, and queues them for its handle.
#[derive(Debug)]
pub(crate) struct Hub {
    run: RunId,
    /// The run that called this one as a sub-agent.
    parent: Option<RunId>,
    depth: u32,
    queue: Arc<Mutex<EventQueue>>,
}

/// The events of a run from its start. Ends after [`EventKind::RunFinished`].
#[derive(Debug)]
pub(crate) struct Events(Arc<Mutex<EventQueue>>);

#[derive(Debug, Default)]
struct EventQueue {
    /// Durable events, with their positions among all events.
    durable: VecDeque<(u64, Event)>,
    /// Deltas, with their positions among all events.
    deltas: VecDeque<(u64, Event)>,
    /// The position of the next event.
    next_position: u64,
    next_number: u64,
    closed: bool,
    waker: Option<Waker>,
}

impl Hub {
    /// A hub for a run, and the stream of its events.
    pub(crate) fn new(run: RunId, parent: Option<RunId>, depth: u32) -> (Self, Events) {
        let queue: Arc<Mutex<EventQueue>> = Arc::default();
        let events = Events(Arc::clone(&queue));
        let hub = Self {
            run,
            parent,
            depth,
            queue,
        };
        (hub, events)
    }

    /// Whether the stream still exists. Without it, deltas need not be created.
    pub(crate) fn is_watched(&self) -> bool {
        Arc::strong_count(&self.queue) > 1
    }

    /// Emits an event, which is created only if the stream still exists.
    pub(crate) fn emit_with(&self, kind: impl FnOnce() -> EventKind) {
        if self.is_watched() {
            self.emit(kind());
        }
    }

    /// Emits an event.
    pub(crate) fn emit(&self, mut kind: EventKind) {
        let mut queue = self.queue.lock();
        let number = (!kind.is_delta()).then_some(queue.next_number);
        queue.next_number += u64::from(number.is_some());
        if let EventKind::TextDelta { text }
        | EventKind::ReasoningDelta { text }
        | EventKind::ToolOutputDelta { text, .. } = &mut kind
        {
            make_room(text, 0);
            text.shrink_to(MAX_DELTA_BYTES);
        }
        let mut event = Event::new(number, self.run, SystemTime::now(), kind);
        event.parent = self.parent;
        event.depth = self.depth;
        self.push(&mut queue, event);
    }

    /// Forwards an event of a sub-agent's run.
    pub(crate) fn forward(&self, event: Event) {
        self.push(&mut self.queue.lock(), event);
    }

    fn push(&self, queue: &mut EventQueue, event: Event) {
        if !self.is_watched() {
            (queue.durable, queue.deltas) = (VecDeque::new(), VecDeque::new());
        } else if !queue.closed {
            queue.push(event);
        }
    }

    /// Ends the stream after the waiting events.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.wake();
    }
}

impl EventQueue {
    fn push(&mut self, event: Event) {
        let position = self.next_position;
        if event.kind.is_delta() {
            let last = self.durable.back().map(|(position, _)| *position);
            if let Some((_, delta)) = self.deltas.back_mut().filter(|it| Some(it.0) > last)
                && join(delta, &event)
            {
                return self.wake();
            }
            if self.deltas.len() >= MAX_DELTAS {
                self.deltas.pop_front();
            }
            self.deltas.push_back((position, event));
        } else {
            self.durable.push_back((position, event));
        }
        self.next_position += 1;
        self.wake();
    }

    /// Removes the first event.
    fn pop(&mut self) -> Option<Event> {
        let position = |events: &VecDeque<(u64, Event)>| events.front().map_or(u64::MAX, |it| it.0);
        let events = if position(&self.deltas) < position(&self.durable) {
            &mut self.deltas
        } else {
            &mut self.durable
        };
        events.pop_front().map(|(_, event)| event)
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Joins a delta to the one before it, if both belong to the same text.
fn join(last: &mut Event, next: &Event) -> bool {
    if last.run != next.run {
        return false;
    }
    let (text, more) = match (&mut last.kind, &next.kind) {
        (EventKind::TextDelta { text }, EventKind::TextDelta { text: more })
        | (EventKind::ReasoningDelta { text }, EventKind::ReasoningDelta { text: more }) => {
            (text, more)
        }
        (
            EventKind::ToolOutputDelta { call_id, text },
            EventKind::ToolOutputDelta {
                call_id: next_id,
                text: more,
            },
        ) if call_id == next_id => (text, more),
        _ => return false,
    };
    make_room(text, more.len());
    text.push_str(more);
    true
}

/// Drops the oldest text of a delta, so that `more` bytes fit behind it.
fn make_room(text: &mut String, more: usize) {
    let end = text.len();
    let excess = (end + more).saturating_sub(MAX_DELTA_BYTES);
    let cut = (excess..=end).find(|at| text.is_char_boundary(*at));
    text.drain(..cut.unwrap_or(end));
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut queue = self.0.lock();
        match queue.pop() {
            Some(event) => Poll::Ready(Some(event)),
            None if queue.closed => Poll::Ready(None),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    fn delta(call_id: &str, text: String) -> EventKind {
        let call_id = call_id.to_owned();
        EventKind::ToolOutputDelta { call_id, text }
    }

    /// Reads the waiting texts.
    fn waiting(events: &mut Events) -> Vec<String> {
        let next = || events.next().now_or_never().flatten();
        let texts = std::iter::from_fn(next).map(|event| match event.kind {
            EventKind::ToolOutputDelta { text, .. } => text,
            other => panic!("{other:?}"),
        });
        texts.collect()
    }

    #[test]
    fn a_delta_keeps_the_end_of_its_text_and_bounded_memory() {
        let (hub, mut events) = Hub::new(RunId::new(), None, 0);
        hub.emit(delta("a", "é".repeat(MAX_DELTA_BYTES) + "1"));
        hub.emit(delta("b", "x".repeat(MAX_DELTA_BYTES)));
        hub.emit(delta("b", "y".repeat(MAX_DELTA_BYTES - 2)));
        hub.emit(delta("b", "2".to_owned()));
        let texts = waiting(&mut events);
        let expected = [
            "é".repeat(MAX_DELTA_BYTES / 2 - 1) + "1",
            format!("x{}2", "y".repeat(MAX_DELTA_BYTES - 2)),
        ];
        assert!(texts == expected, "{:?}", texts.iter().map(String::len));
        let memory = texts.iter().map(String::capacity);
        assert!(memory.max() <= Some(2 * MAX_DELTA_BYTES));
    }

    #[test]
    fn the_oldest_of_many_deltas_are_dropped() {
        let (hub, mut events) = Hub::new(RunId::new(), None, 0);
        for number in 0..=MAX_DELTAS {
            let call = if number % 2 == 0 { "a" } else { "b" };
            hub.emit(delta(call, number.to_string()));
        }
        let numbers = 1..=MAX_DELTAS;
        let expected: Vec<_> = numbers.map(|number| number.to_string()).collect();
        assert_eq!(waiting(&mut events), expected);
    }

    #[test]
    fn durable_events_and_deltas_are_read_in_order() {
        let (hub, mut events) = Hub::new(RunId::new(), None, 0);
        let warning = |number: usize| EventKind::Warning {
            message: number.to_string(),
        };
        for number in 0..=MAX_DELTAS {
            hub.emit(warning(number));
            hub.emit(delta("a", "1".to_owned()));
            hub.emit(delta("a", "2".to_owned()));
        }
        hub.emit(warning(MAX_DELTAS + 1));
        let next = || events.next().now_or_never().flatten();
        let read: Vec<_> = std::iter::from_fn(next).map(|event| event.kind).collect();
        let number = |number: usize| [warning(number), delta("a", "12".to_owned())];
        let mut expected: Vec<_> = (0..=MAX_DELTAS).flat_map(number).collect();
        // The oldest delta is dropped.
        expected.remove(1);
        expected.push(warning(MAX_DELTAS + 1));
        assert_eq!(read, expected);
    }
}
