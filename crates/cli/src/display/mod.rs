//! The display of a run, from its events.
//!
//! Progress goes to standard error, the result to standard output. On a terminal, the model's text is
//! streamed above a status line that is redrawn in place; elsewhere there are plain lines. With
//! `--json`, standard output contains the events as JSON lines and nothing else. A reader that goes
//! away (`| head`) or is slow does not stop the run.

mod calls;
mod command_result;
mod isolation;
mod markdown;
mod run_view;
mod screen;
mod stream;
mod style;
mod summary;

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use cantle::core::event::{Event, EventKind};
use cantle::core::ids::RunId;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stderr, Stdout};

pub(crate) use self::command_result::CommandResult;
pub(crate) use self::isolation::{enforced_by, enforcement, isolation, unenforced};
use self::markdown::Markdown;
use self::run_view::RunView;
use self::screen::Screen;
pub(crate) use self::style::Paint;
use self::style::Style;
pub(crate) use self::summary::{Summary, status_text};
use crate::args::DisplayArgs;
use crate::environment::variable;
use crate::text::{clean, fit_end, one_line};

/// How often [`Display::redraw`] has something new.
pub(crate) const REDRAW_INTERVAL: Duration = run_view::SPINNER_INTERVAL;

/// Displays a run.
#[derive(Debug)]
pub(crate) struct Display {
    mode: Mode,
    verbose: bool,
    pub(crate) paint: Paint,
    view: RunView,
    /// The running sub-agents.
    sub_agents: HashMap<RunId, RunView>,
    /// The run whose events were displayed.
    pub(crate) run: Option<RunId>,
    screen: Screen,
    /// The line that the user types meanwhile.
    input: String,
    started: Instant,
    stdout: Sink<Stdout>,
    stderr: Sink<Stderr>,
}

/// The display mode.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Progress on a terminal, redrawn in place.
    Live,
    /// Progress as plain lines.
    Plain,
    /// Only the result.
    Quiet,
    /// Events as JSON lines.
    Json,
}

impl Display {
    /// Creates the display of a run.
    pub(crate) fn new(args: DisplayArgs) -> Self {
        let dumb = variable("TERM").is_some_and(|term| term == "dumb");
        let mode = match args {
            DisplayArgs { json: true, .. } => Mode::Json,
            DisplayArgs { quiet: true, .. } => Mode::Quiet,
            _ if io::stderr().is_terminal() && !dumb => Mode::Live,
            _ => Mode::Plain,
        };
        Self {
            mode,
            verbose: args.verbose,
            paint: Paint {
                on: mode == Mode::Live && variable("NO_COLOR").is_none(),
            },
            view: RunView::default(),
            sub_agents: HashMap::new(),
            run: None,
            screen: Screen::default(),
            input: String::new(),
            started: Instant::now(),
            stdout: Sink::new(tokio::io::stdout()),
            stderr: Sink::new(tokio::io::stderr()),
        }
    }

    /// Returns whether lines are redrawn in place.
    pub(crate) fn is_live(&self) -> bool {
        self.mode == Mode::Live
    }

    /// Returns whether progress is displayed.
    fn shows_progress(&self) -> bool {
        matches!(self.mode, Mode::Live | Mode::Plain)
    }

    /// Displays events.
    pub(crate) async fn events(&mut self, events: &[Event]) {
        let own = events.iter().find(|event| event.depth == 0);
        self.run = self.run.or(own.map(|event| event.run));
        if self.mode == Mode::Json {
            let mut lines = Vec::new();
            for event in events {
                // Events can always be serialized: keys are text, times are finite.
                if serde_json::to_writer(&mut lines, event).is_ok() {
                    lines.push(b'\n');
                }
            }
            self.stdout.write(&lines).await;
        } else if self.shows_progress() {
            let text = self.lines(events);
            self.put(&text).await;
        }
    }

    /// Returns the plain lines of a whole run, as they are displayed where there is no terminal.
    pub(crate) fn log(events: &[Event], verbose: bool) -> String {
        let args = DisplayArgs {
            verbose,
            ..DisplayArgs::default()
        };
        let mut display = Self::new(args);
        (display.mode, display.paint) = (Mode::Plain, Paint { on: false });
        display.lines(events)
    }

    fn lines(&mut self, events: &[Event]) -> String {
        let (now, style) = (self.started.elapsed(), self.style());
        let mut text = String::new();
        for event in events {
            self.view.count(&event.kind);
            match event.depth {
                0 => self.view.event(&event.kind, now, style, &mut text),
                _ => self.sub_agent_event(event, now, style, &mut text),
            }
        }
        text
    }

    /// Displays an event of a sub-agent as indented plain lines.
    fn sub_agent_event(&mut self, event: &Event, now: Duration, style: Style, text: &mut String) {
        let view = self.sub_agents.entry(event.run).or_default();
        let mut lines = String::new();
        view.event(
            &event.kind,
            now,
            Style {
                columns: None,
                ..style
            },
            &mut lines,
        );
        let indent = "    ".repeat(usize::try_from(event.depth).unwrap_or_default().min(8));
        for line in lines.lines() {
            text.push_str(format!("{indent}{line}").trim_end());
            text.push('\n');
        }
        if matches!(event.kind, EventKind::RunFinished { .. }) {
            self.sub_agents.remove(&event.run);
        }
    }

    /// Redraws the live lines.
    pub(crate) async fn redraw(&mut self) {
        if self.is_live() {
            self.put("").await;
        }
    }

    /// Displays a message, in every mode.
    pub(crate) async fn message(&mut self, text: &str) {
        let lead = if self.shows_progress() {
            ""
        } else {
            "cantle: "
        };
        self.put(&format!("{lead}{}\n", clean(text))).await;
    }

    /// Displays a note, if progress is displayed.
    pub(crate) async fn note(&mut self, text: &str) {
        if self.shows_progress() {
            let text = self.paint.dim(&clean(text));
            self.put(&format!("{text}\n")).await;
        }
    }

    /// Displays the line that the user types meanwhile.
    pub(crate) async fn input(&mut self, text: String) {
        self.input = one_line(&text);
        self.redraw().await;
    }

    /// Removes the live lines, so that other code can write to the terminal. Ends a write that was abandoned, too.
    pub(crate) async fn clear_live(&mut self) {
        let cleared = self.screen.clear();
        self.stderr.write(cleared.as_bytes()).await;
    }

    /// Writes whole lines above the live lines.
    async fn put(&mut self, text: &str) {
        let output = match self.is_live() {
            true => {
                let mut live = self.view.live_lines(self.started.elapsed(), self.style());
                let (rows, columns) = terminal_size();
                if !self.input.is_empty() {
                    // The end of a long line, where the user types.
                    live.push(format!(
                        "> {}",
                        fit_end(&self.input, columns.saturating_sub(3))
                    ));
                }
                self.screen.draw(text, &live, (rows, columns))
            }
            false => text.to_owned(),
        };
        self.stderr.write(output.as_bytes()).await;
    }

    /// Displays the summary and the result of a finished run, which `is_markdown` or JSON.
    ///
    /// # Errors
    /// If the result could not be written, except to a reader that has gone away.
    pub(crate) async fn close(
        &mut self,
        summary: &Summary,
        result: Option<&str>,
        is_markdown: bool,
    ) -> io::Result<()> {
        self.clear_live().await;
        if self.shows_progress() {
            self.stderr.write(summary.head(self.paint).as_bytes()).await;
        }
        if let Some(result) = result
            && self.mode != Mode::Json
        {
            let is_terminal = io::stdout().is_terminal();
            let gap = self.shows_progress() && is_terminal;
            let gap = if gap { "\n" } else { "" };
            let on = self.paint.on && is_terminal && is_markdown;
            let mut markdown = Markdown::default();
            let lines = result.split('\n');
            let lines: Vec<_> = lines
                .map(|line| markdown.line(line, true, Paint { on }))
                .collect();
            let result = lines.join("\n");
            self.stdout
                .write(format!("{gap}{result}\n").as_bytes())
                .await;
        }
        let rest = if self.shows_progress() {
            summary.details(self.paint)
        } else {
            summary.problem_lines()
        };
        self.stderr.write(rest.as_bytes()).await;
        self.stdout.failure.take().map_or(Ok(()), Err)
    }

    /// Displays lines after the summary; where progress is not displayed, only those about a problem.
    pub(crate) async fn closing_lines(&mut self, lines: &str, is_problem: bool) {
        if self.shows_progress() || is_problem {
            self.stderr.write(lines.as_bytes()).await;
        }
    }

    fn style(&self) -> Style {
        Style {
            paint: self.paint,
            columns: self.is_live().then(|| terminal_size().1.max(20)),
            verbose: self.verbose,
        }
    }
}

/// Returns the rows and columns of the terminal.
fn terminal_size() -> (usize, usize) {
    let size = console::Term::stderr().size_checked();
    let (rows, columns) = size.unwrap_or((24, 80));
    (rows.into(), columns.into())
}

/// An output stream that is dropped once writing fails.
#[derive(Debug)]
struct Sink<W> {
    writer: Option<W>,
    /// The error, unless the reader has gone away.
    failure: Option<io::Error>,
}

impl<W: AsyncWrite + Unpin> Sink<W> {
    fn new(writer: W) -> Self {
        Self {
            writer: Some(writer),
            failure: None,
        }
    }

    async fn write(&mut self, bytes: &[u8]) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let mut written = writer.write_all(bytes).await;
        if written.is_ok() {
            written = writer.flush().await;
        }
        if let Err(error) = written {
            self.writer = None;
            if error.kind() != io::ErrorKind::BrokenPipe {
                self.failure = Some(error);
            }
        }
    }
}
