//! Decisions on tool calls at the terminal: the call is shown as it would run.

use std::fs::File;
use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};

use cantle::core::escape::for_decision;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};

use super::Prompt;

/// Lines and characters of a call that are shown at first.
const SHOWN_LINES: usize = 30;
const SHOWN_CHARS: usize = 4_000;

/// Interval of looking whether an editor has ended.
const EDITOR_POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A call as its user sees it: the command of a command tool, else all arguments.
#[derive(Debug)]
pub(super) struct ShownCall<'c> {
    tool: &'c str,
    /// The arguments besides the command; `None` if the arguments are shown as they are.
    others: Option<Map<String, Value>>,
    /// The editable text: the command, or the arguments.
    text: String,
}

impl<'c> ShownCall<'c> {
    pub(super) fn new(tool: &'c str, arguments: &str) -> Self {
        let (others, text) = match serde_json::from_str(arguments) {
            Ok(Value::Object(mut fields)) => match fields.remove("cmd") {
                Some(Value::String(command)) => (Some(fields), command),
                other => {
                    fields.extend(other.map(|other| ("cmd".to_owned(), other)));
                    let pretty = serde_json::to_string_pretty(&fields);
                    (None, pretty.unwrap_or_else(|_| arguments.to_owned()))
                }
            },
            _ => (None, arguments.to_owned()),
        };
        Self { tool, others, text }
    }

    fn is_command(&self) -> bool {
        self.others.is_some()
    }

    fn question(&self) -> String {
        match self.is_command() {
            true => "Run this command?".to_owned(),
            false => format!("Allow this call of {}?", for_decision(self.tool)),
        }
    }

    /// All lines to show.
    fn lines(&self) -> Vec<String> {
        // `str::lines` would drop a carriage return at the end of a line.
        let text = self.text.strip_suffix('\n').unwrap_or(&self.text);
        let mut lines: Vec<_> = text.split('\n').map(for_decision).collect();
        if let Some(others) = self.others.as_ref().filter(|others| !others.is_empty()) {
            let others = Value::Object(others.clone()).to_string();
            lines.push(format!("with {}", for_decision(&others)));
        }
        lines
    }

    /// Returns arguments with this text in place of the shown one.
    pub(super) fn with_text(&self, text: &str) -> Result<String, String> {
        if text.trim().is_empty() {
            return Err("there is no text: nothing was changed".to_owned());
        }
        match &self.others {
            Some(others) => {
                let mut fields = others.clone();
                fields.insert("cmd".to_owned(), Value::from(text));
                Ok(Value::Object(fields).to_string())
            }
            None => match serde_json::from_str::<Map<String, Value>>(text) {
                Ok(fields) => Ok(Value::Object(fields).to_string()),
                Err(error) => Err(format!("the arguments must be a JSON object: {error}")),
            },
        }
    }
}

impl Prompt {
    /// Shows a call, and returns the decision in the form that [`Decision`](cantle::core::tool::Decision) has
    /// as text.
    pub(super) fn decide(&mut self, tool: &str, arguments: &str) -> io::Result<String> {
        let call = ShownCall::new(tool, arguments);
        let is_cut = self.show(&call)?;
        let view = if is_cut { " / [v]iew all" } else { "" };
        loop {
            let line = self.read_line(&format!(
                "  {} [y]es / [n]o and a reason / [e]dit / [a]lways{view} ",
                call.question()
            ))?;
            let line = line.trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match (word.to_lowercase().as_str(), rest.trim()) {
                ("y" | "yes", "") => return Ok("yes".to_owned()),
                ("n" | "no", "") => {
                    let reason = self.read_line("  A reason for the model, or Enter for none ")?;
                    return Ok(format!("no {}", reason.trim()));
                }
                ("n" | "no", reason) => return Ok(format!("no {reason}")),
                ("e" | "edit", "") => match self.edit(&call)? {
                    Ok(arguments) => return Ok(format!("edit {arguments}")),
                    Err(reason) => writeln!(self.screen, "  {reason}")?,
                },
                ("a" | "always", "") => {
                    if let Some(answer) = self.always(&call)? {
                        return Ok(answer.to_owned());
                    }
                }
                ("v" | "view", "") if is_cut => self.show_all(&call)?,
                _ => writeln!(
                    self.screen,
                    "  Answer y, n, e or a; a reason can follow n, as in `n use the copy`."
                )?,
            }
        }
    }

    /// Shows a call, and returns whether it was cut.
    fn show(&mut self, call: &ShownCall<'_>) -> io::Result<bool> {
        let lines = call.lines();
        let total: usize = lines.iter().map(|line| line.chars().count()).sum();
        if lines.len() <= SHOWN_LINES && total <= SHOWN_CHARS {
            self.show_all(call)?;
            return Ok(false);
        }
        let mut left = SHOWN_CHARS;
        writeln!(self.screen)?;
        for line in lines.iter().take(SHOWN_LINES) {
            let shown: String = line.chars().take(left).collect();
            left -= shown.chars().count();
            writeln!(self.screen, "    {shown}")?;
            if left == 0 {
                break;
            }
        }
        let count = lines.len();
        writeln!(
            self.screen,
            "    … not all of it: it has {count} lines and {total} characters"
        )?;
        Ok(true)
    }

    fn show_all(&mut self, call: &ShownCall<'_>) -> io::Result<()> {
        let lines = call.lines().join("\n    ");
        write!(self.screen, "\n    {lines}\n")
    }

    /// Asks which later calls run without a question.
    fn always(&mut self, call: &ShownCall<'_>) -> io::Result<Option<&'static str>> {
        let (this, every) = match call.is_command() {
            true => ("exactly this command", "every command".to_owned()),
            false => (
                "exactly this call",
                format!("every call of {}", for_decision(call.tool)),
            ),
        };
        let prompt = format!(
            "  Run without asking for the rest of this run:\n  1  {this}\n  2  {every}\n  [1-2, Enter for neither] "
        );
        Ok(match self.read_line(&prompt)?.trim() {
            "1" => Some("always"),
            "2" => Some("always tool"),
            _ => None,
        })
    }

    /// Has the user edit a call, and returns the new arguments, or why there are none.
    fn edit(&mut self, call: &ShownCall<'_>) -> io::Result<Result<String, String>> {
        let editor = ["VISUAL", "EDITOR"].into_iter().find_map(|name| {
            let value = std::env::var(name).ok()?;
            (!value.trim().is_empty()).then_some(value)
        });
        let text = match editor {
            Some(editor) => self.edit_in(&editor, call)?,
            None => {
                let expected = match call.is_command() {
                    true => "The command to run instead, in one line",
                    false => "The arguments to use instead, as JSON in one line",
                };
                let prompt = format!("  {expected} (set EDITOR for more) ");
                Ok(self.read_line(&prompt)?.trim().to_owned())
            }
        };
        Ok(text.and_then(|text| call.with_text(&text)))
    }

    /// Has the user edit a call in an editor.
    pub(super) fn edit_in(
        &self,
        editor: &str,
        call: &ShownCall<'_>,
    ) -> io::Result<Result<String, String>> {
        let extension = if call.is_command() { ".sh" } else { ".json" };
        let file = tempfile::Builder::new()
            .prefix("cantle-edit-")
            .suffix(extension)
            .tempfile()?;
        std::fs::write(file.path(), format!("{}\n", call.text.trim_end()))?;
        let terminal = || Ok::<_, io::Error>(Stdio::from(self.screen.try_clone()?));
        let editing = Command::new("/bin/sh")
            .args(["-c", &format!("exec {editor} \"$1\""), "sh"])
            .arg(file.path())
            .stdin(Stdio::from(File::try_clone(&self.keys)?))
            .stdout(terminal()?)
            .stderr(terminal()?)
            .spawn()?;
        if !self.wait_for(editing)? {
            return Ok(Err(format!("`{editor}` failed: nothing was changed")));
        }
        Ok(match std::fs::read_to_string(file.path()) {
            Ok(text) => Ok(text.trim_end_matches('\n').to_owned()),
            Err(error) => Err(format!("the edited text can't be read: {error}")),
        })
    }

    /// Waits until an editor has ended, and returns whether it succeeded. It is killed if the question is
    /// withdrawn.
    fn wait_for(&self, mut editor: Child) -> io::Result<bool> {
        loop {
            if let Some(status) = editor.try_wait()? {
                return Ok(status.success());
            }
            let mut withdrawn = [PollFd::new(&self.withdrawn, PollFlags::IN)];
            let is_withdrawn =
                poll(&mut withdrawn, Some(&EDITOR_POLL)).is_ok_and(|ready| ready > 0);
            if is_withdrawn {
                editor.kill()?;
                editor.wait()?;
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }
}
