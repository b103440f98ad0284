//! The tool sets that a session opened.

use std::time::Duration;

use cantle_core::tool::{OpenContext, ProviderError, ToolProvider, ToolSet};

use crate::error::{SessionError, SessionErrorKind};

/// Deadline for opening one set, which may include packages and images.
const OPEN_DEADLINE: Duration = Duration::from_secs(600);
/// Deadline for closing one set, and before that for the end of a run.
pub(super) const CLOSE_DEADLINE: Duration = Duration::from_secs(30);

/// Tool sets with the names of their providers, in the order in which they were opened.
#[derive(Default)]
pub(super) struct ToolSets(Vec<(String, Box<dyn ToolSet>)>);

impl ToolSets {
    /// Opens a provider, within the deadline.
    pub(super) async fn open(
        &mut self,
        provider: &dyn ToolProvider,
        cx: OpenContext,
    ) -> Result<(), SessionError> {
        let failed = |error: ProviderError| {
            let sandbox_error = error.sandbox_error();
            let kind = match sandbox_error {
                Some(_) => SessionErrorKind::Sandbox,
                None => SessionErrorKind::Provider,
            };
            let advice = sandbox_error.and_then(|error| error.advice());
            let advice = advice.unwrap_or_default();
            let message = format!("failed to open {}: {error}. {advice}", provider.name());
            let message = message.trim_end_matches([' ', '.']).to_owned();
            SessionError::new(kind, message).with_source(error)
        };
        let set = match tokio::time::timeout(OPEN_DEADLINE, provider.open(cx)).await {
            Ok(set) => set.map_err(failed)?,
            Err(_) => {
                let message = format!("it was not open within {} s", OPEN_DEADLINE.as_secs());
                return Err(failed(ProviderError::new(message)));
            }
        };
        self.0.push((provider.name().to_owned(), set));
        Ok(())
    }

    /// The set that was opened last.
    pub(super) fn last(&self) -> Option<&dyn ToolSet> {
        self.0.last().map(|(_, set)| &**set)
    }

    /// Closes all sets in reverse order, each within the deadline, and reports all errors. If `keeps_sandbox`, what
    /// outlives this process stays.
    pub(super) async fn release(self, keeps_sandbox: bool) -> Result<(), SessionError> {
        let mut problems = Vec::new();
        for (name, set) in self.0.into_iter().rev() {
            let released = match keeps_sandbox {
                true => set.suspend(),
                false => set.close(),
            };
            match tokio::time::timeout(CLOSE_DEADLINE, released).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => problems.push(format!("{name}: {error}")),
                Err(_) => problems.push(format!(
                    "{name}: not closed within {} s",
                    CLOSE_DEADLINE.as_secs()
                )),
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        let message = format!("failed to close the session: {}", problems.join("; "));
        Err(SessionError::new(SessionErrorKind::Provider, message))
    }
}
