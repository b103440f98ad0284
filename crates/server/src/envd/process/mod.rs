//! `process.Process`: commands, their output, their input and their end.

mod listening;
mod messages;
mod running;
mod start;
mod table;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use tokio::time::{Instant, timeout};

use self::listening::Listening;
use self::messages::{
    Empty, Input, ListResponse, Selected, SendInputRequest, SendSignalRequest, StartRequest,
    StreamInputRequest, UpdateRequest,
};
use self::running::{Order, Running};
pub(crate) use self::table::Commands;
use super::fault::{Code, Fault};
use super::rpc::envelope::Envelopes;
use super::rpc::{self, Answers, Shape};
use crate::fleet::Live;

/// How long the one who kills waits for the end, which takes milliseconds unless the machine is busy.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// How long after its limit a command's own end may be told.
const LAST_WORD: Duration = Duration::from_secs(2);

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Answers a call.
pub(crate) async fn call(live: &Arc<Live>, method: &str, request: Request<Body>) -> Response {
    let shape = match method {
        "Start" | "Connect" | "StreamInput" => Shape::Streamed,
        "List" | "Update" | "SendInput" | "SendSignal" | "CloseStdin" => Shape::Unary,
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    if let Err(refusal) = rpc::check(&request, shape) {
        return *refusal;
    }
    let (head, body) = request.into_parts();
    let limit = match rpc::time_limit(&head.headers) {
        Ok(limit) => limit,
        Err(fault) if shape == Shape::Unary => return fault.into_rpc(),
        Err(fault) => return rpc::refused(fault),
    };
    let keepalive = rpc::keepalive(&head.headers);
    let idle = live.commands.patience;
    let answered = async {
        match method {
            "Start" => streamed(start_call(live, body, limit, keepalive).await),
            "Connect" => streamed(connect(live, body, limit, keepalive).await),
            "StreamInput" => rpc::single(stream_input(live, body).await),
            "List" => rpc::answer(Ok(ListResponse {
                processes: live.commands.list(),
            })),
            "Update" => rpc::answer(update(live, body, idle).await),
            "SendInput" => rpc::answer(send_input(live, body, idle).await),
            "SendSignal" => rpc::answer(send_signal(live, body, idle).await),
            _ => rpc::answer(close_stdin(live, body, idle).await),
        }
    };
    match (method, limit) {
        // Their limit is the command's, or the stream's.
        ("Start" | "Connect", _) | (_, None) => answered.await,
        (_, Some(limit)) => match timeout(limit, answered).await {
            Ok(response) => response,
            Err(_) if shape == Shape::Unary => rpc::too_late().into_rpc(),
            Err(_) => rpc::refused(rpc::too_late()),
        },
    }
}

fn streamed(answers: Result<Answers, Fault>) -> Response {
    match answers {
        Ok(answers) => rpc::stream(answers),
        Err(fault) => rpc::refused(fault),
    }
}

async fn start_call(
    live: &Arc<Live>,
    body: Body,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<Answers, Fault> {
    let request: StartRequest = rpc::only_message(body, live.commands.patience).await?;
    let (running, told) = start::start(live, request, limit).await?;
    // The command is killed at its limit and says so; this is for one that can't be killed.
    let deadline = limit.map(|limit| Instant::now() + limit + LAST_WORD);
    Ok(Listening::starter(running.pid, told, keepalive, deadline).answers())
}

async fn connect(
    live: &Arc<Live>,
    body: Body,
    limit: Option<Duration>,
    keepalive: Duration,
) -> Result<Answers, Fault> {
    let request: Selected = rpc::only_message(body, live.commands.patience).await?;
    let running = live.commands.find(&request.process)?;
    let deadline = limit.map(|limit| Instant::now() + limit);
    Ok(Listening::other(running.pid, running.listen(), keepalive, deadline).answers())
}

/// Passes on what a caller's stream brings, until its end.
async fn stream_input(live: &Arc<Live>, body: Body) -> Result<Empty, Fault> {
    let mut messages = Envelopes::new(body, live.commands.patience);
    let mut running: Option<Arc<Running>> = None;
    while let Some(message) = messages.next().await? {
        let message: StreamInputRequest = rpc::read(&message)?;
        if let Some(start) = message.start {
            running = Some(live.commands.find_running(&start.process)?);
        }
        if let Some(data) = message.data {
            let Some(running) = &running else {
                return Err(Fault::invalid("the first message must say which process"));
            };
            write(running, data.input).await?;
        }
    }
    Ok(Empty {})
}

async fn send_input(live: &Arc<Live>, body: Body, idle: Duration) -> Result<Empty, Fault> {
    let request: SendInputRequest = rpc::message(body, idle).await?;
    let running = live.commands.find_running(&request.process)?;
    write(&running, request.input).await?;
    Ok(Empty {})
}

async fn write(running: &Running, input: Input) -> Result<(), Fault> {
    let data = match (input.stdin, input.pty) {
        (Some(_), _) if running.is_pty => {
            let message = "the process has a terminal: its input goes there, not to stdin";
            return Err(Fault::new(Code::Internal, message));
        }
        (None, Some(_)) if !running.is_pty => {
            let message = "the process has no terminal";
            return Err(Fault::new(Code::Internal, message));
        }
        (Some(data), _) | (None, Some(data)) => data,
        (None, None) => return Err(Fault::invalid("there is no input")),
    };
    running.write(data).await
}

async fn close_stdin(live: &Arc<Live>, body: Body, idle: Duration) -> Result<Empty, Fault> {
    let request: Selected = rpc::message(body, idle).await?;
    let running = live.commands.find_running(&request.process)?;
    if running.is_pty {
        let message = "the input of a terminal can't be closed: send the key for its end (Ctrl-D)";
        return Err(Fault::new(Code::Unknown, message));
    }
    running.close_stdin().await;
    Ok(Empty {})
}

async fn update(live: &Arc<Live>, body: Body, idle: Duration) -> Result<Empty, Fault> {
    let request: UpdateRequest = rpc::message(body, idle).await?;
    let running = live.commands.find_running(&request.process)?;
    if let Some(pty) = request.pty {
        if !running.is_pty {
            return Err(Fault::new(Code::Internal, "the process has no terminal"));
        }
        let size = start::pty_size(pty.size.as_ref());
        running.order(|done| Order::Resize(size, done)).await?;
    }
    Ok(Empty {})
}

async fn send_signal(live: &Arc<Live>, body: Body, idle: Duration) -> Result<Empty, Fault> {
    let request: SendSignalRequest = rpc::message(body, idle).await?;
    let running = live.commands.find_running(&request.process)?;
    match signal_of(&request.signal)? {
        SIGKILL => {
            // With everything that it started, wherever that is.
            running.kill.cancel();
            // So that who asks next doesn't find it any more.
            let _ = timeout(KILL_DEADLINE, running.ended.cancelled()).await;
        }
        signal => running.order(|done| Order::Signal(signal, done)).await?,
    }
    Ok(Empty {})
}

fn signal_of(said: &serde_json::Value) -> Result<i32, Fault> {
    match (said.as_str(), said.as_i64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Ok(SIGKILL),
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Ok(SIGTERM),
        _ => Err(Fault::invalid(
            "the signal must be SIGNAL_SIGKILL or SIGNAL_SIGTERM",
        )),
    }
}
