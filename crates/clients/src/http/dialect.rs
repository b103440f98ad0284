//! What a dialect says of itself.

use std::collections::VecDeque;
use std::fmt;

use cantle_core::llm::{ChatEvent, ChatRequest, LlmError, LlmErrorKind};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::secret::SecretText;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value};

use super::errors::Diagnosis;
use crate::sse::Event;

/// A wire dialect: where requests go, how they are written, and how answers are put together.
///
/// The dialects are those of this crate: what its methods take and return can't be named outside of
/// it. The trait itself is there to be a bound.
pub trait Dialect: fmt::Debug + Send + Sync + Sized + 'static {
    /// The name of its client type.
    const CLIENT: &'static str;
    /// What follows the base URL, with the slash before it.
    const PATH: &'static str;
    /// What an answer is called, with its article.
    const ANSWER: &'static str;
    /// Whose it is, where no base URL is given.
    const BASE_URL: &'static str;
    /// Parameters that the client sets itself.
    const OWNED: &'static [&'static str];
    /// What a builder holds for this dialect alone.
    type Options: Default + Send;
    /// Puts an answer together.
    type Turn: Turn;

    /// What a client keeps of its options.
    ///
    /// # Errors
    /// Where they make no sense.
    fn new(options: Self::Options, common: &Common<'_>) -> Result<Self, LlmError>;

    /// Headers that every request has, the key's left out.
    fn headers(&self) -> HeaderMap;

    /// The header that carries the key, and its value.
    fn authorization(&self, key: &SecretText) -> (&'static str, String);

    /// Whether the provider is known to say, or not to say, what an answer costs.
    fn reports_cost(&self) -> Option<bool> {
        None
    }

    /// What an answer is put together in.
    fn turn(&self) -> Self::Turn {
        Self::Turn::default()
    }

    /// The body of a request.
    ///
    /// # Errors
    /// [`LlmErrorKind::Unsupported`] where a message holds what this dialect can't carry.
    fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError>;

    /// The body of a second request, where the first was refused with `error` for something that
    /// this dialect can do without.
    fn instead(
        &self,
        request: &ChatRequest,
        error: &LlmError,
    ) -> Option<Result<Vec<u8>, LlmError>> {
        let _ = (request, error);
        None
    }
}

/// An answer on its way: taken in one piece or in events, and the same turn either way.
pub trait Turn: Default + Send {
    /// Takes an answer that came all at once.
    ///
    /// # Errors
    /// Where it is none, or an error in the place of one.
    fn whole(
        &mut self,
        diagnosis: &Diagnosis,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), LlmError>;

    /// Takes one event, and tells what is new in it.
    ///
    /// # Errors
    /// Where it can't be read, or is an error.
    fn event(
        &mut self,
        diagnosis: &Diagnosis,
        event: &Event<'_>,
        told: &mut VecDeque<ChatEvent>,
    ) -> Result<Next, LlmError>;

    /// The whole blocks and the end, in the order in which they are told.
    ///
    /// # Errors
    /// [`LlmErrorKind::Interrupted`] where the end has not come.
    fn finish(self, headers: &HeaderMap) -> Result<Vec<ChatEvent>, LlmError>;
}

/// Whether more events are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More of the answer.
    More,
    /// The answer is complete.
    End,
}

/// What all clients are told.
#[derive(Debug)]
pub struct Common<'a> {
    /// The provider's name for the model.
    pub model: &'a str,
    /// Where the API is, as it was given.
    pub base_url: &'a str,
    /// Whether answers are streamed.
    pub stream: bool,
    /// Tokens that one turn may produce.
    pub max_output_tokens: Option<u64>,
    /// Tokens that input and output may have together.
    pub context_window: Option<u64>,
    /// Further parameters of the request.
    pub extra: &'a Map<String, Value>,
}

/// Bytes put one behind the other, in one buffer of the right size.
#[derive(Debug, Default)]
pub(crate) struct OneBehindTheOther<'a> {
    pieces: Vec<&'a [u8]>,
}

impl<'a> OneBehindTheOther<'a> {
    pub(crate) fn push(&mut self, piece: &'a [u8]) {
        self.pieces.push(piece);
    }

    pub(crate) fn join(self) -> Vec<u8> {
        let length = self.pieces.iter().map(|piece| piece.len()).sum();
        let mut joined = Vec::with_capacity(length);
        for piece in self.pieces {
            joined.extend_from_slice(piece);
        }
        joined
    }
}

/// Only numbers that are not finite and keys that are not text can't be written as JSON, and there
/// are none in a message.
pub(crate) fn unencodable(error: serde_json::Error) -> LlmError {
    let message = "a message can't be written as JSON";
    LlmError::new(LlmErrorKind::InvalidRequest, message).with_source(error)
}

/// Results are matched to calls by id, so an id that comes a second time is replaced by our own.
pub(crate) fn with_unique_ids(blocks: &mut [AssistantBlock]) {
    let mut taken: Vec<String> = Vec::new();
    for block in blocks {
        if let AssistantBlock::ToolCall(call) = block {
            if taken.contains(&call.id) {
                let fresh = ToolCall::new(None, "", "");
                (call.id, call.has_provider_id) = (fresh.id, fresh.has_provider_id);
            }
            taken.push(call.id.clone());
        }
    }
}

/// The model that answered, as the provider calls it: LiteLLM's header knows better than the body,
/// which repeats what was asked for.
pub(crate) fn served_by(headers: &HeaderMap, said: Option<String>) -> Option<String> {
    let header = headers.get("x-litellm-model-name");
    let header = header
        .and_then(|name| name.to_str().ok())
        .map(str::to_owned);
    header.or(said).filter(|model| !model.is_empty())
}
