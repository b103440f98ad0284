//! The text of a task: from the command line, from standard input, or both; and the schema of its result.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use serde_json::Value;

use crate::messages::warn;

/// Maximum size of standard input.
const MAX_BYTES: u64 = 256 * 1024;

/// How long standard input may be silent before a notice says that it is being read.
const NOTICE_DELAY: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// Returns the task; `-` is standard input. Beside another task, a pipe or a file as standard input is context for
/// it.
///
/// # Errors
/// If there are further arguments, the task is empty, or standard input is too large or no text.
pub(crate) async fn read(task: Option<&str>, more: &[String]) -> anyhow::Result<String> {
    if !more.is_empty() {
        let words = task.into_iter().chain(more.iter().map(String::as_str));
        let words: Vec<_> = words.map(|word| format!("`{word}`")).collect();
        bail!(
            "expected the task as one argument, but got {}: {}. Quote the task, and quote patterns of --input so \
             that the shell does not expand them: --input '*.csv'",
            words.len(),
            words.join(", ")
        );
    }
    let text = match task.unwrap_or_default() {
        "-" => standard_input().await?,
        task if task.trim().is_empty() || !is_redirected() => task.to_owned(),
        task => {
            let context = standard_input().await?;
            match context.trim() {
                "" => task.to_owned(),
                context => format!("{task}\n\n<stdin>\n{context}\n</stdin>"),
            }
        }
    };
    if text.trim().is_empty() {
        bail!("the task is empty");
    }
    Ok(text)
}

/// Returns whether standard input is a pipe or a file, rather than a terminal or a device such as `/dev/null`.
fn is_redirected() -> bool {
    fstat(io::stdin()).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::Fifo | FileType::RegularFile)
    })
}

/// Reads standard input on another thread: an interrupt must not wait for its end.
async fn standard_input() -> anyhow::Result<String> {
    tokio::task::spawn_blocking(read_standard_input).await?
}

fn read_standard_input() -> anyhow::Result<String> {
    let failed = "failed to read standard input";
    let stdin = io::stdin().as_fd().try_clone_to_owned().context(failed)?;
    let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
    if poll(&mut ready, Some(&NOTICE_DELAY)).is_ok_and(|ready| ready == 0) {
        warn("reading standard input, which is part of the task; `< /dev/null` leaves it out");
    }
    let mut bytes = Vec::new();
    let mut limited = File::from(stdin).take(MAX_BYTES + 1);
    limited.read_to_end(&mut bytes).context(failed)?;
    let advice = "write it to a file, and pass that with --input";
    if bytes.len() as u64 > MAX_BYTES {
        bail!(
            "standard input is larger than {} KiB: {advice}",
            MAX_BYTES / 1024
        );
    }
    String::from_utf8(bytes).with_context(|| format!("standard input is not UTF-8 text: {advice}"))
}

/// Reads the schema of a task's result.
///
/// # Errors
/// If it is not the schema of an object.
pub(crate) fn read_schema(path: &Path) -> anyhow::Result<Value> {
    let schema: Value = serde_json::from_slice(
        &std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?,
    )
    .with_context(|| format!("{} is not JSON", path.display()))?;
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        bail!(
            "{} must be the JSON schema of an object: {{\"type\": \"object\", \"properties\": …}}",
            path.display()
        );
    }
    Ok(schema)
}
