//! Text and live lines for the events of a run. Pure: clock and width are arguments.

use std::time::Duration;

use cantle::core::event::EventKind;
use cantle::core::usage::TokenUsage;

use super::calls::CallsView;
use super::isolation::{enforcement, isolation};
use super::stream::{ReasoningStream, TextStream};
use super::style::Style;
use crate::text::{add_costs, clean, clock, dollars, duration, one_line, plural, tokens};

/// Lines of the task that are displayed.
const TASK_LINES: usize = 6;

/// The states of the sign that something works, and how long each is displayed.
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
pub(super) const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

/// Lines of a summary that are displayed.
const SUMMARY_LINES: usize = 6;

/// The state of a displayed run.
#[derive(Debug, Default)]
pub(super) struct RunView {
    turn: u32,
    max_turns: u32,
    usage: TokenUsage,
    estimated: bool,
    /// Costs of model calls, as far as they are known.
    cost_usd: Option<f64>,
    has_list_prices: bool,
    /// The start of the current model call.
    model_call_since: Option<Duration>,
    /// The start of the next attempt at it.
    next_attempt: Option<Duration>,
    text: TextStream,
    reasoning: ReasoningStream,
    calls: CallsView,
    /// Whether any text was displayed.
    has_output: bool,
}

impl RunView {
    /// Appends the text that displays an event to `out`. `now` is the time since the start.
    pub(super) fn event(
        &mut self,
        event: &EventKind,
        now: Duration,
        style: Style,
        out: &mut String,
    ) {
        let lines = match event {
            EventKind::RunStarted { max_turns, .. } => {
                self.max_turns = *max_turns;
                header(event, style)
            }
            EventKind::Warning { message } => {
                vec![format!("{} {}", style.paint.yellow("!"), one_line(message))]
            }
            EventKind::TurnStarted { turn } => {
                self.turn = *turn;
                (self.model_call_since, self.next_attempt) = (Some(now), None);
                return;
            }
            EventKind::TextDelta { text } if style.is_live() => self.text(text, style),
            EventKind::ReasoningDelta { text } => return self.reasoning.push(text),
            EventKind::ModelAnswered { text, .. } => {
                self.model_call_since = None;
                // Streamed text was displayed already.
                let text = if self.text.is_empty() { text } else { "" };
                let mut lines = self.text(text, style);
                lines.extend(self.text.end(style));
                lines
            }
            EventKind::ModelRetry {
                attempt,
                after,
                reason,
                ..
            } => {
                self.next_attempt = Some(now + *after);
                let mut lines = self.reasoning.end(style);
                let interrupted = if self.text.is_empty() {
                    ""
                } else {
                    lines.extend(self.text.end(style));
                    "the answer above was interrupted and discarded: "
                };
                let (reason, after) = (one_line(reason), duration(*after));
                let text = format!("{interrupted}{reason}; attempt {attempt} in {after}");
                lines.extend(note(&text, style));
                lines
            }
            EventKind::TurnDropped { turn } => note(
                &format!("the conversation exceeded the context window: turn {turn} was dropped"),
                style,
            ),
            EventKind::HistorySummarized { replaced, text, .. } => {
                let mut lines = note(
                    &format!(
                        "the conversation filled the context window: {replaced} messages were summarized"
                    ),
                    style,
                );
                let summary = style.fold(&clean(text), SUMMARY_LINES, 0);
                let summary = summary
                    .iter()
                    .map(|line| style.paint.dim(&format!("  │ {line}")));
                lines.extend(summary);
                lines
            }
            EventKind::RunResumed { turns, .. } => {
                let turns = plural(u64::from(*turns), "turn", "turns");
                note(&format!("resumed after {turns}"), style)
            }
            EventKind::ApprovalRequested { tool, .. } => {
                note(&format!("{} needs approval", one_line(tool)), style)
            }
            EventKind::ToolStarted { .. } => self.calls.started(event, now, style),
            EventKind::ToolOutputDelta { call_id, text } => {
                return self.calls.output(call_id, text);
            }
            EventKind::ToolFinished { .. } => self.calls.finished(event, style),
            EventKind::UserMessage { text } if style.verbose => {
                let text = format!("message to the model: {}", one_line(text));
                vec![String::new(), style.paint.dim(&text)]
            }
            EventKind::RunFinished { .. } => {
                self.calls = CallsView::default();
                self.model_call_since = None;
                let mut lines = self.reasoning.end(style);
                lines.extend(self.text.end(style));
                lines
            }
            _ => return,
        };
        if !lines.is_empty() && !matches!(event, EventKind::ToolStarted { .. }) {
            self.calls.interrupted();
        }
        for line in lines {
            // No empty line at the start.
            if self.has_output || !line.is_empty() {
                self.has_output = true;
                out.push_str(&line);
                out.push('\n');
            }
        }
    }

    /// Counts the tokens and the cost in an event of the run or of a sub-agent.
    pub(super) fn count(&mut self, event: &EventKind) {
        let (usage, cost_usd) = match event {
            EventKind::ModelAnswered {
                usage,
                usage_estimated,
                cost_usd,
                list_price_date,
                ..
            } => {
                self.estimated |= usage_estimated;
                self.has_list_prices |= list_price_date.is_some();
                (*usage, *cost_usd)
            }
            EventKind::ModelRetry {
                usage, cost_usd, ..
            } => {
                self.estimated |= usage.total() > 0;
                (*usage, *cost_usd)
            }
            EventKind::HistorySummarized {
                usage,
                usage_estimated,
                cost_usd,
                ..
            } => {
                self.estimated |= usage_estimated;
                (*usage, *cost_usd)
            }
            // Those of earlier processes.
            EventKind::RunResumed { ledger, .. } => {
                let estimated = ledger.estimated_usage();
                self.estimated |= estimated.total() > 0;
                self.has_list_prices |= ledger.costs().list_price_usd.is_some();
                (ledger.reported_usage() + estimated, ledger.cost_usd())
            }
            _ => return,
        };
        self.usage += usage;
        self.cost_usd = add_costs(self.cost_usd, cost_usd);
    }

    /// Adds text of the model, which ends its reasoning.
    fn text(&mut self, text: &str, style: Style) -> Vec<String> {
        let mut lines = self.reasoning.end(style);
        lines.extend(self.text.push(text, style));
        lines
    }

    /// Returns the lines that are redrawn in place.
    pub(super) fn live_lines(&self, now: Duration, style: Style) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.text.line().is_empty() {
            lines.push(self.text.line().to_owned());
        } else if let Some(reasoning) = self.reasoning.tail() {
            lines.push(style.paint.dim(&format!("thinking: {reasoning}")));
        }
        lines.extend(self.calls.live_lines(style));
        if self.max_turns > 0 {
            lines.push(style.paint.dim(&self.status(now)));
        }
        lines
    }

    fn status(&self, now: Duration) -> String {
        let (turn, max_turns) = (self.turn.max(1), self.max_turns);
        let works = self.model_call_since.is_some() || self.calls.activity(now).is_some();
        let frame = now.as_millis() / SPINNER_INTERVAL.as_millis() % SPINNER.len() as u128;
        let frame = SPINNER.get(frame as usize).filter(|_| works);
        let spinner = frame.map_or_else(String::new, |frame| format!("{frame} "));
        let tokens = tokens(&self.usage, self.estimated);
        let mut parts = vec![format!("{spinner}turn {turn}/{max_turns}"), tokens];
        if let Some(cost) = self.cost_usd {
            let about = if self.estimated { "~" } else { "" };
            let list = match self.has_list_prices {
                true => " (list price)",
                false => "",
            };
            parts.push(format!("{about}{}{list}", dollars(cost)));
        }
        parts.push(clock(now));
        if let Some(left) = self.next_attempt.and_then(|at| at.checked_sub(now)) {
            parts.push(format!("asking the model again in {}", clock(left)));
        } else if let Some(since) = self.model_call_since {
            let elapsed = clock(now.saturating_sub(since));
            parts.push(format!("waiting for the model {elapsed}"));
        }
        parts.extend(self.calls.activity(now));
        parts.join(" · ")
    }
}

fn header(event: &EventKind, style: Style) -> Vec<String> {
    let EventKind::RunStarted {
        model,
        task,
        sandbox,
        input_files,
        ..
    } = event
    else {
        return Vec::new();
    };
    let mut facts = format!("· model {}", one_line(model));
    if !input_files.is_empty() {
        let files = plural(input_files.len() as u64, "input file", "input files");
        facts.push_str(&format!(" · {files}"));
    }
    let mut lines = vec![format!(
        "{} {}",
        style.paint.bold("cantle"),
        style.paint.dim(&facts)
    )];
    let task = style.fold(&clean(task), TASK_LINES, 0);
    lines.extend(row("task", &task, style));
    let sandbox_text = sandbox.as_ref().map_or("none".to_owned(), isolation);
    lines.extend(row("sandbox", &[sandbox_text], style));
    let enforced = sandbox.as_ref().and_then(enforcement);
    if let Some(enforced) = enforced.filter(|_| style.verbose) {
        lines.extend(row("enforced", &[enforced], style));
    }
    lines
}

/// Formats lines beside a name.
fn row(name: &str, text: &[String], style: Style) -> Vec<String> {
    const COLUMNS: usize = 10;
    let wrapped = text.iter().flat_map(|line| style.wrap(line, COLUMNS));
    let title = style.paint.bold(name);
    let first = format!("{title}{:1$}", "", COLUMNS - name.len());
    let leads = std::iter::once(first).chain(std::iter::repeat(" ".repeat(COLUMNS)));
    leads
        .zip(wrapped)
        .map(|(lead, line)| format!("{lead}{}", line.trim_end()))
        .collect()
}

fn note(text: &str, style: Style) -> Vec<String> {
    vec![String::new(), style.paint.yellow(&format!("! {text}"))]
}

#[cfg(test)]
mod tests;
