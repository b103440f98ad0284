//! The transcript of a run as Markdown, from its events.

use std::fmt::Write as _;

use cantle::core::escape::{for_decision, for_display};
use cantle::core::event::{Event, EventKind, Finish, RunStatus};
use serde_json::Value;

use crate::display::{CommandResult, isolation, status_text};
use crate::text::{clean, count, dollars, duration, one_line, plural, size, tokens};
use crate::web;

/// Formats the events of a run and its sub-agents.
///
/// Output and arguments are in code blocks that they can't end; the model's text is Markdown of its own.
pub(crate) fn markdown(events: &[Event]) -> String {
    let mut transcript = Transcript::default();
    for event in events {
        transcript.event(event);
    }
    transcript.text
}

#[derive(Default)]
struct Transcript {
    text: String,
    /// Names of the agents from the run down to the one whose event is formatted.
    agents: Vec<String>,
}

impl Transcript {
    fn event(&mut self, event: &Event) {
        let depth = usize::try_from(event.depth).unwrap_or_default();
        self.agents.truncate(depth + 1);
        match &event.kind {
            EventKind::RunStarted { agent, .. } => {
                self.agents.resize(depth, String::new());
                self.agents.push(one_line(agent));
                self.started(event);
            }
            EventKind::Warning { message } => self.note(&format!("Warning: {}", one_line(message))),
            EventKind::ModelAnswered {
                turn,
                text,
                usage,
                usage_estimated,
                cost_usd,
                duration: took,
                ..
            } => {
                let mut facts = vec![duration(*took), tokens(usage, *usage_estimated)];
                facts.extend(cost_usd.map(dollars));
                self.heading(&format!("Turn {turn}"));
                self.note(&facts.join(" · "));
                self.paragraph(text);
            }
            EventKind::ModelRetry {
                reason, discarded, ..
            } => {
                self.note(&format!("An attempt failed: {}", one_line(reason)));
                if !discarded.is_empty() {
                    self.note("Its text, which was discarded:");
                    self.block("", discarded);
                }
            }
            EventKind::TurnDropped { turn } => self.note(&format!(
                "The conversation exceeded the context window: turn {turn} was dropped."
            )),
            EventKind::HistorySummarized { replaced, text, .. } => {
                self.heading("Summary");
                self.note(&format!("It replaces {replaced} messages."));
                self.paragraph(text);
            }
            EventKind::RunResumed { turns, .. } => {
                let turns = plural(u64::from(*turns), "turn", "turns");
                self.note(&format!("Resumed after {turns}."));
            }
            EventKind::ToolStarted {
                tool, arguments, ..
            } => self.call(tool, arguments),
            EventKind::ToolFinished { .. } => self.result(&event.kind),
            EventKind::UserMessage { text } => {
                self.note("To the model:");
                self.quote(text);
            }
            EventKind::OutputSaved {
                source,
                path,
                size_bytes,
            } => {
                let path = if path.is_empty() { source } else { path };
                self.note(&format!("Saved {} ({})", code(path), size(*size_bytes)));
            }
            EventKind::OutputRefused { source, reason } => {
                self.note(&format!("Refused {}: {}", code(source), one_line(reason)));
            }
            EventKind::RunFinished { .. } => self.finished(&event.kind),
            _ => {}
        }
    }

    fn started(&mut self, event: &Event) {
        let EventKind::RunStarted {
            model,
            task,
            tools,
            sandbox,
            ..
        } = &event.kind
        else {
            return;
        };
        match event.depth {
            0 => {
                let _ = writeln!(self.text, "# Run {}\n", event.run);
            }
            _ => self.heading("Start"),
        }
        self.note(&format!("Model: {}", code(model)));
        if !tools.is_empty() {
            let tools: Vec<_> = tools.iter().map(|tool| code(tool)).collect();
            self.note(&format!("Tools: {}", tools.join(", ")));
        }
        if let Some(info) = sandbox {
            self.note(&format!("Sandbox: {}", isolation(info)));
        }
        if let Some(notice) = web::notice(tools) {
            self.note(notice);
        }
        self.note("Task:");
        self.quote(task);
    }

    fn call(&mut self, tool: &str, arguments: &Value) {
        self.note(&format!("Call of {}:", code(tool)));
        match arguments.get("cmd").and_then(Value::as_str) {
            Some(command) => self.block("sh", command),
            None => self.block("json", &format!("{arguments:#}")),
        }
    }

    fn result(&mut self, event: &EventKind) {
        let EventKind::ToolFinished {
            tool,
            result,
            success,
            arguments,
            metadata,
            duration: took,
            ..
        } = event
        else {
            return;
        };
        if let Some(arguments) = arguments {
            self.call(tool, arguments);
        }
        let parsed = CommandResult::parse(result);
        let end = match (&parsed, arguments) {
            (_, Some(_)) => "not run".to_owned(),
            (Some(command), _) => match (command.exit_code, command.error_kind) {
                (Some(code), _) => format!("exit {}", one_line(code)),
                (None, kind) => one_line(kind.unwrap_or("failed")),
            },
            (None, _) if *success => "done".to_owned(),
            (None, _) => "failed".to_owned(),
        };
        let metadata = metadata.as_ref().map(serde_json::to_string);
        let metadata = metadata
            .and_then(Result::ok)
            .map(|it| format!(" · {}", code(&it)));
        let metadata = metadata.unwrap_or_default();
        self.note(&format!("Result: {end} · {}{metadata}", duration(*took)));
        let texts = match parsed {
            Some(command) => vec![command.stdout, command.stderr],
            None => vec![result.as_str()],
        };
        for text in texts.into_iter().filter(|text| !text.trim().is_empty()) {
            self.block("", text);
        }
    }

    fn finished(&mut self, event: &EventKind) {
        let EventKind::RunFinished {
            status: ended,
            finish,
            error,
            turns,
            duration: took,
            ledger,
        } = event
        else {
            return;
        };
        self.heading("End");
        let mut facts = vec![
            status_text(*ended).to_owned(),
            plural(u64::from(*turns), "turn", "turns"),
            duration(*took),
        ];
        let usage = ledger.reported_usage() + ledger.estimated_usage();
        facts.push(format!("{} tokens", count(usage.total())));
        facts.extend(ledger.cost_usd().map(dollars));
        self.note(&facts.join(" · "));
        for (model, speed) in ledger.output_tokens_per_second() {
            self.note(&format!("{}: {speed:.1} tokens/s", code(model)));
        }
        if let Some(error) = error {
            self.paragraph(error);
        }
        if let Some(finish) = finish {
            match answer(finish) {
                Some(text) => self.paragraph(text),
                None => self.block("json", &format!("{:#}", finish.params)),
            }
        }
    }

    fn heading(&mut self, text: &str) {
        let below = self.agents.get(1..).unwrap_or_default();
        let path: String = below.iter().map(|agent| format!("{agent} › ")).collect();
        let _ = writeln!(self.text, "## {path}{text}\n");
    }

    fn note(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}\n");
    }

    fn paragraph(&mut self, text: &str) {
        let text = clean(text);
        if !text.trim().is_empty() {
            let _ = writeln!(self.text, "{}\n", text.trim());
        }
    }

    fn quote(&mut self, text: &str) {
        for line in clean(text).trim().lines() {
            let _ = writeln!(self.text, "{}", format!("> {line}").trim_end());
        }
        self.text.push('\n');
    }

    /// A code block with a fence that is longer than any in the text.
    fn block(&mut self, language: &str, text: &str) {
        let text = for_display(text);
        let mut fence = "```".to_owned();
        while text.contains(&fence) {
            fence.push('`');
        }
        let text = text.trim_end_matches('\n');
        let _ = writeln!(self.text, "{fence}{language}\n{text}\n{fence}\n");
    }
}

/// Returns the answer of a finish call that consists of one.
fn answer(finish: &Finish) -> Option<&str> {
    finish.params.get("reason").and_then(Value::as_str)
}

/// Returns what a run ended with: the answer of its finish call, or else the call's parameters; or the last text of the
/// model, where that is the result.
pub(crate) fn final_answer(events: &[Event]) -> Option<String> {
    let (mut last_text, mut result) = (None, None);
    for event in events.iter().filter(|event| event.depth == 0) {
        match &event.kind {
            EventKind::ModelAnswered { text, .. } if !text.trim().is_empty() => {
                last_text = Some(text);
            }
            EventKind::RunFinished { status, finish, .. } => {
                result = match finish {
                    Some(finish) => Some(match answer(finish) {
                        Some(answer) => answer.to_owned(),
                        None => format!("{:#}", finish.params),
                    }),
                    None if *status == RunStatus::AnsweredInText => last_text.cloned(),
                    None => None,
                };
            }
            _ => {}
        }
    }
    result
}

/// Formats a text as inline code.
fn code(text: &str) -> String {
    format!("`{}`", for_decision(text).replace('`', "'"))
}
