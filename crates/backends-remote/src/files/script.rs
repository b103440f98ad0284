//! File operations by script.

use cantle_command_driver::{kind_of_message, parse_stat};
use cantle_core::sandbox::{FileInfo, SandboxError, SandboxErrorKind, SandboxPath};

use crate::envd::{EventStream, Fault};
use crate::quote::quote;
use crate::script::{self, ScriptOutput};
use crate::shared::ActiveSandbox;

const FILES: &str = include_str!("../scripts/files.bash");

impl ActiveSandbox {
    async fn script(&self, words: &[&str], doing: &str) -> Result<ScriptOutput, SandboxError> {
        let answered = script::run(&self.envd, FILES, words).await;
        self.explained(answered, doing).await
    }

    /// Performs an operation of the script, which fails unless the script succeeds.
    pub(super) async fn run_script(&self, words: &[&str], doing: &str) -> Result<(), SandboxError> {
        let answer = self.script(words, doing).await?;
        if answer.success {
            return Ok(());
        }
        Err(failure(&answer, doing))
    }

    /// Resolves a link; `None` if it is dangling.
    pub(super) async fn resolve_by_script(
        &self,
        link: &[u8],
        doing: &str,
    ) -> Result<Option<Vec<u8>>, SandboxError> {
        let mut answer = self.script(&["resolve", &quote(link)], doing).await?;
        if answer.stdout.last() == Some(&b'\n') {
            answer.stdout.pop();
        }
        let leads_somewhere = answer.success && answer.stdout.first() == Some(&b'/');
        Ok(leads_somewhere.then_some(answer.stdout))
    }

    pub(super) async fn stat_by_script(
        &self,
        path: &SandboxPath,
        absolute: &[u8],
        doing: &str,
    ) -> Result<Option<FileInfo>, SandboxError> {
        let answer = self.script(&["stat", &quote(absolute)], doing).await?;
        let line = String::from_utf8_lossy(&answer.stdout);
        match parse_stat(path.clone(), &line) {
            Some(found) => Ok(Some(found)),
            // The script fails silently if nothing exists.
            None if !answer.success && answer.stderr.is_empty() => Ok(None),
            None => Err(failure(&answer, doing)),
        }
    }

    pub(super) async fn list_by_script(
        &self,
        absolute: &[u8],
        doing: &str,
    ) -> Result<Vec<FileInfo>, SandboxError> {
        let answer = self.script(&["list", &quote(absolute)], doing).await?;
        if answer.stdout.is_empty() && answer.success {
            return Ok(Vec::new());
        }
        let invalid = || {
            let message = format!("{doing}: the sandbox's listing is invalid");
            SandboxError::new(SandboxErrorKind::Io, message)
        };
        // The names, each with a NUL; an empty one; a line of `stat` for each.
        let end = answer.stdout.windows(2).position(|bytes| bytes == b"\0\0");
        let (names, lines) = answer.stdout.split_at(end.ok_or_else(invalid)?);
        let lines = String::from_utf8_lossy(lines.get(2..).unwrap_or_default());
        let mut lines = lines.lines();
        let names = names.split(|byte| *byte == 0);
        let infos = names.map(|name| {
            let path = SandboxPath::working_directory().join(name)?;
            let info = lines.next().and_then(|line| parse_stat(path, line));
            info.ok_or_else(invalid)
        });
        infos.collect()
    }

    /// Starts a script that outputs a file from an offset on.
    pub(super) async fn read_by_script(
        &self,
        absolute: &[u8],
        offset: u64,
    ) -> Result<EventStream, Fault> {
        let start = offset.saturating_add(1).to_string();
        let words = ["read", &quote(absolute), &start];
        // The size of the file and its reader decide how long it takes; a silent stream fails.
        script::start(&self.envd, FILES, &words, None).await
    }
}

/// Maps a script's error message to an error.
fn failure(answer: &ScriptOutput, doing: &str) -> SandboxError {
    let reason = answer.stderr.trim();
    let kind = kind_of_message(reason).unwrap_or(SandboxErrorKind::Io);
    SandboxError::new(kind, format!("{doing}: {reason}"))
}
