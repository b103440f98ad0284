//! A run as one self-contained page.
//!
//! The summary is HTML; the timeline is data that the page's script reads. All texts of a run are hostile: here they are
//! escaped, in the data they are compressed and encoded, and the script makes text nodes only. The content security
//! policy allows the page's own script and style, by their digests, and nothing else.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle::agent::KeptStatus;
use cantle::core::escape::{for_decision, shorten};
use cantle::core::event::{EventKind, RunStatus};
use cantle::core::ledger::Ledger;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::markup::escaped;
use super::{FilePatch, RunRecord, chart, page_data, status_name};
use crate::display::{CommandResult, isolation, status_text};
use crate::text::{count, dollars, duration, one_line, plural, size};
use crate::transcript::final_answer;
use crate::web;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Maximum number of characters of the page's heading.
const MAX_HEADING_CHARS: usize = 120;

/// The data of the timeline.
#[derive(Serialize)]
struct PageData {
    events: Vec<Value>,
    changes: Vec<FilePatch>,
}

/// Returns the page of a run.
///
/// # Errors
/// If the changes of the run can't be read.
pub(super) fn page(record: &RunRecord) -> anyhow::Result<String> {
    let mut images = record.images();
    let of_task = images.remove(&record.run.run.to_string());
    let data = PageData {
        events: page_data::timeline(&record.events, images)?,
        changes: record.patches()?,
    };
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&serde_json::to_vec(&data)?)?;
    let data = STANDARD.encode(encoder.finish().context("failed to compress the events")?);
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; \
         form-action 'none'",
        STANDARD.encode(Sha256::digest(SCRIPT)),
        STANDARD.encode(Sha256::digest(STYLE)),
    );
    let heading = heading(&record.run.task);
    let summary = record.summary(&of_task.unwrap_or_default());
    let unknown = record.redactor.unknown().map(|names| {
        let names = escaped(&names);
        format!("; those of {names} were not known, and are not redacted")
    });
    let mut page = String::with_capacity(data.len() + (64 << 10));
    // The template is read once, so that no text of the run is taken for a part of it.
    for piece in PAGE.split("{{") {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        page.push_str(match name {
            "policy" => &policy,
            "style" => STYLE,
            "script" => SCRIPT,
            "title" => &heading,
            "summary" => &summary,
            "unknown" => unknown.as_deref().unwrap_or_default(),
            "data" => &data,
            _ => "",
        });
        page.push_str(rest);
    }
    Ok(page)
}

fn heading(task: &str) -> String {
    let first = task.lines().find(|line| !line.trim().is_empty());
    escaped(&shorten(
        &one_line(first.unwrap_or("Run")),
        MAX_HEADING_CHARS,
    ))
}

impl RunRecord {
    /// Returns the part of the page that needs no script.
    fn summary(&self, images: &[String]) -> String {
        let mut html = String::new();
        self.header(&mut html);
        self.tiles(&mut html);
        self.texts(&mut html, images);
        self.files(&mut html);
        self.sub_agents(&mut html);
        if let Some(svg) = chart::svg(self) {
            let _ = write!(
                html,
                "<section class=\"panel\" id=\"chart\"><h2>Time and spending</h2>{svg}</section>"
            );
        }
        html
    }

    fn header(&self, html: &mut String) {
        let run = &self.run;
        let (tone, status) = status(run.status);
        let _ = write!(
            html,
            "<header><p class=\"crumb\"><span class=\"badge {tone}\">{status}</span> <span>{}</span> \
             <span>run <code>{}</code></span></p><h1>{}</h1>",
            escaped(&one_line(&run.model)),
            run.run,
            heading(&run.task),
        );
        let mut started = self.events.iter().filter_map(|event| match &event.kind {
            EventKind::RunStarted { sandbox, tools, .. } => Some((sandbox.as_ref(), tools)),
            _ => None,
        });
        let first = started.clone().next();
        let sandbox = first.and_then(|(sandbox, _)| sandbox);
        let sandbox = sandbox.map(|info| format!("Sandbox: {}", isolation(info)));
        // Data can also leave through a sub-agent.
        let notice = started.find_map(|(_, tools)| web::notice(tools));
        for line in sandbox.into_iter().chain(notice.map(str::to_owned)) {
            let _ = write!(html, "<p class=\"muted\">{}</p>", escaped(&line));
        }
        html.push_str("</header>");
    }

    fn tiles(&self, html: &mut String) {
        let run = &self.run;
        let (mut calls, mut failures) = (0, 0);
        for event in &self.events {
            if let EventKind::ToolFinished {
                success, result, ..
            } = &event.kind
            {
                calls += 1;
                let code = CommandResult::parse(result).and_then(|command| command.exit_code);
                failures += u64::from(!success || code.is_some_and(|code| code != "0"));
            }
        }
        let (_, status) = status(run.status);
        let mut tiles = vec![("Status", status, plural(run.turns.into(), "turn", "turns"))];
        let cost = run.cost_usd.map_or_else(|| "unknown".to_owned(), dollars);
        let list = run.list_price.as_ref();
        let list = list.map(|(part, date)| format!("{} at list prices of {date}", dollars(*part)));
        tiles.push(("Cost", cost, list.unwrap_or_default()));
        let end = self.end();
        let usage = end.map(|(_, ledger)| ledger.reported_usage() + ledger.estimated_usage());
        let usage = usage.map(|usage| {
            let (input, output) = (count(usage.input_total()), count(usage.output_total()));
            format!("{input} in · {output} out")
        });
        tiles.push(("Tokens", count(run.tokens), usage.unwrap_or_default()));
        let whole = run.latest.duration_since(run.begun).unwrap_or_default();
        let time = end.map_or(whole, |(time, _)| time);
        tiles.push(("Time", duration(time), String::new()));
        let failed = match failures {
            0 => "none failed".to_owned(),
            _ => format!("{failures} failed"),
        };
        tiles.push(("Tool calls", calls.to_string(), failed));
        html.push_str("<dl class=\"tiles\">");
        for (name, value, detail) in tiles {
            let _ = write!(
                html,
                "<div><dt>{name}</dt><dd>{}</dd><dd class=\"muted\">{}</dd></div>",
                escaped(&value),
                escaped(&detail)
            );
        }
        html.push_str("</dl>");
    }

    /// Returns time and ledger of the run's end.
    fn end(&self) -> Option<(std::time::Duration, &Ledger)> {
        let last = self.events.iter().rev();
        last.filter(|event| event.depth == 0)
            .find_map(|event| match &event.kind {
                EventKind::RunFinished {
                    duration, ledger, ..
                } => Some((*duration, ledger)),
                _ => None,
            })
    }

    /// Adds the task with its images, the answer and the error.
    fn texts(&self, html: &mut String, images: &[String]) {
        let run = &self.run;
        // A task of one short line is the heading already.
        if heading(&run.task) != escaped(run.task.trim()) {
            text(html, "Task", "task", &run.task);
        }
        if !images.is_empty() {
            html.push_str("<section class=\"panel\" id=\"images\"><h2>Images of the task</h2>");
            for (url, number) in images.iter().zip(1..) {
                let url = escaped(url);
                let _ = write!(html, "<img src=\"{url}\" alt=\"Image {number}\">");
            }
            html.push_str("</section>");
        }
        if let Some(answer) = final_answer(&self.events) {
            text(html, "Answer", "answer", &answer);
        }
        if let Some(error) = &run.error {
            text(html, "Error", "error", error);
        }
    }

    fn files(&self, html: &mut String) {
        let mut rows = String::new();
        for event in self.events.iter().filter(|event| event.depth == 0) {
            let (path, note) = match &event.kind {
                EventKind::OutputSaved {
                    source,
                    path,
                    size_bytes,
                } => {
                    let path = if path.is_empty() { source } else { path };
                    (path, size(*size_bytes))
                }
                EventKind::OutputRefused { source, reason } => {
                    (source, format!("refused: {}", one_line(reason)))
                }
                _ => continue,
            };
            let _ = write!(
                rows,
                "<tr><td><code>{}</code></td><td>{}</td></tr>",
                escaped(&for_decision(path)),
                escaped(&note)
            );
        }
        if !rows.is_empty() {
            let _ = write!(
                html,
                "<section class=\"panel\" id=\"files\"><h2>Files</h2><table>{rows}</table></section>"
            );
        }
    }

    fn sub_agents(&self, html: &mut String) {
        let mut rows = String::new();
        let mut names = std::collections::HashMap::new();
        for event in self.events.iter().filter(|event| event.depth > 0) {
            match &event.kind {
                EventKind::RunStarted { agent, model, .. } => {
                    names.insert(event.run, (agent, model));
                }
                EventKind::RunFinished {
                    status,
                    turns,
                    duration: took,
                    ledger,
                    ..
                } => {
                    let Some((agent, model)) = names.get(&event.run) else {
                        continue;
                    };
                    let usage = ledger.reported_usage() + ledger.estimated_usage();
                    let cost = ledger.cost_usd().map_or_else(String::new, dollars);
                    let indent = "› ".repeat(usize::try_from(event.depth).unwrap_or_default());
                    let _ = write!(
                        rows,
                        "<tr><td>{indent}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} tokens</td><td>{}</td>\
                         <td>{cost}</td></tr>",
                        escaped(&one_line(agent)),
                        escaped(&one_line(model)),
                        status_text(*status),
                        plural(u64::from(*turns), "turn", "turns"),
                        count(usage.total()),
                        duration(*took),
                    );
                }
                _ => {}
            }
        }
        if !rows.is_empty() {
            let _ = write!(
                html,
                "<section class=\"panel\" id=\"agents\"><h2>Sub-agents</h2><table>{rows}</table></section>"
            );
        }
    }
}

fn text(html: &mut String, name: &str, id: &str, text: &str) {
    let _ = write!(
        html,
        "<section class=\"panel\" id=\"{id}\"><h2>{name}</h2><div class=\"prose\">{}</div></section>",
        escaped(text.trim())
    );
}

/// Returns the tone and the name of a status.
fn status(status: KeptStatus) -> (&'static str, String) {
    let tone = match status {
        KeptStatus::Running => "busy",
        KeptStatus::Ended(RunStatus::Finished | RunStatus::AnsweredInText) => "good",
        KeptStatus::Interrupted
        | KeptStatus::Ended(RunStatus::LimitReached | RunStatus::Cancelled) => "warn",
        _ => "bad",
    };
    let name = status_name(status).replace('_', " ");
    let (first, rest) = name.split_at(1);
    (tone, first.to_uppercase() + rest)
}
