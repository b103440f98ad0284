//! `process.Process`: starting commands, and their output, input and end.

mod start;
mod subscription;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use cantle_core::sandbox::Signal;
use http::{Request, StatusCode};
use serde_json::value::RawValue;
use tokio::time::timeout;

use self::subscription::subscription;
use super::commands::command::{ControlRequest, RunningCommand};
use super::commands::messages::{
    Input, ListResponse, ProcessRequest, StartRequest, StreamInputRequest,
};
use super::error::{EnvdError, Result, RpcCode};
use super::rpc::envelope::EnvelopeReader;
use super::rpc::{self, CallKind, CallTimes, Empty, LargeMessage, RpcCall, StreamItems};
use crate::envd::RunningSandbox;

/// Time limit for a killed command to end; it usually takes milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Extra time for the end event of a command that reached its time limit.
const END_EVENT_GRACE: Duration = Duration::from_secs(2);

/// Responds to one call.
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
    let call = match RpcCall::new(request, kind, live.commands.idle_timeout, &live.account) {
        Ok(call) => call,
        Err(refusal) => return *refusal,
    };
    match method {
        // The time limit applies to the command or the stream, not to the call.
        "Start" => {
            call.stream(|request, times| start_call(live, request, times))
                .await
        }
        "Connect" => {
            call.stream(|request, times| connect(live, request, times))
                .await
        }
        "StreamInput" => {
            call.client_stream(|messages| stream_input(live, messages))
                .await
        }
        // The request has no fields.
        "List" => {
            let listed = list(live).await;
            listed.map_or_else(EnvdError::into_rpc, LargeMessage::into_response)
        }
        "Update" => call.unary(|request| update(live, request)).await,
        "SendInput" => call.unary(|request| send_input(live, request)).await,
        "SendSignal" => call.unary(|request| send_signal(live, request)).await,
        _ => call.unary(|request| close_stdin(live, request)).await,
    }
}

async fn list(live: &RunningSandbox) -> Result<LargeMessage> {
    let processes = live.commands.list();
    let size_bytes = processes.iter().map(|it| it.config.size_bytes()).sum();
    LargeMessage::new(
        ListResponse { processes },
        size_bytes,
        live.account.charge(),
    )
    .await
}

async fn start_call(
    live: &Arc<RunningSandbox>,
    request: StartRequest,
    times: CallTimes,
) -> Result<StreamItems> {
    let (pid, events) = start::start(live, request, times.limit).await?;
    // The command is killed at its limit; this deadline covers one that can't be killed.
    let limit = times.limit.map(|limit| limit + END_EVENT_GRACE);
    Ok(subscription(
        pid,
        events,
        CallTimes { limit, ..times },
        true,
    ))
}

async fn connect(
    live: &RunningSandbox,
    request: ProcessRequest,
    times: CallTimes,
) -> Result<StreamItems> {
    let command = live.commands.find(&request.process)?;
    let pid = command.info.pid;
    Ok(subscription(pid, command.subscribe(), times, false))
}

/// Forwards a client's input stream until its end.
async fn stream_input(live: &RunningSandbox, mut messages: EnvelopeReader) -> Result<()> {
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
    Ok(())
}

async fn send_input(live: &RunningSandbox, request: ProcessRequest) -> Result<Empty> {
    let command = live.commands.find_running(&request.process)?;
    write(&command, request.input).await?;
    Ok(Empty)
}

async fn write(command: &RunningCommand, input: Input) -> Result<()> {
    let data = match (input.stdin, input.pty) {
        (Some(_), _) if command.is_pty => {
            let message = "the process has a terminal: send input to the terminal, not to stdin";
            return Err(EnvdError::internal(message));
        }
        (None, Some(_)) if !command.is_pty => {
            return Err(EnvdError::internal("the process has no terminal"));
        }
        (Some(data), _) | (None, Some(data)) => data,
        (None, None) => return Err(EnvdError::invalid("the request has no input")),
    };
    command.write(data).await
}

async fn close_stdin(live: &RunningSandbox, request: ProcessRequest) -> Result<Empty> {
    let command = live.commands.find_running(&request.process)?;
    if command.is_pty {
        let message = "the input of a terminal can't be closed: send Ctrl-D instead";
        return Err(EnvdError::new(RpcCode::Unknown, message));
    }
    command.close_stdin().await;
    Ok(Empty)
}

async fn update(live: &RunningSandbox, request: ProcessRequest) -> Result<Empty> {
    let command = live.commands.find_running(&request.process)?;
    if let Some(pty) = request.pty {
        if !command.is_pty {
            return Err(EnvdError::internal("the process has no terminal"));
        }
        let size = start::pty_size(pty.size.as_ref());
        command.request(ControlRequest::Resize(size)).await?;
    }
    Ok(Empty)
}

async fn send_signal(live: &RunningSandbox, request: ProcessRequest) -> Result<Empty> {
    let command = live.commands.find_running(&request.process)?;
    match parse_signal(request.signal.as_deref())? {
        Signal::KILL => {
            // Kills the whole process tree.
            command.kill.cancel();
            // The next request must not find the process.
            let _ = timeout(KILL_TIMEOUT, command.ended.cancelled()).await;
        }
        signal => command.request(ControlRequest::Signal(signal)).await?,
    }
    Ok(Empty)
}

fn parse_signal(signal: Option<&RawValue>) -> Result<Signal> {
    match signal.map(RawValue::get) {
        Some(r#""SIGNAL_SIGKILL""# | "9") => Ok(Signal::KILL),
        Some(r#""SIGNAL_SIGTERM""# | "15") => Ok(Signal::TERM),
        _ => Err(EnvdError::invalid(
            "the signal must be SIGNAL_SIGKILL or SIGNAL_SIGTERM",
        )),
    }
}
