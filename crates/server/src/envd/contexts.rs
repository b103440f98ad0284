//! The contexts of a sandbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cantle_core::code::{CodeError, CodeSession};
use cantle_core::sandbox::SandboxPath;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::error::{EnvdError, Result};
use super::path;
use crate::accounts::{Account, Lease};
use crate::random;

/// Maximum number of contexts of a sandbox, and of executions at once.
const MAX_CONTEXTS: usize = 32;
const MAX_EXECUTIONS: usize = 32;
/// Maximum length of a working directory's path.
const MAX_PATH_BYTES: usize = 4096;
const ID_CHARS: usize = 20;

const LOST_VARIABLES: &str = "The sandbox was paused since it was created, which ends the interpreter: variables, functions and imports from before are lost. Files are still there.";

/// A language that code can be executed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Language {
    /// In an interpreter that keeps variables.
    Python,
    /// In a process of each execution's own.
    Bash,
    Javascript,
}

impl Language {
    const ALL: [(&str, Self); 3] = [
        ("python", Self::Python),
        ("bash", Self::Bash),
        ("javascript", Self::Javascript),
    ];

    /// Returns a language and its name, in which letters have any case.
    fn parse(name: &str) -> Result<(&'static str, Self)> {
        let lower = match name.to_ascii_lowercase() {
            short if short == "js" => "javascript".to_owned(),
            lower => lower,
        };
        let named = Self::ALL.into_iter().find(|(known, _)| *known == lower);
        named.ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            EnvdError::invalid(format!(
                "the language '{shown}' is not supported: use python, bash or javascript"
            ))
        })
    }
}

/// The options of a new context.
#[derive(Deserialize)]
pub(crate) struct ContextOptions {
    language: Option<String>,
    cwd: Option<String>,
}

/// A context, as clients see it.
#[derive(Clone, Serialize)]
pub(crate) struct ContextInfo {
    pub(crate) id: String,
    pub(crate) language: Language,
    pub(crate) cwd: String,
}

/// One context. A restart replaces it.
pub(crate) struct CodeContext {
    pub(crate) info: ContextInfo,
    /// Cancelled when the context is restarted or removed.
    pub(crate) ended: CancellationToken,
    executions: AtomicU64,
    /// The sandbox was paused, and no error has been explained by that yet.
    was_paused: AtomicBool,
    /// The descriptors of its interpreter.
    descriptors: Mutex<Option<Lease>>,
}

impl CodeContext {
    fn new(info: ContextInfo) -> Arc<Self> {
        Arc::new(Self {
            info,
            ended: CancellationToken::new(),
            executions: AtomicU64::new(0),
            was_paused: AtomicBool::new(false),
            descriptors: Mutex::default(),
        })
    }

    /// Returns the number of an execution that begins.
    pub(crate) fn next_number(&self) -> u64 {
        self.executions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a note for an error that a pause may have caused, the first time.
    pub(crate) fn lost_variables(&self, error: &CodeError) -> Option<String> {
        let is_lost = error.name == "NameError" && self.was_paused.swap(false, Ordering::Relaxed);
        is_lost.then(|| LOST_VARIABLES.to_owned())
    }

    /// Takes the descriptors of its interpreter, unless it has them.
    pub(crate) fn take_descriptors(&self, account: &Account) -> Result<()> {
        let mut descriptors = self.descriptors.lock();
        if descriptors.is_none() {
            *descriptors = Some(account.take_descriptors()?);
        }
        Ok(())
    }
}

/// The contexts of a sandbox; each language has one whose id is its name.
pub(crate) struct Contexts {
    pub(crate) session: Arc<dyn CodeSession>,
    pub(crate) executions: Arc<Semaphore>,
    /// Oldest first: clients expect the latest one at the end of the list.
    all: Mutex<Vec<Arc<CodeContext>>>,
}

impl Contexts {
    pub(crate) fn new(session: Arc<dyn CodeSession>, home: &SandboxPath) -> Self {
        let default = |(name, language): (&str, Language)| {
            CodeContext::new(ContextInfo {
                id: name.to_owned(),
                language,
                cwd: home.to_string(),
            })
        };
        Self {
            session,
            executions: Arc::new(Semaphore::new(MAX_EXECUTIONS)),
            all: Mutex::new(Language::ALL.into_iter().map(default).collect()),
        }
    }

    /// Records that the sandbox was paused before, which ended the interpreters of all contexts.
    pub(crate) fn set_paused(&self) {
        for context in self.all.lock().iter() {
            context.was_paused.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn list(&self) -> Vec<ContextInfo> {
        let all = self.all.lock();
        all.iter().map(|context| context.info.clone()).collect()
    }

    /// Creates a context. Its interpreter starts with the first execution.
    pub(crate) fn create(
        &self,
        options: ContextOptions,
        home: &SandboxPath,
    ) -> Result<ContextInfo> {
        let (_, language) = Language::parse(options.language.as_deref().unwrap_or("python"))?;
        let cwd = options.cwd.unwrap_or_default();
        if cwd.len() > MAX_PATH_BYTES {
            return Err(EnvdError::invalid("the path of the directory is too long"));
        }
        let info = ContextInfo {
            id: random::text(ID_CHARS, EnvdError::internal)?,
            language,
            cwd: path::resolve(&cwd, home)?.to_string(),
        };
        let mut all = self.all.lock();
        if all.len() >= MAX_CONTEXTS {
            let message = format!("the sandbox has {MAX_CONTEXTS} contexts: remove one first");
            return Err(EnvdError::exhausted(message));
        }
        all.push(CodeContext::new(info.clone()));
        Ok(info)
    }

    /// Returns the context of an execution.
    pub(crate) fn select(
        &self,
        id: Option<&str>,
        language: Option<&str>,
    ) -> Result<Arc<CodeContext>> {
        match (id, language) {
            (Some(_), Some(_)) => Err(EnvdError::invalid(
                "only one of context_id and language can be provided",
            )),
            (Some(id), None) => self.find(id),
            (None, language) => {
                let (id, _) = Language::parse(language.unwrap_or("python"))?;
                self.find(id)
            }
        }
    }

    fn find(&self, id: &str) -> Result<Arc<CodeContext>> {
        let all = self.all.lock();
        let found = all.iter().find(|context| context.info.id == id);
        found.map(Arc::clone).ok_or_else(|| {
            let shown: String = id.chars().take(40).collect();
            EnvdError::not_found(format!("context {shown} not found"))
        })
    }

    /// Interrupts the executions of a context and forgets its variables.
    pub(crate) async fn restart(&self, id: &str) -> Result<()> {
        let context = self.find(id)?;
        context.ended.cancel();
        self.session.end(id).await;
        let mut all = self.all.lock();
        // It may have been removed meanwhile.
        if let Some(index) = all.iter().position(|it| Arc::ptr_eq(it, &context)) {
            all.remove(index);
            all.push(CodeContext::new(context.info.clone()));
        }
        Ok(())
    }

    /// Removes a context; one with the name of a language is restarted instead, because each language keeps it.
    pub(crate) async fn remove(&self, id: &str) -> Result<()> {
        if Language::parse(id).is_ok() {
            return self.restart(id).await;
        }
        let context = self.find(id)?;
        context.ended.cancel();
        self.session.end(id).await;
        self.all.lock().retain(|context| context.info.id != id);
        Ok(())
    }

    /// Ends the interpreter of a context that was removed before an execution started it.
    pub(crate) async fn end_if_removed(&self, id: &str) {
        if self.find(id).is_err() {
            self.session.end(id).await;
        }
    }
}
