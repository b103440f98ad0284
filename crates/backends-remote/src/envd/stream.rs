//! The events of a process, as they come.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantle_core::sandbox::Channel;
use cantle_core::secret::SecretText;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{RequestBuilder, Response};
use tokio::time::timeout;

use super::envelope::{Envelope, Envelopes, enclose};
use super::{
    Data, EndEvent, EndOfStream, Envd, Fault, Nothing, Selected, Selector, Start, Started, encode,
    hiding,
};
use crate::http::Broken;

/// How often something must come, in seconds: a stream that is silent for longer is looked after.
const PING_SECONDS: u16 = 2;
/// After how much silence.
pub(crate) const SILENCE: Duration = Duration::from_secs(3 * PING_SECONDS as u64);
/// For the first answer.
const FIRST: Duration = Duration::from_secs(30);

/// Something that happened to a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// It runs, under this id.
    Started(u32),
    Wrote(Channel, Bytes),
    Ended(Ended),
}

/// How a process ended, as it is told from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    /// In words, such as `signal: killed`.
    Signal(String),
}

/// What happens to a process, until it ends.
#[derive(Debug)]
pub(crate) struct EventStream {
    response: Response,
    envelopes: Envelopes,
    token: Option<SecretText>,
    over: bool,
}

impl Envd {
    /// Starts a process. Where it can't be started, the first event says so.
    pub(crate) async fn start(
        &self,
        start: &Start<'_>,
        limit: Option<Duration>,
    ) -> Result<EventStream, Fault> {
        let mut request = self.stream("Start").body(enclose(&encode(start)?));
        if let Some(limit) = limit {
            // At most ten digits.
            let milliseconds = limit.as_millis().min(9_999_999_999).to_string();
            request = request.header("connect-timeout-ms", milliseconds);
        }
        self.events(request, FIRST).await
    }

    /// Listens to a process that was started. What it wrote before is not told.
    pub(crate) async fn listen(&self, pid: u32) -> Result<EventStream, Fault> {
        let which = Selected {
            process: Selector { pid },
            more: Nothing {},
        };
        let request = self.stream("Connect").body(enclose(&encode(&which)?));
        self.events(request, SILENCE).await
    }

    fn stream(&self, method: &str) -> RequestBuilder {
        self.rpc("process.Process", method)
            .header(CONTENT_TYPE, "application/connect+json")
            .header("keepalive-ping-interval", HeaderValue::from(PING_SECONDS))
    }

    async fn events(
        &self,
        request: RequestBuilder,
        patience: Duration,
    ) -> Result<EventStream, Fault> {
        let response = match timeout(patience, request.send()).await {
            Ok(response) => self.accepted(response?).await?,
            Err(_) => return Err(Broken::silent(patience).into()),
        };
        Ok(EventStream {
            response,
            envelopes: Envelopes::default(),
            token: self.token.clone(),
            over: false,
        })
    }
}

impl EventStream {
    /// The next event; `None` after the last one. Not cancel-safe: what is given up takes the rest
    /// along.
    pub(crate) async fn next(&mut self) -> Result<Option<Happened>, Fault> {
        loop {
            if self.over {
                return Ok(None);
            }
            match self.envelopes.next().map_err(Broken::new)? {
                None => self.read_more().await?,
                Some(Envelope::Message(message)) => {
                    if let Some(happened) = read(&message)? {
                        return Ok(Some(happened));
                    }
                }
                Some(Envelope::End(message)) => {
                    self.over = true;
                    let end: EndOfStream = serde_json::from_slice(&message).unwrap_or_default();
                    if let Some(error) = end.error {
                        let code = error.code;
                        let message = hiding(self.token.as_ref(), &error.message);
                        return Err(Fault::Refused { code, message });
                    }
                }
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Fault> {
        match timeout(SILENCE, self.response.chunk()).await {
            Err(_) => Err(Broken::silent(SILENCE).into()),
            Ok(piece) => match piece? {
                Some(piece) => {
                    self.envelopes.push(&piece);
                    Ok(())
                }
                None => Err(Broken::new("the stream ended before its end").into()),
            },
        }
    }
}

fn read(message: &[u8]) -> Result<Option<Happened>, Fault> {
    let strange = |_| Broken::new("an event can't be understood");
    let event = serde_json::from_slice::<Started<'_>>(message)
        .map_err(strange)?
        .event;
    Ok(match event {
        super::Event {
            start: Some(start), ..
        } => Some(Happened::Started(start.pid)),
        super::Event {
            data: Some(data), ..
        } => output(&data)?,
        super::Event { end: Some(end), .. } => Some(Happened::Ended(ended(&end))),
        _ => None,
    })
}

fn output(data: &Data<'_>) -> Result<Option<Happened>, Fault> {
    let channels = [
        (Channel::Stdout, &data.stdout),
        (Channel::Stderr, &data.stderr),
        (Channel::Stdout, &data.pty),
    ];
    for (channel, text) in channels {
        if let Some(text) = text {
            let bytes = STANDARD
                .decode(text.as_bytes())
                .map_err(|_| Broken::new("output can't be decoded"))?;
            return Ok(Some(Happened::Wrote(channel, bytes.into())));
        }
    }
    Ok(None)
}

fn ended(end: &EndEvent<'_>) -> Ended {
    if end.exited || !end.status.starts_with("signal:") {
        return Ended::Code(end.exit_code);
    }
    Ended::Signal(end.status.to_string())
}
