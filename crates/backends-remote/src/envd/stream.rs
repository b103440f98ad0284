//! The event stream of a process.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantle_core::sandbox::{Channel, ExitStatus};
use cantle_core::secret::SecretText;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use super::envelope::{Envelope, EnvelopeDecoder, encode_envelope};
use super::{
    Data, EndEvent, EndOfStream, Envd, Event, Fault, PROCESSES, Started, encode, hide_token,
    in_time,
};
use crate::http::RequestError;
use crate::signals;

/// Requested interval of keep-alive messages in seconds.
const PING_SECONDS: u16 = 2;
/// Time without any message after which a stream counts as broken.
pub(crate) const STREAM_TIMEOUT: Duration = Duration::from_secs(3 * PING_SECONDS as u64);
/// Reported for a signal without a known name.
const SIGKILL: i32 = 9;
/// Time limit for the response's head.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// An event of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProcessEvent {
    /// It has started with this process id.
    Started(u32),
    Output(Channel, Bytes),
    Ended(ExitStatus),
}

/// The events of a process until it exits.
#[derive(Debug)]
pub(crate) struct EventStream {
    response: Response,
    envelopes: EnvelopeDecoder,
    token: Option<SecretText>,
    is_finished: bool,
}

impl Envd {
    /// Starts a process; that it can't be started is reported by the first event.
    pub(crate) async fn start(
        &self,
        start: &Value,
        limit: Option<Duration>,
    ) -> Result<EventStream, Fault> {
        let mut request = self.stream("Start").body(encode_envelope(&encode(start)?));
        if let Some(limit) = limit {
            // At most ten digits.
            let milliseconds = limit.as_millis().min(9_999_999_999).to_string();
            request = request.header("connect-timeout-ms", milliseconds);
        }
        self.events(request, RESPONSE_TIMEOUT).await
    }

    /// Subscribes to a running process; earlier output is not repeated.
    pub(crate) async fn listen(&self, pid: u32) -> Result<EventStream, Fault> {
        let message = json!({ "process": { "pid": pid } });
        let request = self
            .stream("Connect")
            .body(encode_envelope(&encode(&message)?));
        self.events(request, STREAM_TIMEOUT).await
    }

    fn stream(&self, method: &str) -> RequestBuilder {
        self.rpc(PROCESSES, method)
            .header(CONTENT_TYPE, "application/connect+json")
            .header("keepalive-ping-interval", HeaderValue::from(PING_SECONDS))
    }

    async fn events(&self, request: RequestBuilder, limit: Duration) -> Result<EventStream, Fault> {
        let response = in_time(limit, request.send()).await?;
        Ok(EventStream {
            response: self.check_status(response).await?,
            envelopes: EnvelopeDecoder::default(),
            token: self.token.clone(),
            is_finished: false,
        })
    }
}

impl EventStream {
    /// Returns the next event; `None` after the last one. Not cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<ProcessEvent>, Fault> {
        loop {
            if self.is_finished {
                return Ok(None);
            }
            match self.envelopes.next().map_err(RequestError::new)? {
                None => self.read_more().await?,
                Some(Envelope::Message(message)) => {
                    if let Some(event) = parse(&message)? {
                        return Ok(Some(event));
                    }
                }
                Some(Envelope::End(message)) => {
                    self.is_finished = true;
                    let end: EndOfStream = serde_json::from_slice(&message).unwrap_or_default();
                    if let Some(error) = end.error {
                        let code = error.code;
                        let message = hide_token(self.token.as_ref(), &error.message);
                        return Err(Fault::Refused { code, message });
                    }
                }
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Fault> {
        let piece = in_time(STREAM_TIMEOUT, self.response.chunk()).await?;
        let cut = || RequestError::new("the stream ended without an end message");
        self.envelopes.push(&piece.ok_or_else(cut)?);
        Ok(())
    }
}

fn parse(message: &[u8]) -> Result<Option<ProcessEvent>, Fault> {
    let invalid = |_| RequestError::new("an event is invalid");
    let message: Started<'_> = serde_json::from_slice(message).map_err(invalid)?;
    let Event { start, data, end } = message.event;
    if let Some(start) = start {
        return Ok(Some(ProcessEvent::Started(start.pid)));
    }
    if let Some(data) = data {
        return output(&data);
    }
    Ok(end.map(|end| ProcessEvent::Ended(exit_status(&end))))
}

fn output(data: &Data<'_>) -> Result<Option<ProcessEvent>, Fault> {
    let channels = [
        (Channel::Stdout, &data.stdout),
        (Channel::Stderr, &data.stderr),
        (Channel::Stdout, &data.pty),
    ];
    for (channel, text) in channels {
        if let Some(text) = text {
            let bytes = STANDARD
                .decode(text.as_bytes())
                .map_err(|_| RequestError::new("output is not valid base64"))?;
            return Ok(Some(ProcessEvent::Output(channel, bytes.into())));
        }
    }
    Ok(None)
}

/// Converts the exit of a process; the status of a killed one is a text such as `signal: killed`.
fn exit_status(end: &EndEvent<'_>) -> ExitStatus {
    if end.exited || !end.status.starts_with("signal:") {
        return ExitStatus::Code(end.exit_code);
    }
    ExitStatus::Signal(signals::number(&end.status).unwrap_or(SIGKILL))
}
