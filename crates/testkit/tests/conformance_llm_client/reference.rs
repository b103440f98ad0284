//! Minimal conforming client over plain HTTP, optionally with one fault.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, FailedAttempt, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use cantle_testkit::conformance::Endpoint;
use futures_util::{StreamExt as _, future, stream};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::wire::{self, Assembly, Http};

/// Fault of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    // Turns
    MakesEmptyBlocks,
    PutsTextFirst,
    MergesParallelCalls,
    GeneratesNoIds,
    RepairsArguments,
    IgnoresTheStopReason,
    CountsCachedTokensTwice,
    ReportsMissingUsageAsZero,
    DecodesPieceByPiece,
    ReadsCommentsAsData,
    DropsPieces,
    RepeatsTheFirstRequest,
    // Errors
    ReportsOneErrorKind,
    HidesTheStatus,
    AcceptsAnyAnswer,
    IgnoresRetryAfter,
    HidesRetries,
    RetriesTooOften,
    RetriesRefusals,
    // Streams
    RunsUnpolled,
    DiesWithItsClient,
    BuffersPieces,
    IgnoresTruncation,
    IgnoresErrorEvents,
    RepeatsBrokenStreamsSilently,
    EndsWithoutFinished,
    ContinuesAfterFinished,
    // Requests
    RequestsAnotherModel,
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
    /// Body of the first request, for `Fault::RepeatsTheFirstRequest`.
    first_request: Arc<OnceLock<Vec<u8>>>,
    /// Not shared, so that a weak reference detects the client's drop.
    alive: Arc<()>,
}

impl Reference {
    pub(crate) fn new(endpoint: &Endpoint, fault: Option<Fault>) -> Self {
        Self {
            endpoint: Arc::new(endpoint.clone()),
            model: ModelInfo::new(&endpoint.model),
            fault,
            first_request: Arc::default(),
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
        let (sender, receiver) = mpsc::channel(1);
        let owner = Arc::downgrade(&self.alive);
        let client = Self {
            alive: Arc::default(),
            ..self.clone()
        };
        let call = async move {
            if client.has(Fault::DiesWithItsClient) && owner.upgrade().is_none() {
                return;
            }
            let answered = false;
            let call = Call {
                client,
                sender,
                answered,
            };
            call.run(request).await;
        };
        let receiver = stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|event| (event, receiver))
        });
        if self.has(Fault::RunsUnpolled) {
            tokio::spawn(call);
            return Box::pin(receiver);
        }
        // Polling the stream drives the call; dropping it ends the call.
        let call = stream::once(call).filter_map(|()| future::ready(None));
        Box::pin(stream::select(receiver, call))
    }
}

/// One call with its attempts.
struct Call {
    client: Reference,
    sender: mpsc::Sender<Result<ChatEvent, LlmError>>,
    answered: bool,
}

impl Call {
    fn has(&self, fault: Fault) -> bool {
        self.client.has(fault)
    }

    async fn run(mut self, request: ChatRequest) {
        let attempts = if self.has(Fault::RetriesTooOften) {
            60
        } else {
            3
        };
        let mut body = wire::body(&self.client.endpoint, self.client.fault, &request);
        if self.has(Fault::RepeatsTheFirstRequest) {
            body = self.client.first_request.get_or_init(|| body).clone();
        }
        let mut attempt = 1;
        let error = loop {
            let Err(error) = self.attempt(&body).await else {
                return;
            };
            let transient = error.kind().is_transient() || self.has(Fault::RetriesRefusals);
            let late = self.answered && !self.has(Fault::RepeatsBrokenStreamsSilently);
            if !transient || late || attempt == attempts {
                break error;
            }
            let after = error.retry_after().unwrap_or(Duration::from_millis(20));
            if !self.has(Fault::HidesRetries) && !self.answered {
                let failed = FailedAttempt::new(attempt, &error, after);
                let failed = ChatEvent::AttemptFailed(failed);
                let _ = self.sender.send(Ok(failed)).await;
            }
            attempt += 1;
            if !self.has(Fault::IgnoresRetryAfter) {
                sleep(after).await;
            }
        };
        if !self.has(Fault::EndsWithoutFinished) {
            let _ = self.sender.send(Err(self.disguise(error))).await;
        }
    }

    fn disguise(&self, error: LlmError) -> LlmError {
        match self.client.fault {
            Some(Fault::ReportsOneErrorKind) => LlmError::protocol(error.to_string()),
            Some(Fault::HidesTheStatus) => LlmError::new(error.kind(), error.to_string()),
            _ => error,
        }
    }

    /// Removes the key from a server's text, which may become part of an error.
    fn redacted(&self, body: &str) -> String {
        if self.has(Fault::ShowsTheKeyInErrors) {
            return body.to_owned();
        }
        body.replace(&self.client.endpoint.api_key, "[key]")
    }

    async fn send(&mut self, event: ChatEvent) {
        self.answered = true;
        if self.has(Fault::DropsPieces) && matches!(event, ChatEvent::TextDelta(_)) {
            // Only the first one, so that the sum of the deltas detects it.
            self.client.fault = None;
            return;
        }
        // Fails if the stream was dropped.
        let _ = self.sender.send(Ok(event)).await;
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
            let body = self.redacted(&String::from_utf8_lossy(&bytes));
            let (blocks, end) = wire::read_whole(&body, self.client.fault)?;
            for block in blocks {
                self.send(ChatEvent::Block(block)).await;
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
                if self.has(Fault::BuffersPieces) {
                    held.push(piece);
                } else {
                    self.send(piece).await;
                }
            }
        }
        let (blocks, end) = assembly.finish()?;
        let blocks = blocks.into_iter().map(ChatEvent::Block);
        for event in held.into_iter().chain(blocks) {
            self.send(event).await;
        }
        self.finish(end).await
    }

    async fn finish(&mut self, end: cantle_core::llm::TurnEnd) -> Result<(), LlmError> {
        if !self.has(Fault::EndsWithoutFinished) {
            self.send(ChatEvent::Finished(end)).await;
        }
        if self.has(Fault::ContinuesAfterFinished) {
            self.send(ChatEvent::TextDelta("PS".to_owned())).await;
        }
        Ok(())
    }

    async fn refusal(&self, http: Http) -> LlmError {
        let status = http.status;
        let retry_after = http.header("retry-after").and_then(|it| it.parse().ok());
        let body = http.body.collect().await.map(|it| it.to_bytes());
        let body = self.redacted(&String::from_utf8_lossy(&body.unwrap_or_default()));
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
