//! `process.Process`: starting commands, and their output, input and end.

mod start;
mod subscription;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use cantle_core::sandbox::Signal;
use http::{Request, StatusCode};
use tokio::time::{Instant, timeout};

use self::subscription::Subscription;
use super::commands::command::{ControlRequest, RunningCommand};
use super::commands::messages::{
    Input, ListResponse, SelectRequest, SendInputRequest, SendSignalRequest, StartRequest,
    StreamInputRequest, UpdateRequest,
};
use super::error::{EnvdError, RpcCode};
use super::rpc::envelope::EnvelopeReader;
use super::rpc::{self, CallKind, Empty, StreamItems};
use crate::envd::RunningSandbox;

/// Time limit for a killed command to end; it usually takes milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Extra time for the end event of a command that reached its time limit.
const END_EVENT_GRACE: Duration = Duration::from_secs(2);

/// StreamItems one call.
pub(crate) async fn call(
    live: &Arc<RunningSandbox>,
    method: &str,
    request: Request<Body>,
) -> Response {
    let kind = match method {
        "Start" | "Connect" | "StreamInput" => CallKind::Streaming,
        "List" | "Update" | "SendInput" | "SendSignal" | "CloseStdin" => CallKind::Unary,
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    if let Err(refusal) = rpc::check(&request, kind) {
        return *refusal;
    }
    let (head, body) = request.into_parts();
    let limit = match rpc::time_limit(&head.headers) {
        Ok(limit) => limit,
        Err(error) if kind == CallKind::Unary => return error.into_rpc(),
        Err(error) => return rpc::stream_error(error),
    };
    let keepalive = rpc::keepalive(&head.headers);
    let idle = live.commands.idle_timeout;
    let answered = async {
        match method {
            "Start" => stream_response(start_call(live, body, limit, keepalive).await),
            "Connect" => stream_response(connect(live, body, limit, keepalive).await),
            "StreamInput" => rpc::stream_single(stream_input(live, body).await),
            "List" => rpc::unary(Ok(ListResponse {
                processes: live.commands.list(),
            })),
            "Update" => rpc::unary(update(live, body, idle).await),
            "SendInput" => rpc::unary(send_input(live, body, idle).await),
            "SendSignal" => rpc::unary(send_signal(live, body, idle).await),
            _ => rpc::unary(close_stdin(live, body, idle).await),
        }
    };
    match (method, limit) {
        // The time limit applies to the command or the stream, not to the call.
        ("Start" | "Connect", _) | (_, None) => answered.await,
        (_, Some(limit)) => match timeout(limit, answered).await {
            Ok(response) => response,
            Err(_) if kind == CallKind::Unary => rpc::deadline_exceeded().into_rpc(),
            Err(_) => rpc::stream_error(rpc::deadline_exceeded()),
        },
    }
}

fn stream_response(items: Result<StreamItems, EnvdError>) -> Response {
    match items {
        Ok(items) => rpc::stream(items),
        Err(error) => rpc::stream_error(error),
    }
}

async fn start_call(
    live: &Arc<RunningSandbox>,
    body: Body,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<StreamItems, EnvdError> {
    let request: StartRequest = rpc::single_message(body, live.commands.idle_timeout).await?;
    let (command, events) = start::start(live, request, limit).await?;
    // The command is killed at its limit; this deadline covers one that can't be killed.
    let deadline = limit.map(|limit| Instant::now() + limit + END_EVENT_GRACE);
    Ok(Subscription::of_starter(command.pid, events, keepalive, deadline).into_items())
}

async fn connect(
    live: &Arc<RunningSandbox>,
    body: Body,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<StreamItems, EnvdError> {
    let request: SelectRequest = rpc::single_message(body, live.commands.idle_timeout).await?;
    let command = live.commands.find(&request.process)?;
    let deadline = limit.map(|limit| Instant::now() + limit);
    Ok(Subscription::connected(command.pid, command.subscribe(), keepalive, deadline).into_items())
}

/// Forwards a client's input stream until its end.
async fn stream_input(live: &Arc<RunningSandbox>, body: Body) -> Result<Empty, EnvdError> {
    let mut messages = EnvelopeReader::new(body, live.commands.idle_timeout);
    let mut command: Option<Arc<RunningCommand>> = None;
    while let Some(message) = messages.next().await? {
        let message: StreamInputRequest = rpc::read(&message)?;
        if let Some(start) = message.start {
            command = Some(live.commands.find_running(&start.process)?);
        }
        if let Some(data) = message.data {
            let Some(command) = &command else {
                return Err(EnvdError::invalid(
                    "the first message must select a process",
                ));
            };
            write(command, data.input).await?;
        }
    }
    Ok(Empty {})
}

async fn send_input(
    live: &Arc<RunningSandbox>,
    body: Body,
    idle: Duration,
) -> Result<Empty, EnvdError> {
    let request: SendInputRequest = rpc::message(body, idle).await?;
    let command = live.commands.find_running(&request.process)?;
    write(&command, request.input).await?;
    Ok(Empty {})
}

async fn write(command: &RunningCommand, input: Input) -> Result<(), EnvdError> {
    let data = match (input.stdin, input.pty) {
        (Some(_), _) if command.is_pty => {
            let message = "the process has a terminal: send input to the terminal, not to stdin";
            return Err(EnvdError::new(RpcCode::Internal, message));
        }
        (None, Some(_)) if !command.is_pty => {
            let message = "the process has no terminal";
            return Err(EnvdError::new(RpcCode::Internal, message));
        }
        (Some(data), _) | (None, Some(data)) => data,
        (None, None) => return Err(EnvdError::invalid("the request has no input")),
    };
    command.write(data).await
}

async fn close_stdin(
    live: &Arc<RunningSandbox>,
    body: Body,
    idle: Duration,
) -> Result<Empty, EnvdError> {
    let request: SelectRequest = rpc::message(body, idle).await?;
    let command = live.commands.find_running(&request.process)?;
    if command.is_pty {
        let message = "the input of a terminal can't be closed: send Ctrl-D instead";
        return Err(EnvdError::new(RpcCode::Unknown, message));
    }
    command.close_stdin().await;
    Ok(Empty {})
}

async fn update(
    live: &Arc<RunningSandbox>,
    body: Body,
    idle: Duration,
) -> Result<Empty, EnvdError> {
    let request: UpdateRequest = rpc::message(body, idle).await?;
    let command = live.commands.find_running(&request.process)?;
    if let Some(pty) = request.pty {
        if !command.is_pty {
            return Err(EnvdError::new(
                RpcCode::Internal,
                "the process has no terminal",
            ));
        }
        let size = start::pty_size(pty.size.as_ref());
        command
            .request(|done| ControlRequest::Resize(size, done))
            .await?;
    }
    Ok(Empty {})
}

async fn send_signal(
    live: &Arc<RunningSandbox>,
    body: Body,
    idle: Duration,
) -> Result<Empty, EnvdError> {
    let request: SendSignalRequest = rpc::message(body, idle).await?;
    let command = live.commands.find_running(&request.process)?;
    match parse_signal(&request.signal)? {
        Signal::KILL => {
            // Kills the whole process tree.
            command.kill.cancel();
            // The next request must not find the process.
            let _ = timeout(KILL_TIMEOUT, command.ended.cancelled()).await;
        }
        signal => {
            command
                .request(|done| ControlRequest::Signal(signal, done))
                .await?;
        }
    }
    Ok(Empty {})
}

fn parse_signal(name: &serde_json::Value) -> Result<Signal, EnvdError> {
    match (name.as_str(), name.as_i64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Ok(Signal::KILL),
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Ok(Signal::TERM),
        _ => Err(EnvdError::invalid(
            "the signal must be SIGNAL_SIGKILL or SIGNAL_SIGTERM",
        )),
    }
}
