//! Somebody who listens to a command: its start, what it writes, its end.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::messages;
use super::running::Told;
use crate::envd::rpc::{self, Answer, Answers};

pub(super) struct Listening {
    stage: Stage,
    told: mpsc::Receiver<Told>,
    /// After how much silence to say that it lives.
    keepalive: Duration,
    deadline: Option<Instant>,
    /// Who started it is told that its time was over; others, that it was killed.
    is_starter: bool,
}

enum Stage {
    Starting(Bytes),
    Listening,
    Ending,
    Over,
}

impl Listening {
    /// The one who started a command.
    pub(super) fn starter(
        pid: u32,
        told: mpsc::Receiver<Told>,
        keepalive: Duration,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            stage: Stage::Starting(messages::started(pid)),
            told,
            keepalive,
            deadline,
            is_starter: true,
        }
    }

    /// Somebody who came later.
    pub(super) fn other(
        pid: u32,
        told: mpsc::Receiver<Told>,
        keepalive: Duration,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            is_starter: false,
            ..Self::starter(pid, told, keepalive, deadline)
        }
    }

    pub(super) fn answers(self) -> Answers {
        Box::pin(stream::unfold(self, Self::next))
    }

    async fn next(mut self) -> Option<(Answer, Self)> {
        let (answer, stage) = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Starting(event) => (Answer::Message(event), Stage::Listening),
            Stage::Listening => self.listen().await,
            Stage::Ending => (Answer::End(Ok(())), Stage::Over),
            Stage::Over => return None,
        };
        self.stage = stage;
        Some((answer, self))
    }

    async fn listen(&mut self) -> (Answer, Stage) {
        tokio::select! {
            biased;
            told = self.told.recv() => match told {
                Some(Told::Event(event)) => (Answer::Message(event), Stage::Listening),
                Some(Told::Ended { timed_out: true, .. }) if self.is_starter => {
                    (Answer::End(Err(rpc::too_late())), Stage::Over)
                }
                Some(Told::Ended { event, .. }) => (Answer::Message(event), Stage::Ending),
                // We were too slow, or the sandbox is over.
                None => (Answer::Cut, Stage::Over),
            },
            () = at(self.deadline) => (Answer::End(Err(rpc::too_late())), Stage::Over),
            () = sleep(self.keepalive) => {
                (Answer::Message(messages::keepalive()), Stage::Listening)
            }
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
