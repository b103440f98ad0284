//! How the events of a run look. Pure: events in, text and live lines out; clock and width are given.

use std::time::Duration;

use cantle::core::event::EventKind;
use cantle::core::policy::Network;
use cantle::core::usage::TokenUsage;

use super::boundary::{boundary, enforcement};
use super::calls::Calls;
use super::flow::{Flow, Thought};
use super::look::Look;
use super::text::{clean, clock, duration, one_line, plural, tokens};

/// Lines of the task that are shown.
const TASK_LINES: usize = 6;

/// What is known of a run that is being watched.
#[derive(Debug, Default)]
pub(super) struct View {
    /// What commands may reach, which no event says.
    network: Option<Network>,
    turn: u32,
    max_turns: u32,
    usage: TokenUsage,
    estimated: bool,
    /// When the model was asked, while it has not answered.
    asked: Option<Duration>,
    text: Flow,
    thought: Thought,
    calls: Calls,
    /// Something has been shown.
    begun: bool,
}

impl View {
    pub(super) fn new(network: Option<Network>) -> Self {
        Self {
            network,
            ..Self::default()
        }
    }

    /// Takes an event, and adds what is to be seen of it to `out`. `now` is the time since the start.
    pub(super) fn event(&mut self, event: &EventKind, now: Duration, look: Look, out: &mut String) {
        let lines = match event {
            EventKind::RunStarted { max_turns, .. } => {
                self.max_turns = *max_turns;
                header(event, self.network.as_ref(), look)
            }
            EventKind::Warning { message } => {
                vec![format!("{} {}", look.paint.yellow("!"), one_line(message))]
            }
            EventKind::TurnStarted { turn } => {
                self.turn = *turn;
                self.asked = Some(now);
                return;
            }
            EventKind::TextDelta { text } if look.is_live() => self.text(text, look),
            EventKind::ReasoningDelta { text } => return self.thought.push(text),
            EventKind::ModelAnswered {
                text,
                usage,
                usage_estimated,
                ..
            } => {
                self.asked = None;
                self.usage += *usage;
                self.estimated |= usage_estimated;
                // What was streamed has been shown.
                let text = if self.text.is_empty() { text } else { "" };
                let mut lines = self.text(text, look);
                lines.extend(self.text.end(look));
                lines
            }
            EventKind::ModelRetry {
                attempt,
                after,
                reason,
            } => {
                let (reason, after) = (one_line(reason), duration(*after));
                note(&format!("{reason}; attempt {attempt} in {after}"), look)
            }
            EventKind::TurnDropped { turn } => note(
                &format!("the conversation outgrew the context window: turn {turn} was taken back"),
                look,
            ),
            EventKind::HistorySummarized { replaced } => note(
                &format!(
                    "the conversation outgrew the context window: {replaced} messages were summarized"
                ),
                look,
            ),
            EventKind::RunResumed { turns } => {
                let turns = plural(u64::from(*turns), "turn", "turns");
                note(&format!("goes on after {turns}"), look)
            }
            EventKind::ApprovalRequested { tool, .. } => {
                note(&format!("{} waits for consent", one_line(tool)), look)
            }
            EventKind::ToolStarted { .. } => self.calls.started(event, now, look),
            EventKind::ToolOutputDelta { call_id, text } => {
                return self.calls.output(call_id, text);
            }
            EventKind::ToolFinished { .. } => self.calls.finished(event, look),
            EventKind::UserMessage { text } if look.verbose => {
                let text = format!("to the model: {}", one_line(text));
                vec![String::new(), look.paint.dim(&text)]
            }
            EventKind::RunFinished { .. } => {
                self.calls = Calls::default();
                self.asked = None;
                let mut lines = self.thought.end(look);
                lines.extend(self.text.end(look));
                lines
            }
            _ => return,
        };
        if !lines.is_empty() && !matches!(event, EventKind::ToolStarted { .. }) {
            self.calls.interrupted();
        }
        for line in lines {
            // Nothing needs a gap before it at the very start.
            if self.begun || !line.is_empty() {
                self.begun = true;
                out.push_str(&line);
                out.push('\n');
            }
        }
    }

    /// A piece of the model's text, and before it what the model thought.
    fn text(&mut self, text: &str, look: Look) -> Vec<String> {
        let mut lines = self.thought.end(look);
        lines.extend(self.text.push(text, look));
        lines
    }

    /// The lines that are redrawn in place.
    pub(super) fn live_lines(&self, now: Duration, look: Look) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.text.line().is_empty() {
            lines.push(self.text.line().to_owned());
        } else if let Some(thought) = self.thought.last_words() {
            lines.push(look.paint.dim(&format!("thinking: {thought}")));
        }
        lines.extend(self.calls.live_lines(look));
        if self.max_turns > 0 {
            lines.push(look.paint.dim(&self.status(now)));
        }
        lines
    }

    fn status(&self, now: Duration) -> String {
        let (turn, max_turns) = (self.turn.max(1), self.max_turns);
        let tokens = tokens(&self.usage, self.estimated);
        let mut parts = vec![format!("turn {turn}/{max_turns}"), tokens, clock(now)];
        if let Some(asked) = self.asked {
            let since = clock(now.saturating_sub(asked));
            parts.push(format!("asking the model {since}"));
        }
        parts.extend(self.calls.activity(now));
        parts.join(" · ")
    }
}

fn header(event: &EventKind, network: Option<&Network>, look: Look) -> Vec<String> {
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
        look.paint.bold("cantle"),
        look.paint.dim(&facts)
    )];
    let task = look.fold(&clean(task), TASK_LINES, 0);
    lines.extend(row("task", &task, look));
    let place = sandbox
        .as_ref()
        .map_or("none".to_owned(), |info| boundary(info, network));
    lines.extend(row("sandbox", &[place], look));
    let enforced = sandbox.as_ref().and_then(enforcement);
    if let Some(enforced) = enforced.filter(|_| look.verbose) {
        lines.extend(row("enforced", &[enforced], look));
    }
    lines
}

/// Lines beside a name.
fn row(name: &str, text: &[String], look: Look) -> Vec<String> {
    const COLUMNS: usize = 10;
    let wrapped = text.iter().flat_map(|line| look.wrap(line, COLUMNS));
    let title = look.paint.bold(name);
    let first = format!("{title}{:1$}", "", COLUMNS - name.len());
    let leads = std::iter::once(first).chain(std::iter::repeat(" ".repeat(COLUMNS)));
    leads
        .zip(wrapped)
        .map(|(lead, line)| format!("{lead}{}", line.trim_end()))
        .collect()
}

fn note(text: &str, look: Look) -> Vec<String> {
    vec![String::new(), look.paint.yellow(&format!("! {text}"))]
}

#[cfg(test)]
mod tests;
