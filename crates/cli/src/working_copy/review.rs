//! The user's decision on a run's changes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;

use anyhow::Context as _;
use cantle::core::escape::{for_decision, for_display};
use tokio_util::sync::CancellationToken;

use super::WorkingCopy;
use super::apply::Conflicts;
use super::changes::{Changes, Version};
use super::diff::FileDiff;
use crate::args::WorkdirArgs;
use crate::ask::TerminalUser;
use crate::display::Paint;
use crate::text::plural;

/// Lines of a diff that are shown before a question; all of them on request.
const SHOWN_LINES: usize = 400;

/// Files that the summary lists.
const LISTED_FILES: usize = 100;

/// A line per changed file, and one per change that can't be applied.
pub(crate) fn summary(changes: &Changes, files: &[FileDiff<'_>], paint: Paint) -> String {
    let mut text = String::new();
    for file in files.iter().take(LISTED_FILES) {
        let change = file.change;
        let path = for_decision(&change.path);
        let line = match (&change.old, &change.new, file.renamed_from) {
            (.., Some(from)) => format!("R {} → {path}", for_decision(&from.path)),
            (None, ..) => format!("A {path}"),
            (_, None, _) => format!("D {path}"),
            _ => format!("M {path}"),
        };
        let _ = write!(text, "  {line}");
        let counts = match (file.is_binary, file.added_lines, file.removed_lines) {
            (true, ..) => "binary".to_owned(),
            (_, 0, 0) => String::new(),
            (_, added, removed) => format!("+{added} −{removed}"),
        };
        let source = file.renamed_from.unwrap_or(change);
        let is_executable = |version: &Option<Version>| version.as_ref().map(|it| it.executable);
        let executable = match (is_executable(&source.old), is_executable(&change.new)) {
            (Some(true), Some(false)) => "not executable",
            (Some(false), Some(true)) => "executable",
            _ => "",
        };
        for note in [&*counts, executable]
            .iter()
            .filter(|note| !note.is_empty())
        {
            let _ = write!(text, "  {}", paint.dim(note));
        }
        if let Some(name) = change.reserved_name() {
            let note = format!("  programs may load or execute {}", for_decision(name));
            text.push_str(&paint.yellow(&note));
        }
        text.push('\n');
    }
    if let Some(more @ 1..) = files.len().checked_sub(LISTED_FILES) {
        let _ = writeln!(text, "  … and {}", plural(more as u64, "file", "files"));
    }
    for (path, reason) in changes.refused.iter().take(LISTED_FILES) {
        let line = format!(
            "  not applied: {}: {}",
            for_decision(path),
            for_decision(reason)
        );
        let _ = writeln!(text, "{}", paint.yellow(&line));
    }
    if changes.ignored > 0 {
        let files = plural(changes.ignored as u64, "new file", "new files");
        let _ = writeln!(
            text,
            "  {}",
            paint.dim(&format!("{files} that git ignores left out"))
        );
    }
    text
}

/// Shows the diff at a terminal, cut after a number of lines.
fn show(
    user: &TerminalUser,
    copy: &WorkingCopy,
    files: &[FileDiff<'_>],
    max_lines: usize,
    paint: Paint,
) -> anyhow::Result<()> {
    let mut room = max_lines;
    for (index, file) in files.iter().enumerate() {
        let patch = copy.patch(file)?;
        let patch = String::from_utf8_lossy(&patch);
        let mut lines = painted(&patch, paint);
        let mut text = String::new();
        for line in lines.by_ref().take(room) {
            room -= 1;
            text += &line;
        }
        let more = lines.count();
        if more > 0 {
            let files = match files.len() - index - 1 {
                0 => String::new(),
                more => format!(" and {} more", plural(more as u64, "file", "files")),
            };
            let rest = format!("… {more} more lines of this file{files}; d shows them");
            let _ = writeln!(text, "{}", paint.dim(&rest));
        }
        user.show(&text)?;
        if more > 0 {
            break;
        }
    }
    Ok(())
}

/// Returns a patch as a terminal displays it.
pub(crate) fn patch_for_terminal(patch: &[u8], paint: Paint) -> String {
    painted(&String::from_utf8_lossy(patch), paint).collect()
}

/// Returns the lines of a patch as a terminal displays them: what would control the terminal is escaped.
fn painted(patch: &str, paint: Paint) -> impl Iterator<Item = String> {
    let mut is_head = true;
    // `str::lines` would drop a carriage return at the end of a line.
    patch.split_terminator('\n').map(move |line| {
        let shown = for_display(line);
        // In a hunk, `---` and `+++` are changed lines, too.
        is_head = line.starts_with("diff ") || (is_head && !line.starts_with('@'));
        let is_name = ["+++", "---", "diff "]
            .iter()
            .any(|start| line.starts_with(start));
        let shown = match line.chars().next() {
            _ if is_head && is_name => paint.bold(&shown),
            Some('+') => paint.green(&shown),
            Some('-') => paint.red(&shown),
            Some('@') => paint.dim(&shown),
            _ => shown,
        };
        shown + "\n"
    })
}

/// Writes the patches of all files.
fn write_patch(
    copy: &WorkingCopy,
    files: &[FileDiff<'_>],
    mut to: impl io::Write,
) -> anyhow::Result<()> {
    for file in files {
        to.write_all(&copy.patch(file)?)?;
    }
    Ok(())
}

/// The changes of a run, and what became of them.
#[derive(Debug)]
pub(crate) struct Decision {
    /// Lines for the user.
    pub(crate) text: String,
    /// Whether all changes are where they were asked to be.
    pub(crate) is_complete: bool,
}

/// Writes the diff where it was asked for, and applies, rejects or keeps the changes: as given, or else as the user
/// decides. Of a run that has not finished, nothing is applied unasked.
///
/// # Errors
/// If the diff can't be written. That changes can't be applied is a decision with `is_complete` false.
pub(super) async fn decide(
    args: &WorkdirArgs,
    copy: &WorkingCopy,
    changes: &mut Changes,
    (user, has_finished): (Option<&TerminalUser>, bool),
    how_later: &str,
    paint: Paint,
    cancellation: &CancellationToken,
) -> anyhow::Result<Decision> {
    let files = changes.clone();
    let files = copy.diff(&files)?;
    if let Some(path) = &args.diff {
        let failed = || format!("failed to write {}", path.display());
        let file = std::fs::File::create(path).with_context(failed)?;
        write_patch(copy, &files, file).with_context(failed)?;
    }
    let origin = copy.origin.display().to_string();
    let mut text = match changes.files.len() {
        0 => format!("\nNo changes to {origin}\n"),
        count => format!(
            "\n{} to {}\n",
            paint.bold(&plural(count as u64, "change", "changes")),
            for_decision(&origin)
        ),
    };
    text += &summary(changes, &files, paint);
    let mut is_complete = true;
    if changes.files.is_empty() {
        copy.reject(changes)?;
        return Ok(Decision { text, is_complete });
    }
    let mut answer = match args {
        WorkdirArgs { reject: true, .. } => Some(Answer::Reject),
        WorkdirArgs { apply: true, .. } if has_finished => Some(Answer::Apply),
        _ => None,
    };
    if let (None, None, Some(user)) = (answer, &args.diff, user) {
        user.show(&format!("{text}\n"))?;
        show(user, copy, &files, SHOWN_LINES, paint)?;
        text.clear();
        answer = Some(ask(user, copy, &files, paint, cancellation).await);
    }
    match answer {
        Some(Answer::Apply) => {
            let applied = apply(copy, changes, user).await;
            is_complete = applied.is_complete;
            text += &applied.text;
            if !is_complete {
                let _ = writeln!(text, "The changes are kept: {how_later}");
            }
        }
        Some(Answer::Reject) => {
            copy.reject(changes)?;
            text += "Rejected: nothing was written.\n";
        }
        Some(Answer::Keep) | None => {
            let _ = writeln!(text, "Nothing was written yet: {how_later}");
        }
    }
    Ok(Decision { text, is_complete })
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Apply,
    Keep,
    Reject,
}

/// Asks until there is an answer. Without one, or after an interrupt, the changes are kept.
async fn ask(
    user: &TerminalUser,
    copy: &WorkingCopy,
    files: &[FileDiff<'_>],
    paint: Paint,
    cancellation: &CancellationToken,
) -> Answer {
    let question = format!(
        "Apply these changes to {}? [y]es / [n]o, keep them / [r]eject / [d]iff in full ",
        for_decision(&copy.origin.display().to_string())
    );
    loop {
        let asked = cancellation.run_until_cancelled(user.read_line(&question));
        let line = match asked.await {
            Some(Ok(line)) => line,
            Some(Err(_)) => return Answer::Keep,
            None => {
                // The cursor is behind the question.
                let _ = user.show("\n");
                return Answer::Keep;
            }
        };
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => return Answer::Apply,
            "n" | "no" => return Answer::Keep,
            "r" | "reject" => return Answer::Reject,
            "d" | "diff" if show(user, copy, files, usize::MAX, paint).is_ok() => {}
            _ if user.show("  Please answer y, n, r or d.\n").is_ok() => {}
            _ => return Answer::Keep,
        }
    }
}

/// Asks a question that is answered with no by default.
async fn agrees(user: &TerminalUser, question: &str) -> io::Result<bool> {
    let answer = user.read_line(&format!("  {question} [y/N] ")).await?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Applies changes. Those to files that programs may load or execute are left out unless the user agrees to each; if no user can
/// be asked, the decision is incomplete. If some can't be applied, the user decides on the others.
pub(crate) async fn apply(
    copy: &WorkingCopy,
    changes: &mut Changes,
    user: Option<&TerminalUser>,
) -> Decision {
    let mut left_out = BTreeSet::new();
    let mut is_complete = true;
    for change in &changes.files {
        let Some(name) = change.reserved_name() else {
            continue;
        };
        let question = format!(
            "{} may be loaded or executed by programs of this machine ({}). Apply it, too?",
            for_decision(&change.path),
            for_decision(name)
        );
        let agreed = match user {
            Some(user) => agrees(user, &question).await,
            None => Err(io::ErrorKind::NotFound.into()),
        };
        is_complete &= agreed.is_ok();
        if !agreed.unwrap_or_default() {
            left_out.insert(change.path.clone());
        }
    }
    let mut applied = copy.apply(changes, &left_out);
    if let (Err(error), Some(user)) = (&applied, user)
        && let Some(conflicts) = error.downcast_ref::<Conflicts>()
        && conflicts.others > 0
        && user
            .show(&format!("{}\n", for_display(&conflicts.to_string())))
            .is_ok()
    {
        let others = plural(conflicts.others as u64, "change", "changes");
        let question = format!("Apply the other {others}?");
        if !agrees(user, &question).await.unwrap_or_default() {
            return Decision {
                text: String::new(),
                is_complete: false,
            };
        }
        left_out.extend(conflicts.files.iter().map(|(path, _)| path.clone()));
        applied = copy.apply(changes, &left_out);
    }
    let mut text = String::new();
    match applied {
        Ok(count) => {
            let files = plural(count as u64, "file", "files");
            let _ = writeln!(
                text,
                "Applied: {files} of {} changed.",
                for_decision(&copy.origin.display().to_string())
            );
            for path in &left_out {
                let _ = writeln!(text, "Left out: {}", for_decision(path));
            }
        }
        Err(error) => {
            is_complete = false;
            let _ = writeln!(text, "{}", for_display(&format!("{error:#}")));
        }
    }
    Decision { text, is_complete }
}

/// Puts the files back as they were before the run. Without changes to undo, the user's files stay, also new ones that are
/// equal to those of the run.
pub(crate) fn revert(copy: &WorkingCopy, changes: &mut Changes) -> anyhow::Result<String> {
    if changes.created.is_empty() && changes.clone().in_place().is_empty() {
        copy.sweep(changes);
        return Ok("Nothing was reverted: no changes are applied.\n".to_owned());
    }
    let count = copy.revert(changes)?;
    let files = plural(count as u64, "file", "files");
    Ok(format!(
        "Reverted: {files} of {} changed.\n",
        for_decision(&copy.origin.display().to_string())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_told_from_names_and_show_their_carriage_returns() {
        let patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- x\n-end\n+++ x\n+end\r\n\
                     \x20diff --git a/y b/y\ndiff --git a/y b/y\n--- a/y\n";
        let [bold, dim, red, green] = ["1", "2", "31", "32"];
        let lines = [
            (bold, "diff --git a/x b/x"),
            (bold, "--- a/x"),
            (bold, "+++ b/x"),
            (dim, "@@ -1,2 +1,2 @@"),
            (red, "--- x"),
            (red, "-end"),
            (green, "+++ x"),
            (green, "+end\\u{d}"),
            ("", " diff --git a/y b/y"),
            (bold, "diff --git a/y b/y"),
            (bold, "--- a/y"),
        ];
        let expected = lines.map(|(code, line)| match code {
            "" => format!("{line}\n"),
            _ => format!("\x1b[{code}m{line}\x1b[0m\n"),
        });
        let shown = patch_for_terminal(patch.as_bytes(), Paint { on: true });
        assert_eq!(shown, expected.concat());
    }
}
