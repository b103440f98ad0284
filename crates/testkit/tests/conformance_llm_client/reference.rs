//! The smallest client that conforms: one attempt after another, over plain HTTP. It can be told to
//! have one fault.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use cantle_testkit::conformance::Endpoint;
use futures_util::{StreamExt as _, future, stream};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::wire::{self, Assembly, Http};

/// What is wrong with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    // Turns
    MakesEmptyBlocks,
    PutsTextFirst,
    MergesParallelCalls,
    InventsNoIds,
    MendsArguments,
    IgnoresTheStopReason,
    CountsCachedTokensTwice,
    TakesNoUsageForZero,
    DecodesPieceByPiece,
    ReadsCommentsAsData,
    DropsPieces,
    AnswersFromMemory,
    // Errors
    KnowsOneKindOnly,
    HidesTheStatus,
    TakesAnythingForAnAnswer,
    IgnoresRetryAfter,
    NeverTellsOfRetries,
    HardlyGivesUp,
    RepeatsRefusals,
    // Streams
    RunsByItself,
    DiesWithItsClient,
    HoldsPiecesBack,
    IgnoresTruncation,
    IgnoresErrorEvents,
    RetriesAfterTheFirstEvent,
    EndsWithoutFinished,
    SaysMoreAfterFinished,
    // Requests
    AsksForAnotherModel,
    ForgetsToolResults,
    NumbersItsRequests,
    MarksTheLastMessage,
    PutsTheKeyInTheBody,
    FollowsRedirectsWithTheKey,
    ShowsTheKeyInDebug,
    ShowsTheKeyInErrors,
}

#[derive(Clone)]
pub(crate) struct Reference {
    endpoint: Arc<Endpoint>,
    model: ModelInfo,
    fault: Option<Fault>,
    /// The first request, for a client that sends no other.
    memory: Arc<OnceLock<Vec<u8>>>,
    /// Shared by nobody: gone when the client is.
    alive: Arc<()>,
}

impl Reference {
    pub(crate) fn new(endpoint: &Endpoint, fault: Option<Fault>) -> Self {
        Self {
            endpoint: Arc::new(endpoint.clone()),
            model: ModelInfo::new(&endpoint.model),
            fault,
            memory: Arc::default(),
            alive: Arc::default(),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has(Fault::ShowsTheKeyInDebug) {
            return self.endpoint.fmt(f);
        }
        f.debug_struct("Reference").finish_non_exhaustive()
    }
}

impl LlmClient for Reference {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let (said, heard) = mpsc::channel(1);
        let owner = Arc::downgrade(&self.alive);
        let client = Self {
            alive: Arc::default(),
            ..self.clone()
        };
        let call = async move {
            if client.has(Fault::DiesWithItsClient) && owner.upgrade().is_none() {
                return;
            }
            let begun = false;
            let call = Call {
                client,
                said,
                begun,
            };
            call.run(request).await;
        };
        let heard = stream::unfold(heard, |mut heard| async move {
            heard.recv().await.map(|event| (event, heard))
        });
        if self.has(Fault::RunsByItself) {
            tokio::spawn(call);
            return Box::pin(heard);
        }
        // The call is driven by whoever polls the stream, and ends with it.
        let call = stream::once(call).filter_map(|()| future::ready(None));
        Box::pin(stream::select(heard, call))
    }
}

/// One call: its attempts, and what it said so far.
struct Call {
    client: Reference,
    said: mpsc::Sender<Result<ChatEvent, LlmError>>,
    begun: bool,
}

impl Call {
    fn has(&self, fault: Fault) -> bool {
        self.client.has(fault)
    }

    async fn run(mut self, request: ChatRequest) {
        let attempts = if self.has(Fault::HardlyGivesUp) {
            20
        } else {
            3
        };
        let mut body = wire::body(&self.client.endpoint, self.client.fault, &request);
        if self.has(Fault::AnswersFromMemory) {
            body = self.client.memory.get_or_init(|| body).clone();
        }
        let mut attempt = 1;
        let error = loop {
            let Err(error) = self.attempt(&body).await else {
                return;
            };
            let transient = error.kind().is_transient() || self.has(Fault::RepeatsRefusals);
            let late = self.begun && !self.has(Fault::RetriesAfterTheFirstEvent);
            if !transient || late || attempt == attempts {
                break error;
            }
            attempt += 1;
            let after = error.retry_after().unwrap_or(Duration::from_millis(20));
            if !self.has(Fault::NeverTellsOfRetries) {
                let reason = error.to_string();
                let retrying = ChatEvent::Retrying {
                    attempt,
                    after,
                    reason,
                };
                let _ = self.said.send(Ok(retrying)).await;
            }
            if !self.has(Fault::IgnoresRetryAfter) {
                sleep(after).await;
            }
        };
        if !self.has(Fault::EndsWithoutFinished) {
            let _ = self.said.send(Err(self.disguise(error))).await;
        }
    }

    fn disguise(&self, error: LlmError) -> LlmError {
        match self.client.fault {
            Some(Fault::KnowsOneKindOnly) => LlmError::protocol(error.to_string()),
            Some(Fault::HidesTheStatus) => LlmError::new(error.kind(), error.to_string()),
            _ => error,
        }
    }

    /// What a server says may hold the key, and may become part of an error.
    fn scrubbed(&self, body: &str) -> String {
        if self.has(Fault::ShowsTheKeyInErrors) {
            return body.to_owned();
        }
        body.replace(&self.client.endpoint.api_key, "[key]")
    }

    async fn say(&mut self, event: ChatEvent) {
        self.begun = true;
        if self.has(Fault::DropsPieces) && matches!(event, ChatEvent::TextDelta(_)) {
            // The first of them only, so that it is noticed by sums and not by silence.
            self.client.fault = None;
            return;
        }
        // Nobody listens any more where this fails.
        let _ = self.said.send(Ok(event)).await;
    }

    async fn attempt(&mut self, body: &[u8]) -> Result<(), LlmError> {
        let endpoint = Arc::clone(&self.client.endpoint);
        let mut http = Http::post(&endpoint.url, &endpoint.api_key, body).await?;
        if self.has(Fault::FollowsRedirectsWithTheKey)
            && let Some(to) = http.header("location")
        {
            let to = to.trim_end_matches("/chat/completions").to_owned();
            http = Http::post(&to, &endpoint.api_key, body).await?;
        }
        if http.status != 200 {
            return Err(self.refusal(http).await);
        }
        if http.header("content-type") != Some("text/event-stream") {
            let bytes = http.whole().await?;
            let body = self.scrubbed(&String::from_utf8_lossy(&bytes));
            let (blocks, end) = wire::read_whole(&body, self.client.fault)?;
            for block in blocks {
                self.say(ChatEvent::Block(block)).await;
            }
            return self.finish(end).await;
        }
        let mut assembly = Assembly::new(self.client.fault);
        let mut held = Vec::new();
        let mut lines = pin!(http.lines(self.has(Fault::DecodesPieceByPiece)));
        while let Some(line) = lines.next().await {
            let line = match line {
                Ok(line) => line,
                Err(_) if self.has(Fault::IgnoresTruncation) => break,
                Err(error) => return Err(error),
            };
            for piece in assembly.line(&line)? {
                if self.has(Fault::HoldsPiecesBack) {
                    held.push(piece);
                } else {
                    self.say(piece).await;
                }
            }
        }
        let (blocks, end) = assembly.finish()?;
        let blocks = blocks.into_iter().map(ChatEvent::Block);
        for event in held.into_iter().chain(blocks) {
            self.say(event).await;
        }
        self.finish(end).await
    }

    async fn finish(&mut self, end: cantle_core::llm::TurnEnd) -> Result<(), LlmError> {
        if !self.has(Fault::EndsWithoutFinished) {
            self.say(ChatEvent::Finished(end)).await;
        }
        if self.has(Fault::SaysMoreAfterFinished) {
            self.say(ChatEvent::TextDelta("PS".to_owned())).await;
        }
        Ok(())
    }

    async fn refusal(&self, http: Http) -> LlmError {
        let status = http.status;
        let retry_after = http.header("retry-after").and_then(|it| it.parse().ok());
        let body = http.body.collect().await.map(|it| it.to_bytes());
        let body = self.scrubbed(&String::from_utf8_lossy(&body.unwrap_or_default()));
        let overflow = body.contains("context_length_exceeded");
        let kind = match status {
            400 if overflow => LlmErrorKind::ContextOverflow,
            401 => LlmErrorKind::Authentication,
            403 => LlmErrorKind::Permission,
            404 => LlmErrorKind::NotFound,
            429 => LlmErrorKind::RateLimited,
            500.. => LlmErrorKind::Server,
            _ => LlmErrorKind::InvalidRequest,
        };
        LlmError::new(kind, format!("the server answered: {body}"))
            .with_status(status)
            .with_retry_after(retry_after.map(Duration::from_secs))
    }
}
