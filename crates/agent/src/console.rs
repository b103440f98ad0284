//! A logger of events for programs.

use std::io::{self, Stderr, Write};

use cantle_core::escape::{for_decision, for_display, shorten};
use cantle_core::event::{Event, EventKind, RunStatus};

use crate::rules::Spending;
use crate::run::{Outcome, Run};

/// Maximum number of characters of arguments, and of a result, on a line.
const MAX_CHARS: usize = 160;

/// Writes the events of runs as lines of text: answers, calls with their results, warnings, files and costs.
///
/// Sub-agents are indented. Control characters are escaped. Streamed pieces of text are not written.
///
/// ```no_run
/// # async fn run(session: cantle_agent::Session) -> Result<(), Box<dyn std::error::Error>> {
/// use cantle_agent::ConsoleLogger;
///
/// let run = session.run("Count the words in data.txt")?;
/// let outcome = ConsoleLogger::stderr().outcome(run).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ConsoleLogger<W> {
    writer: W,
}

impl ConsoleLogger<Stderr> {
    /// A logger to standard error.
    pub fn stderr() -> Self {
        Self::new(io::stderr())
    }
}

impl<W: Write> ConsoleLogger<W> {
    /// A logger to this writer. Writing blocks.
    pub fn new(writer: W) -> Self {
        Self { writer }
    }

    /// Follows a run to its end, and returns its outcome. Stops writing, but not the run, when the writer fails.
    pub async fn outcome(&mut self, mut run: Run) -> Outcome {
        while let Some(event) = run.next().await {
            if self.log(&event).is_err() {
                break;
            }
        }
        run.outcome().await
    }

    /// Writes the lines of an event.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn log(&mut self, event: &Event) -> io::Result<()> {
        let Some(text) = describe(&event.kind) else {
            return Ok(());
        };
        let depth = usize::try_from(event.depth).unwrap_or_default();
        let indent = "    ".repeat(depth.min(8));
        for line in text.lines() {
            writeln!(self.writer, "{}", format!("{indent}{line}").trim_end())?;
        }
        self.writer.flush()
    }
}

/// Returns the text of an event; `None` for those that are not written.
fn describe(event: &EventKind) -> Option<String> {
    Some(match event {
        EventKind::RunStarted {
            agent, model, task, ..
        } => format!(
            "{} ({}): {}",
            one_line(agent),
            one_line(model),
            one_line(task)
        ),
        EventKind::Warning { message } => format!("warning: {}", one_line(message)),
        EventKind::ModelAnswered {
            turn,
            text,
            usage,
            cost_usd,
            duration,
            ..
        } => {
            let cost = cost_usd.map_or_else(String::new, |cost| format!(", ${cost:.4}"));
            let (input, output) = (usage.input_total(), usage.output_total());
            let seconds = duration.as_secs_f64();
            let text = for_display(text.trim());
            format!("turn {turn}: {input} tokens in, {output} out{cost}, {seconds:.1} s\n{text}")
        }
        EventKind::ModelRetry { reason, after, .. } => {
            let seconds = after.as_secs_f64();
            format!("{}; next attempt in {seconds:.1} s", one_line(reason))
        }
        EventKind::HistorySummarized { replaced, .. } => {
            format!("{replaced} messages were summarized")
        }
        EventKind::TurnDropped { turn } => format!("turn {turn} was dropped: the context is full"),
        EventKind::ToolStarted {
            tool, arguments, ..
        } => format!("> {} {}", one_line(tool), one_line(&arguments.to_string())),
        EventKind::ToolFinished {
            tool,
            result,
            success,
            duration,
            ..
        } => {
            let end = if *success { "done" } else { "failed" };
            let (tool, result) = (one_line(tool), one_line(result));
            format!(
                "< {tool} {end} in {:.1} s: {result}",
                duration.as_secs_f64()
            )
        }
        EventKind::OutputSaved {
            path, size_bytes, ..
        } => {
            format!("saved {} ({size_bytes} bytes)", for_decision(path))
        }
        EventKind::OutputRefused { source, reason } => {
            format!("refused {}: {}", for_decision(source), one_line(reason))
        }
        EventKind::RunFinished {
            status,
            error,
            turns,
            ledger,
            ..
        } => {
            let Spending {
                tokens, cost_usd, ..
            } = ledger.into();
            let cost = cost_usd.map_or_else(String::new, |cost| format!(", ${cost:.4}"));
            let error = error.as_ref().map(|error| format!(": {}", one_line(error)));
            let end = status_name(*status);
            format!(
                "{end} after {turns} turns, {tokens} tokens{cost}{}",
                error.unwrap_or_default()
            )
        }
        _ => return None,
    })
}

fn status_name(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Finished => "finished",
        RunStatus::AnsweredInText => "answered in text",
        RunStatus::LimitReached => "a limit was reached",
        RunStatus::Cancelled => "cancelled",
        RunStatus::ModelFailed => "the model failed",
        RunStatus::SandboxFailed => "the sandbox failed",
        _ => "an internal error occurred",
    }
}

/// Returns the start of a text on one line.
fn one_line(text: &str) -> String {
    let line = for_decision(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    shorten(&line, MAX_CHARS)
}
