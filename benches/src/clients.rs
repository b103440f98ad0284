//! Model clients: parsing events, assembling requests, and many agents under one rate limit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cantle_clients::chat::ChatClient;
use cantle_clients::sse::EventParser;
use cantle_core::llm::{ChatRequest, LlmClientExt as _, ToolSpecs};
use cantle_core::message::{Message, SharedMessage};
use cantle_testkit::openai::{Fault, Reply, Request, Script, ScriptedServer, ServerOptions, Turn};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::process::{median, run_part};
use crate::report::Report;

const REPEATS: usize = 9;

/// Typical size of a socket read.
const READ: usize = 16 * 1024;

const AGENTS: usize = 200;
const TURNS: usize = 20;
/// Requests per second and burst that the server allows.
const RATE: f64 = 200.0;
const BURST: f64 = 40.0;

/// Returns the parsing rate of model events in MB/s.
fn events() -> Result<f64> {
    let event = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\
                 \"delta\":{\"content\":\" word\"},\"finish_reason\":null}],\"usage\":null}\n\n";
    let stream = event.repeat(400_000);
    let started = Instant::now();
    let (mut events, mut count) = (EventParser::default(), 0);
    for piece in stream.as_bytes().chunks(READ) {
        events.push(piece);
        while let Some(event) = events.next_event() {
            count += usize::from(!event?.data.is_empty());
        }
    }
    ensure!(count == 400_000);
    Ok(stream.len() as f64 / 1e6 / started.elapsed().as_secs_f64())
}

/// Returns the milliseconds to assemble a 10 MB request with one new message.
fn assembly() -> Result<f64> {
    let client = ChatClient::builder("bench")
        .base_url("http://localhost/v1")
        .build()?;
    let message = |text: String| SharedMessage::new(Message::user(text));
    let mut messages: Vec<_> = (0..1000).map(|_| message("word ".repeat(2000))).collect();
    let assembled = |messages: &[SharedMessage]| -> Result<Duration> {
        let request = ChatRequest::new(messages.to_vec(), ToolSpecs::default());
        let started = Instant::now();
        let body = client.request_body(&request)?;
        let took = started.elapsed();
        ensure!(body.len() > 10_000_000);
        Ok(took)
    };
    assembled(&messages)?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        messages.push(message("One more.".to_owned()));
        times.push(assembled(&messages)?.as_secs_f64() * 1e3);
    }
    Ok(median(&mut times))
}

/// Token bucket of the rate-limited server.
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn answer(&mut self) -> Turn {
        let now = Instant::now();
        let passed = now.duration_since(self.at).as_secs_f64();
        (self.level, self.at) = ((self.level + passed * RATE).min(BURST), now);
        let turn = Turn::text("Done.");
        if self.level >= 1.0 {
            self.level -= 1.0;
            return turn;
        }
        let wait = (1.0 - self.level) / RATE * 1e3;
        let busy = Reply::error(429).header("retry-after-ms", &wait.ceil().to_string());
        turn.fault_always(Fault::Reply(busy))
    }
}

/// Runs many agents against a rate-limited server; prints the attempts per request and the share of
/// the limit that was used.
pub(crate) fn run_limited() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let state = Arc::new(Mutex::new((
            0usize,
            Bucket {
                level: BURST,
                at: Instant::now(),
            },
        )));
        let bucket = Arc::clone(&state);
        let answer = move |_: &Request| {
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.0 += 1;
            bucket.1.answer()
        };
        let script = ServerOptions::new(Script::new().then_with(answer)).without_record();
        let server = ScriptedServer::start(script).await?;
        let client = ChatClient::builder("bench")
            .base_url(server.url())
            .build()?;
        let started = Instant::now();
        try_join_all((0..AGENTS).map(async |agent| {
            for turn in 0..TURNS {
                let message = Message::user(format!("{agent}: {turn}"));
                let request = ChatRequest::new(vec![message.into()], ToolSpecs::default());
                client.complete(request).await?;
            }
            anyhow::Ok(())
        }))
        .await?;
        let seconds = started.elapsed().as_secs_f64();
        let least = (AGENTS * TURNS) as f64;
        let attempts = state.lock().map_err(|_| anyhow!("the server panicked"))?.0;
        let used = (least - BURST) / RATE / seconds;
        println!(
            "{}",
            json!({"attempts": attempts as f64 / least, "used": used})
        );
        Ok(())
    })
}

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let mut rates: Vec<f64> = (0..REPEATS).map(|_| events()).collect::<Result<_>>()?;
    let goal = (500.0, f64::INFINITY);
    report.between(
        "events of a model's stream parsed",
        median(&mut rates),
        "MB/s",
        goal,
    );
    let what = "request of 10 MB assembled, one message new";
    report.at_most(what, assembly()?, "ms", 2.0);
    let limited: Value = run_part(&["limited-agents"])?;
    let number = |name: &str| limited[name].as_f64().context("no number");
    let what = "200 agents under an unannounced limit: attempts";
    report.at_most(what, number("attempts")?, "×", 1.5);
    let what = "the same: share of the limit used";
    report.between(what, number("used")?, "×", (0.9, f64::INFINITY));
    Ok(())
}
