//! `cantle python` at a terminal: lines of Python in one sandbox, whose variables stay.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use cantle::core::sandbox::Channel;
use cantle::python::{Execution, ExecutionOutcome, PythonSession, SourceFacts};
use tokio_util::sync::CancellationToken;

use super::exec::{CANCELLED, FAILED, ended};
use super::python::open_session;
use crate::args::PythonArgs;
use crate::exit::{Failure, FailureExt as _, sandbox_failure};
use crate::interrupts::Interrupts;
use crate::line_editor::{Line, LineEditor};
use crate::text::clean;

/// A time limit that no one reaches; the kernel's clock takes no larger one.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

const CONTEXT: &str = "main";
const PROMPT: &str = ">>> ";
const CONTINUATION: &str = "... ";

/// Whether no program was given and a person is there to type one.
pub(crate) fn is_wanted(args: &PythonArgs) -> bool {
    args.file.is_none() && !args.check && io::stdin().is_terminal()
}

/// Reads and executes lines until Ctrl-D, and returns the exit code.
pub(crate) async fn perform(args: PythonArgs) -> Result<u8, Failure> {
    let session = open_session(&args, args.timeout.unwrap_or(NO_LIMIT)).await?;
    let code = converse(&session).await;
    ended(code, session.close().await)
}

async fn converse(session: &PythonSession) -> Result<u8, Failure> {
    let mut editor = LineEditor::new(&[], None)
        .context("failed to use the terminal")
        .internal()?;
    let mut interrupts = Interrupts::listen()?;
    let mut code = String::new();
    loop {
        let prompt = if code.is_empty() {
            PROMPT
        } else {
            CONTINUATION
        };
        let line = tokio::select! {
            line = editor.read(prompt, String::new()) => line,
            () = interrupts.next() => return Ok(CANCELLED),
        };
        match line.context("failed to read the terminal").internal()? {
            Line::Entered(line) => {
                if !line.trim().is_empty() {
                    editor.remember(&line);
                }
                code.push_str(&line);
                code.push('\n');
            }
            // Drops what was typed of a block.
            Line::Interrupted => {
                code.clear();
                continue;
            }
            Line::End => return Ok(0),
        }
        if code.trim().is_empty() {
            code.clear();
        } else if is_complete(&code) {
            let code = std::mem::take(&mut code);
            if execute(session, &code, &mut interrupts).await? {
                return Ok(CANCELLED);
            }
        }
    }
}

/// Whether code can be executed: it is a line by itself, or a block that an empty line ends.
fn is_complete(code: &str) -> bool {
    if code.ends_with("\n\n") {
        return true;
    }
    let lines = code.lines().count();
    match SourceFacts::of(code.as_bytes()).syntax_error {
        Some(error) => {
            // It is at the end of what was typed so far, or about what that leaves open.
            let is_open = error.line > lines
                || ["never closed", "triple-quoted"]
                    .iter()
                    .any(|it| error.message.contains(it))
                || (error.line == lines && code.trim_end().ends_with(':'));
            !is_open
        }
        None => lines == 1 && !code.trim_end().ends_with(':') && !code.starts_with('@'),
    }
}

/// Executes code and shows what it prints and returns. Ctrl-C interrupts it; returns whether a second one did not wait.
async fn execute(
    session: &PythonSession,
    code: &str,
    interrupts: &mut Interrupts,
) -> Result<bool, Failure> {
    let token = CancellationToken::new();
    let mut show = |channel: Channel, bytes: &Bytes| {
        let text = clean(&String::from_utf8_lossy(bytes));
        // A terminal that has gone away ends the next read.
        let _ = match channel {
            Channel::Stdout => write_flushed(&mut io::stdout(), &text),
            Channel::Stderr => write_flushed(&mut io::stderr(), &text),
        };
    };
    let executed = tokio::select! {
        executed = session.execute_with_observer(CONTEXT, code, token.clone(), &mut show) => executed,
        () = interrupts.cancel_then_wait(&token) => return Ok(true),
    };
    let execution = executed.map_err(|error| sandbox_failure(FAILED, &error))?;
    let _ = write_flushed(&mut io::stdout(), &results(&execution));
    let _ = write_flushed(&mut io::stderr(), &problems(&execution));
    Ok(false)
}

fn write_flushed(to: &mut dyn io::Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Renders the displayed values, one a line.
fn results(execution: &Execution) -> String {
    let lines = execution.results.iter().map(|result| {
        let text = result.text().unwrap_or("(a value without text)");
        format!("{}\n", clean(text))
    });
    lines.collect()
}

/// Renders the exception and the notes.
fn problems(execution: &Execution) -> String {
    let mut text = match &execution.error {
        Some(error) => clean(&error.traceback),
        None => String::new(),
    };
    if execution.outcome == ExecutionOutcome::Cancelled && execution.error.is_none() {
        text.push_str("KeyboardInterrupt\n");
    }
    for note in &execution.notes {
        let _ = writeln!(text, "cantle: {}", clean(note));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_with_an_empty_line() {
        for complete in [
            "x = 1\n",
            "f(1, 2)\n",
            "def f():\n    pass\n\n",
            "x = )\n",
            "for x in y: z(\n\n",
        ] {
            assert!(is_complete(complete), "{complete:?}");
        }
        for incomplete in [
            "def f():\n",
            "x = (\n",
            "if x:\n    y\n",
            "@decorator\n",
            "x = [1,\n2,\n",
            "for x in y: z(\n",
        ] {
            assert!(!is_complete(incomplete), "{incomplete:?}");
        }
    }
}
