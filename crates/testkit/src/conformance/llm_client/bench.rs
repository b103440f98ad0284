//! Test bench of a case: clients, a server, and the events of a call.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, Completion, Fold, LlmClient, LlmError, LlmErrorKind, ToolSpecs,
};
use cantle_core::message::{AssistantBlock, Message, SharedMessage};
use futures_util::StreamExt as _;

use super::super::check::{Checked, Failure, ensure, equal};
use super::{Dialect, Endpoint};
use crate::openai::{Request, Script, ScriptedServer, ServerOptions, Turn};

/// Deadline of a case, including the client's waits between attempts.
pub(super) const DEADLINE: Duration = Duration::from_secs(240);

pub(super) const MODEL: &str = "conformance-model";

pub(super) const API_KEY: &str = "sk-conformance-4f1d9a7be02c";

/// Both values of [`Endpoint::stream`].
pub(super) const STREAM_MODES: [bool; 2] = [true, false];

pub(super) struct ClientFactory<'c> {
    pub(super) connect: &'c dyn Fn(&Endpoint) -> Arc<dyn LlmClient>,
    pub(super) dialect: Dialect,
}

impl ClientFactory<'_> {
    pub(super) async fn check(&self, check: impl AsyncFnOnce(&Self) -> Checked) -> Checked {
        check(self).await
    }

    pub(super) fn client(&self, url: &str, stream: bool) -> Arc<dyn LlmClient> {
        (self.connect)(&Endpoint {
            url: url.to_owned(),
            model: MODEL.to_owned(),
            api_key: API_KEY.to_owned(),
            stream,
        })
    }

    /// Requests the next turn of a short conversation from a server with this script.
    pub(super) async fn ask(
        &self,
        script: Script,
        stream: bool,
    ) -> Checked<(CallRecord, ScriptedServer)> {
        let server = serve(script).await?;
        let client = self.client(&server.url(), stream);
        Ok((record_call(&*client, request("Go.")).await?, server))
    }

    /// Requests `turn`, which must succeed.
    pub(super) async fn complete(&self, turn: Turn, stream: bool) -> Checked<Completion> {
        let (record, _server) = self.ask(Script::new().turn(turn), stream).await?;
        record.completion()
    }

    /// Requests `turn`, which must succeed, streamed and not.
    pub(super) async fn complete_in_both_modes(&self, turn: &Turn) -> Checked<[Completion; 2]> {
        let [streamed, whole] = STREAM_MODES.map(|stream| self.complete(turn.clone(), stream));
        Ok([streamed.await?, whole.await?])
    }

    /// Requests `turn`, which must fail with an error of `kind`, streamed and not.
    pub(super) async fn fail_in_both_modes(
        &self,
        what: &str,
        turn: &Turn,
        kind: LlmErrorKind,
    ) -> Checked {
        for stream in STREAM_MODES {
            of_kind(what, &self.fail(turn.clone(), stream).await?, &[kind])?;
        }
        Ok(())
    }

    /// Returns the expected block for a turn's reasoning.
    pub(super) fn reasoning(&self, thought: &str) -> AssistantBlock {
        let content = thought.to_owned();
        match self.dialect {
            Dialect::Chat => AssistantBlock::Reasoning { content },
            Dialect::Messages => AssistantBlock::SignedReasoning {
                signature: "c2lnbmVk".to_owned(),
                content,
            },
            Dialect::Responses => AssistantBlock::EncryptedReasoning {
                id: "rs_0_0".to_owned(),
                encrypted_content: "ZW5jcnlwdGVk".to_owned(),
                content: None,
                summary: vec![content],
            },
        }
    }

    /// Requests `turn`, which must fail.
    pub(super) async fn fail(&self, turn: Turn, stream: bool) -> Checked<LlmError> {
        let (record, _server) = self.ask(Script::new().turn(turn), stream).await?;
        record.error()
    }
}

/// Starts a server that requires the key.
pub(super) async fn serve(script: Script) -> Checked<ScriptedServer> {
    let options = ServerOptions::new(script).api_key(API_KEY);
    Ok(ScriptedServer::start(options).await?)
}

pub(super) fn request(text: &str) -> ChatRequest {
    let messages = [Message::system("You are tested."), Message::user(text)];
    ChatRequest::new(
        messages.map(SharedMessage::new).into(),
        ToolSpecs::default(),
    )
}

pub(super) fn asks_for_a_stream(request: &Request) -> bool {
    request.body().get("stream") == Some(&true.into())
}

/// Events and result of one call.
pub(super) struct CallRecord {
    pub(super) events: Vec<ChatEvent>,
    pub(super) result: Result<Completion, LlmError>,
}

impl CallRecord {
    pub(super) fn completion(self) -> Checked<Completion> {
        Ok(self.result?)
    }

    #[track_caller]
    pub(super) fn error(self) -> Checked<LlmError> {
        match self.result {
            Ok(completion) => Err(Failure::new(format!(
                "expected an error; the turn succeeded: {:?}",
                completion.message.blocks
            ))),
            Err(error) => Ok(error),
        }
    }

    /// Returns the number of retries.
    pub(super) fn retries(&self) -> usize {
        let retrying = |event: &&ChatEvent| matches!(event, ChatEvent::AttemptFailed(_));
        self.events.iter().filter(retrying).count()
    }
}

/// Records a call until its end, and checks the invariants of every call.
pub(super) async fn record_call(
    client: &dyn LlmClient,
    request: ChatRequest,
) -> Checked<CallRecord> {
    let mut stream = client.stream(request);
    let (mut events, mut fold) = (Vec::new(), Fold::default());
    let result = loop {
        match stream.next().await {
            Some(Ok(event)) => {
                let end = fold.push(event.clone());
                events.push(event);
                if let Some(completion) = end {
                    break Ok(completion);
                }
            }
            Some(Err(error)) => break Err(error),
            None => {
                return Err(Failure::new(
                    "the stream ended with neither `Finished` nor an error",
                ));
            }
        }
    };
    if result.is_ok() {
        let more = stream.next().await;
        ensure!(more.is_none(), "after `Finished` came {more:?}");
        let failed = |event: &ChatEvent| matches!(event, ChatEvent::AttemptFailed(_));
        let last_attempt = events.rsplit(failed).next().unwrap_or_default();
        check_deltas(last_attempt)?;
    }
    attempts_are_numbered(&events)?;
    Ok(CallRecord { events, result })
}

fn attempts_are_numbered(events: &[ChatEvent]) -> Checked {
    let failed = events.iter().filter_map(|event| match event {
        ChatEvent::AttemptFailed(failed) => Some(failed.attempt),
        _ => None,
    });
    for (attempt, expected) in failed.zip(1..) {
        equal("the number of an attempt", attempt, expected)?;
    }
    Ok(())
}

/// Checks that deltas add up to the blocks, for the kinds of blocks that have deltas.
fn check_deltas(events: &[ChatEvent]) -> Checked {
    let (mut text, mut reasoning) = (Pieces::default(), Pieces::default());
    let mut calls: Vec<(Option<String>, Pieces)> = Vec::new();
    let mut completed = 0;
    for event in events {
        match event {
            ChatEvent::TextDelta(piece) => text.piece(piece),
            ChatEvent::ReasoningDelta(piece) => reasoning.piece(piece),
            ChatEvent::ToolCallDelta {
                index,
                name,
                arguments,
            } => {
                ensure!(
                    *index <= calls.len(),
                    "a piece of call {index} came out of order"
                );
                if *index == calls.len() {
                    calls.push((name.clone(), Pieces::default()));
                }
                if let Some((_, pieces)) = calls.get_mut(*index) {
                    pieces.piece(arguments);
                }
            }
            ChatEvent::Block(AssistantBlock::Text { text: block, .. }) => text.block(block),
            ChatEvent::Block(
                AssistantBlock::Reasoning { content }
                | AssistantBlock::SignedReasoning { content, .. },
            ) => reasoning.block(content),
            ChatEvent::Block(
                AssistantBlock::EncryptedReasoning {
                    content, summary, ..
                }
                | AssistantBlock::ReasoningRef {
                    content, summary, ..
                },
            ) => {
                let text = content.clone().unwrap_or_else(|| summary.concat());
                reasoning.block(&text);
            }
            ChatEvent::Block(AssistantBlock::ToolCall(call)) => {
                if let Some((name, pieces)) = calls.get_mut(completed) {
                    equal(
                        "the name in a call's first piece",
                        name.as_deref(),
                        Some(&*call.name),
                    )?;
                    pieces.block(&call.arguments);
                }
                completed += 1;
            }
            _ => {}
        }
    }
    text.check("the text")?;
    reasoning.check("the reasoning")?;
    for (_, pieces) in calls {
        pieces.check("the arguments of a call")?;
    }
    Ok(())
}

#[derive(Default)]
struct Pieces {
    pieces: Option<String>,
    blocks: String,
}

impl Pieces {
    fn piece(&mut self, piece: &str) {
        self.pieces.get_or_insert_default().push_str(piece);
    }

    fn block(&mut self, block: &str) {
        self.blocks.push_str(block);
    }

    fn check(self, what: &str) -> Checked {
        match self.pieces {
            Some(pieces) => equal(&format!("the pieces of {what}"), pieces, self.blocks),
            None => Ok(()),
        }
    }
}

/// Checks that an error is of one of `kinds`.
#[track_caller]
pub(super) fn of_kind(what: &str, error: &LlmError, kinds: &[LlmErrorKind]) -> Checked {
    if kinds.contains(&error.kind()) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what}: expected an error of {kinds:?}, got {:?} ({error})",
        error.kind()
    )))
}
