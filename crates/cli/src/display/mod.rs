//! What is shown of a run: a subscriber of its events, and nothing else knows a terminal.
//!
//! Progress goes to standard error, the result to standard output. On a terminal the model's text
//! comes as it streams, over a status line that is redrawn in place; elsewhere everything is plain
//! lines. With `--json`, standard output has the events as JSON lines and nothing else. A reader
//! that goes away (`| head`) is not missed, and none holds up the run: writes are done by others
//! while the run goes on.

mod boundary;
mod calls;
mod closing;
mod flow;
mod look;
mod result;
mod screen;
mod text;
mod view;

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use cantle::core::event::{Event, EventKind};
use cantle::core::ids::RunId;
use cantle::core::policy::Network;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stderr, Stdout};

pub(crate) use self::boundary::{boundary, enforcement, unenforced, words};
pub(crate) use self::closing::Closing;
use self::look::Look;
pub(crate) use self::look::Paint;
use self::screen::Screen;
pub(crate) use self::text::{clean, clean_json, duration, one_line, plural, size, wrap};
use self::view::View;
use crate::args::DisplayArgs;

/// Shows a run.
#[derive(Debug)]
pub(crate) struct Display {
    mode: Mode,
    verbose: bool,
    paint: Paint,
    view: View,
    /// The runs of sub-agents that go on.
    views_below: HashMap<RunId, View>,
    screen: Screen,
    started: Instant,
    stdout: Sink<Stdout>,
    stderr: Sink<Stderr>,
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Progress as it happens, on a terminal.
    Live,
    /// Progress in plain lines.
    Plain,
    /// The result alone.
    Quiet,
    /// Events, for programs.
    Json,
}

impl Display {
    /// What is shown as `args` say, of a run that reaches this `network`.
    pub(crate) fn new(args: DisplayArgs, network: Option<Network>) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
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
                on: mode == Mode::Live && !set("NO_COLOR"),
            },
            view: View::new(network),
            views_below: HashMap::new(),
            screen: Screen::default(),
            started: Instant::now(),
            stdout: Sink::new(tokio::io::stdout()),
            stderr: Sink::new(tokio::io::stderr()),
        }
    }

    /// Whether something is redrawn as time goes by.
    pub(crate) fn is_live(&self) -> bool {
        self.mode == Mode::Live
    }

    /// Whether progress is shown to a person.
    fn is_shown(&self) -> bool {
        matches!(self.mode, Mode::Live | Mode::Plain)
    }

    /// Shows what happened.
    pub(crate) async fn events(&mut self, events: &[Event]) {
        if self.mode == Mode::Json {
            let mut lines = Vec::new();
            for event in events {
                // Events hold nothing that can't be JSON: keys are text, times are finite.
                if serde_json::to_writer(&mut lines, event).is_ok() {
                    lines.push(b'\n');
                }
            }
            self.stdout.write(&lines).await;
        } else if self.is_shown() {
            let (now, look) = (self.started.elapsed(), self.look());
            let mut text = String::new();
            for event in events {
                match event.depth {
                    0 => self.view.event(&event.kind, now, look, &mut text),
                    _ => self.below(event, now, look, &mut text),
                }
            }
            self.put(&text).await;
        }
    }

    /// Shows what happened in a sub-agent's run: as plain lines, further in.
    fn below(&mut self, event: &Event, now: Duration, look: Look, text: &mut String) {
        let view = self.views_below.entry(event.run).or_default();
        let mut lines = String::new();
        view.event(
            &event.kind,
            now,
            Look {
                columns: None,
                ..look
            },
            &mut lines,
        );
        let indent = "    ".repeat(usize::try_from(event.depth).unwrap_or_default().min(8));
        for line in lines.lines() {
            text.push_str(format!("{indent}{line}").trim_end());
            text.push('\n');
        }
        if matches!(event.kind, EventKind::RunFinished { .. }) {
            self.views_below.remove(&event.run);
        }
    }

    /// Redraws what changes with time.
    pub(crate) async fn tick(&mut self) {
        if self.is_live() {
            self.put("").await;
        }
    }

    /// Tells a person something about the run that is no event of it, whatever else is shown.
    pub(crate) async fn say(&mut self, text: &str) {
        let lead = if self.is_shown() { "" } else { "cantle: " };
        self.put(&format!("{lead}{}\n", clean(text))).await;
    }

    /// Tells a person who watches; nobody else.
    pub(crate) async fn remark(&mut self, text: &str) {
        if self.is_shown() {
            let text = self.paint.dim(&clean(text));
            self.put(&format!("{text}\n")).await;
        }
    }

    /// Takes away what is live, so that somebody else can write below what stays.
    pub(crate) async fn make_way(&mut self) {
        let cleared = self.screen.clear();
        self.stderr.write(cleared.as_bytes()).await;
    }

    /// Writes whole lines above what is live.
    async fn put(&mut self, text: &str) {
        let (now, look) = (self.started.elapsed(), self.look());
        let output = match look.columns {
            Some(columns) => {
                let live = self.view.live_lines(now, look);
                self.screen.draw(text, &live, columns)
            }
            None => text.to_owned(),
        };
        self.stderr.write(output.as_bytes()).await;
    }

    /// Shows how the run ended. `result` is what a finished run has to say.
    ///
    /// # Errors
    /// Where the result could not be written, though somebody wants it.
    pub(crate) async fn close(
        &mut self,
        closing: &Closing,
        result: Option<&str>,
    ) -> io::Result<()> {
        let cleared = self.screen.clear();
        self.stderr.write(cleared.as_bytes()).await;
        if self.is_shown() {
            self.stderr.write(closing.head(self.paint).as_bytes()).await;
        }
        if let Some(result) = result
            && self.mode != Mode::Json
        {
            let gap = self.is_shown() && io::stdout().is_terminal();
            let gap = if gap { "\n" } else { "" };
            self.stdout
                .write(format!("{gap}{result}\n").as_bytes())
                .await;
        }
        let rest = if self.is_shown() {
            closing.details(self.paint)
        } else {
            closing.problems()
        };
        self.stderr.write(rest.as_bytes()).await;
        self.stdout.failure.take().map_or(Ok(()), Err)
    }

    fn look(&self) -> Look {
        let columns = self.is_live().then(|| {
            let size = console::Term::stderr().size_checked();
            size.map_or(80, |(_, columns)| usize::from(columns)).max(20)
        });
        Look {
            paint: self.paint,
            columns,
            verbose: self.verbose,
        }
    }
}

/// A stream to write to until nobody reads it any more.
#[derive(Debug)]
struct Sink<W> {
    writer: Option<W>,
    /// Why writing failed, where it was not for want of a reader.
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
        let Some(writer) = self.writer.as_mut().filter(|_| !bytes.is_empty()) else {
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
