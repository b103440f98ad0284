//! `cantle chat`: a conversation at the terminal.
//!
//! Each message is a kept run. As long as nothing about the agent changes, the runs follow each other in one session;
//! otherwise the next one continues the latest like `cantle run --continue`.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use cantle::agent::KeptRun;
use cantle::core::content::Content;
use cantle::core::escape::for_decision;
use cantle::core::event::EventKind;
use cantle::core::ids::RunId;
use cantle::core::sandbox::{FileKind, SandboxPath};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::run::{self, OpenRun};
use super::{print, runs};
use crate::approvals;
use crate::args::{ApplyArgs, ChatArgs, RunArgs, TranscriptFormat};
use crate::config::RunConfig;
use crate::display::Display;
use crate::earlier_run::{self, EarlierRun};
use crate::exit::{Code, Failure, FailureExt as _};
use crate::export;
use crate::interrupts::Interrupts;
use crate::kept_sandbox;
use crate::line_editor::{Line, LineEditor};
use crate::saved_settings::SavedSettings;
use crate::settings::Retention;
use crate::state_dir::StateDir;
use crate::text::{add_costs, clean, dollars, one_line, plural, size};
use crate::typed_ahead::TypedAhead;
use crate::undelivered;

const PROMPT: &str = "> ";

const HELP: &str = "\
/help              this list
/cost              tokens and cost of this conversation
/files             delivered files, and files of the working directory
/diff              the latest changes of --workdir
/undo              restore the files of the latest changes that were applied
/approve [RULES]   which calls need approval: never, ask or a file of rules
/model [NAME]      the model from now on
/compact           replace the conversation by a summary that the model writes
/save FILE         save the conversation: as Markdown, or with .json as a history
/quit              end the conversation; `cantle chat --continue last` continues it

Alt-Enter, or a backslash before Enter, begins a new line. Ctrl-C cancels a message; pressed twice, it ends the
conversation, as Ctrl-D does. What you type while the model works is sent with its next turn,
except commands.
";

const COMMANDS: [&str; 10] = [
    "/help", "/cost", "/files", "/diff", "/undo", "/approve", "/model", "/compact", "/save",
    "/quit",
];

const SUMMARIZE: &str = "Write a summary of this conversation for yourself: it replaces the conversation. Keep what the \
                         user wants, what was decided and why, what was done, the files and their state, and what is \
                         open. Do nothing else, and finish with the summary as the reason.";

/// Maximum number of files that are listed.
const MAX_LISTED: usize = 100;

/// Keeps every sandbox of this conversation, until it ends.
const KEEP: Retention = Retention {
    age: Duration::MAX,
    size_bytes: u64::MAX,
};

/// A conversation.
pub(crate) struct Chat {
    args: RunArgs,
    state: StateDir,
    editor: LineEditor,
    /// The open session.
    open: Option<OpenRun>,
    /// The latest run of the open session, if it has finished.
    finished: Option<RunId>,
    /// The runs of this conversation.
    runs: Vec<RunId>,
    /// How many of them other processes made.
    earlier: usize,
    /// The sandboxes that stay when the conversation ends.
    retention: Option<Retention>,
    /// The summary that replaces the conversation.
    summary: Option<String>,
    /// Text that was typed and not sent.
    typed: String,
    /// A line that was entered when a message had just ended.
    entered: Option<String>,
    code: u8,
}

/// The next step of a conversation.
enum Next {
    Read,
    Send(String),
    Leave,
}

impl Chat {
    /// Checks the arguments and the terminal.
    ///
    /// # Errors
    /// If there is no terminal, or a setting is invalid or missing.
    pub(crate) fn prepare(args: ChatArgs) -> Result<Self, Failure> {
        let ChatArgs(mut args) = args;
        args.variables = args.variables.fixed().usage()?;
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() || !io::stderr().is_terminal()
        {
            let message = "cantle chat needs a terminal; a script can use cantle run --continue";
            return Err(anyhow!(message)).usage();
        }
        let state = StateDir::find().usage()?;
        // The directory of the history.
        let _backend = state.backend().usage()?;
        let mut runs = Vec::new();
        match &args.earlier {
            Some(name) => {
                let latest = state.find_run(name).usage()?.run;
                args.earlier = Some(latest.to_string());
                runs = earlier_run::conversation(&state.runs(), latest).internal()?;
            }
            None => drop(RunConfig::resolve(&args.settings, None)?),
        }
        let editor = LineEditor::new(&COMMANDS, Some(state.chat_history())).internal()?;
        Ok(Self {
            args,
            state,
            editor,
            open: None,
            finished: None,
            earlier: runs.len(),
            runs,
            retention: None,
            summary: None,
            typed: String::new(),
            entered: None,
            code: Code::Finished as u8,
        })
    }

    /// Converses until the user leaves, and returns the exit code of the latest message.
    pub(crate) async fn perform(mut self) -> Result<u8, Failure> {
        let mut interrupts = Interrupts::listen()?;
        let mut next = match self.args.task.take() {
            Some(message) => Next::Send(message),
            None => {
                print("Write a message, or /help.\n")?;
                Next::Read
            }
        };
        loop {
            next = match next {
                Next::Read => tokio::select! {
                    line = self.read() => line?,
                    () = interrupts.next() => Next::Leave,
                },
                Next::Send(message) => Box::pin(self.send(&message, &mut interrupts)).await?,
                Next::Leave => break,
            };
        }
        self.close(None).await;
        if let Some(retention) = self.retention {
            // Those of sessions that were closed before.
            let _ = kept_sandbox::prune(&self.state, retention).await;
        }
        if let Some(run) = self.runs.last() {
            print(format!("To continue: cantle chat --continue {run}\n"))?;
        }
        Ok(self.code)
    }

    /// Reads a message or performs a command.
    async fn read(&mut self) -> Result<Next, Failure> {
        let line = match self.entered.take() {
            Some(line) => {
                print(format!("{PROMPT}{}\n", clean(&line)))?;
                line
            }
            None => match self.edit().await? {
                Some(line) => line,
                None => return Ok(Next::Leave),
            },
        };
        let line = line.trim();
        if line.is_empty() {
            return Ok(Next::Read);
        }
        self.editor.remember(line);
        let Some(command) = line.strip_prefix('/') else {
            return Ok(Next::Send(line.to_owned()));
        };
        let (name, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let performed = match (name, rest.trim()) {
            ("help", "") => Ok(HELP.to_owned()),
            ("quit" | "exit", "") => return Ok(Next::Leave),
            ("cost", "") => self.cost(),
            ("files", "") => self.files().await,
            ("diff", "") => self.apply(self.runs.last().copied(), "diff").await,
            ("undo", "") => self.apply(self.latest_applied(), "undo").await,
            ("approve", "") => self.approvals(),
            ("approve", rules) => self.set_approvals(rules).await,
            ("model", "") => self.model(),
            ("model", name) => self.set_model(name).await,
            ("compact", "") if self.runs.is_empty() => Ok("There is no conversation yet.\n".into()),
            ("compact", "") => return Ok(Next::Send(SUMMARIZE.to_owned())),
            ("save", "") => Err(anyhow!("name a file: /save FILE")),
            ("save", file) => self.save(Path::new(file)),
            ("help" | "quit" | "exit" | "cost" | "files" | "diff" | "undo" | "compact", _) => {
                Err(anyhow!("/{name} takes no argument"))
            }
            _ => Err(anyhow!(
                "there is no command `{}`; /help lists them",
                one_line(line)
            )),
        };
        match performed {
            Ok(text) => print(text)?,
            Err(error) => print(format!("{}\n", clean(&format!("{error:#}"))))?,
        }
        Ok(Next::Read)
    }

    /// Reads a line from the editor; `None` if the user leaves.
    async fn edit(&mut self) -> Result<Option<String>, Failure> {
        let mut was_interrupted = false;
        loop {
            let typed = std::mem::take(&mut self.typed);
            match self.editor.read(PROMPT, typed).await.internal()? {
                Line::Entered(line) => return Ok(Some(line)),
                Line::Interrupted if !was_interrupted => {
                    print("(Ctrl-C again leaves)\n")?;
                    was_interrupted = true;
                }
                Line::Interrupted | Line::End => return Ok(None),
            }
        }
    }

    /// Sends a message, and displays what follows.
    async fn send(&mut self, message: &str, interrupts: &mut Interrupts) -> Result<Next, Failure> {
        let token = CancellationToken::new();
        let mut display = Display::new(self.args.display);
        let performed = tokio::select! {
            performed = self.perform_message(message, &mut display, &token) => performed,
            () = interrupts.cancel_then_wait(&token) => {
                display.clear_live().await;
                print("\n")?;
                self.code = Code::Cancelled as u8;
                let is_new = |run: &RunId| !self.runs.contains(run);
                self.runs.extend(display.run.filter(is_new));
                return Ok(Next::Leave);
            }
        };
        let mut unsent = Vec::new();
        match performed {
            Ok(code) => self.code = code,
            Err(failure) => {
                // The conversation continues in a new session.
                self.code = failure.code;
                print(format!("cantle: {}\n", clean(&failure.to_string())))?;
                // So that the message can be sent again.
                unsent.extend((message != SUMMARIZE).then(|| message.to_owned()));
            }
        }
        // After a message that failed or was cancelled, the user decides whether to send the next one.
        if self.code != Code::Finished as u8 {
            unsent.extend(self.entered.take());
        }
        unsent.push(std::mem::take(&mut self.typed));
        unsent.retain(|text| !text.is_empty());
        self.typed = unsent.join("\n");
        Ok(Next::Read)
    }

    async fn perform_message(
        &mut self,
        message: &str,
        display: &mut Display,
        token: &CancellationToken,
    ) -> Result<u8, Failure> {
        let is_open = self.open.is_some();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.open(message, display, token).await?,
        };
        if is_open || self.runs.len() > self.earlier {
            open.task.content = Content::from(message);
        }
        let OpenRun {
            session,
            task,
            user,
        } = &mut open;
        let mut typed = TypedAhead::begin().ok().filter(|_| display.is_live());
        let ended = task
            .run(session, display, (user, typed.as_mut()), token)
            .await;
        self.entered = typed.as_mut().and_then(TypedAhead::completed);
        self.typed
            .push_str(&typed.map(TypedAhead::end).unwrap_or_default());
        let ended = ended?;
        let outcome = &ended.summary.outcome;
        // Of a run that could not begin, nothing is kept: the latest one remains the latest.
        if self.state.runs().run_directory(outcome.run).is_dir() {
            self.runs.push(outcome.run);
            self.finished = ended.finished();
        }
        let is_summary = message == SUMMARIZE;
        if is_summary {
            self.summary = task.answer(outcome);
        }
        let has_workdir = task.workdir.is_some();
        let code = task.report(ended, display, user.as_ref(), token).await;
        self.open = Some(open);
        // The next message begins on a new copy of the directory, or with the summary.
        if has_workdir || is_summary {
            self.close(Some(KEEP)).await;
        }
        code
    }

    /// Opens a session that continues the latest run.
    async fn open(
        &mut self,
        message: &str,
        display: &mut Display,
        token: &CancellationToken,
    ) -> Result<OpenRun, Failure> {
        let latest = self.runs.last().map(ToString::to_string);
        let mut args = self.args.clone();
        args.task = Some(message.to_owned());
        args.earlier = latest.or(args.earlier);
        let prepared = match &args.earlier {
            Some(name) => {
                let mut earlier = EarlierRun::find(name, args.fresh_sandbox).usage()?;
                if let Some(summary) = &self.summary {
                    earlier = earlier.summarized(summary);
                }
                run::prepare_after(&args, earlier).await?
            }
            None => run::prepare(&args).await?,
        };
        let open = prepared.open(display, token).await?;
        self.retention = open.task.retention;
        self.summary = None;
        // They were for the first message.
        self.args.image.clear();
        self.args.history = None;
        self.args.inputs.input.clear();
        self.args.fresh_sandbox = false;
        Ok(open)
    }

    /// Closes the session, and keeps its sandbox as the retention or else the settings say.
    async fn close(&mut self, retention: Option<Retention>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let settings = open.task.retention;
        let retention = settings.map(|settings| retention.unwrap_or(settings));
        let closed = open.task.close(open.session, self.finished, retention);
        if let Err(error) = closed.await {
            let _ = print(format!("cantle: {}\n", clean(&error.to_string())));
        }
        // Processes that outlived the latest message could make more until now.
        let lines = open.task.set_aside(self.runs.last().copied());
        let lines =
            lines.unwrap_or_else(|error| format!("cantle: {}\n", clean(&format!("{error:#}"))));
        let _ = print(lines);
        let mut display = Display::new(self.args.display);
        open.task.close_telemetry(&mut display).await;
    }

    fn kept_runs(&self) -> impl DoubleEndedIterator<Item = KeptRun> {
        let store = self.state.runs();
        self.runs.iter().filter_map(move |run| store.get(*run).ok())
    }

    fn cost(&self) -> anyhow::Result<String> {
        let (mut count, mut tokens, mut cost_usd) = (0, 0, None);
        for run in self.kept_runs() {
            count += 1;
            tokens += run.tokens;
            cost_usd = add_costs(cost_usd, run.cost_usd);
        }
        let cost = cost_usd.map_or_else(|| "cost unknown".to_owned(), dollars);
        let messages = plural(count, "message", "messages");
        Ok(format!("{messages} · {tokens} tokens · {cost}\n"))
    }

    async fn files(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        let here = std::env::current_dir().unwrap_or_default();
        for run in self.kept_runs() {
            let events = self.state.runs().events(run.run)?.into_iter();
            // Sub-agents deliver to the sandbox of their caller.
            for event in events.filter(|event| event.depth == 0) {
                let EventKind::OutputSaved {
                    source,
                    path,
                    size_bytes,
                    ..
                } = event.kind
                else {
                    continue;
                };
                if undelivered::is_stored(&self.state, Path::new(&path)) {
                    let source = for_decision(&source);
                    let _ = writeln!(text, "stored     {source}  {}", size(size_bytes));
                    continue;
                }
                let started_in = run.note.get("started_in").and_then(Value::as_str);
                let path = Path::new(started_in.unwrap_or_default()).join(path);
                let path = path.strip_prefix(&here).unwrap_or(&path).display();
                let path = for_decision(&path.to_string());
                let _ = writeln!(text, "delivered  {path}  {}", size(size_bytes));
            }
        }
        let session = self.open.as_ref().map(|open| &open.session);
        if let Some(sandbox) = session.and_then(|session| session.sandbox()) {
            let walk = sandbox.walk(&SandboxPath::new(".")?, MAX_LISTED).await?;
            for (path, entry) in &walk.entries {
                let kind = match entry.kind {
                    FileKind::Directory => "/".to_owned(),
                    FileKind::Symlink => "  link".to_owned(),
                    _ => format!("  {}", size(entry.size_bytes)),
                };
                let _ = writeln!(text, "sandbox    {}{kind}", for_decision(&path.to_string()));
            }
            if walk.is_truncated {
                let _ = writeln!(text, "sandbox    … and more");
            }
        }
        if text.is_empty() {
            text.push_str("There are no files.\n");
        }
        Ok(text)
    }

    /// Returns the latest run whose changes are applied.
    fn latest_applied(&self) -> Option<RunId> {
        let latest = self.kept_runs().rev().find(runs::is_applied);
        latest.map(|run| run.run)
    }

    /// Shows or reverts the changes of a run.
    async fn apply(&self, run: Option<RunId>, what: &str) -> anyhow::Result<String> {
        let Some(run) = run else {
            return Ok("There are no changes of --workdir to show or to undo.\n".to_owned());
        };
        let how = ApplyArgs {
            diff: what == "diff",
            revert: what == "undo",
            reject: false,
        };
        let applied = runs::apply(&self.state, &run.to_string(), how).await;
        applied.map_err(|failure| anyhow!("{failure}"))?;
        Ok(String::new())
    }

    /// Describes the approval rules in force: those of the open session, or else those that the next one will have.
    fn approvals(&self) -> anyhow::Result<String> {
        let mut name = self.args.approve.clone();
        if name.is_none() {
            let latest = self.runs.last().map(ToString::to_string);
            let earlier = latest.as_ref().or(self.args.earlier.as_ref());
            let earlier = earlier.map(|name| self.state.find_run(name)).transpose()?;
            let saved = earlier
                .map(|run| SavedSettings::read(run.note))
                .transpose()?;
            name = saved.and_then(|saved| saved.approve);
        }
        let given;
        let rules = match &self.open {
            Some(open) => open.session.approvals(),
            None => {
                given = approvals::read(name.as_deref())?;
                &given
            }
        };
        let mut text = format!("{}\n", one_line(name.as_deref().unwrap_or("never")));
        for rule in rules.to_string().lines() {
            let _ = writeln!(text, "  {}", for_decision(rule));
        }
        if rules.may_ask() {
            text.push_str("Standing approvals ([a]lways) ended with their message.\n");
        }
        Ok(text)
    }

    async fn set_approvals(&mut self, rules: &str) -> anyhow::Result<String> {
        approvals::read(Some(rules))?;
        self.args.approve = Some(rules.to_owned());
        self.close(Some(KEEP)).await;
        Ok(format!("From now on: {}\n", one_line(rules)))
    }

    fn model(&self) -> anyhow::Result<String> {
        let latest = self.kept_runs().last().map(|run| run.model);
        let given = self.args.settings.flags.get("model");
        let given = given.and_then(Value::as_str).map(str::to_owned);
        let model = given
            .or(latest)
            .unwrap_or_else(|| "the one of the settings".to_owned());
        Ok(format!("{}\n", one_line(&model)))
    }

    async fn set_model(&mut self, name: &str) -> anyhow::Result<String> {
        let flags = &mut self.args.settings.flags;
        flags.insert("model".to_owned(), name.into());
        self.close(Some(KEEP)).await;
        Ok(format!("From now on: {}\n", one_line(name)))
    }

    fn save(&self, file: &Path) -> anyhow::Result<String> {
        let runs: Vec<_> = self.kept_runs().collect();
        let Some(latest) = runs.last() else {
            bail!("there is no conversation yet");
        };
        let store = self.state.runs();
        let values = self.args.variables.resolve(&[])?;
        let text = match file.extension().is_some_and(|name| name == "json") {
            true => export::history(&store, latest, &values)?,
            false => {
                let mut text = String::new();
                for run in runs {
                    text += &export::export(&store, run, TranscriptFormat::Markdown, &values)?;
                    text.push('\n');
                }
                text.into_bytes()
            }
        };
        let mut options = std::fs::File::options();
        let created = options.write(true).create_new(true).open(file);
        let written = created.and_then(|mut created| io::Write::write_all(&mut created, &text));
        written.with_context(|| format!("{} can't be written", file.display()))?;
        Ok(format!("Saved {}\n", file.display()))
    }
}
