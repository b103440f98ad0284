//! Sessions: Python in one sandbox.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::code::{CodeError, CodeObserver, CodeRequest, RichResult};
use cantle_core::sandbox::{
    Channel, ExitStatus, RenderLimits, Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _,
    SandboxPath, SpawnRequest, Spill, Walk,
};
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;

use super::{Interpreter, one_shot};
use crate::discovery::{Python, find_python};
use crate::execution::{Execution, ExecutionOutcome};
use crate::kernel::{Kernel, LOST_VARIABLES, LongOutput};
use crate::source::SourceFacts;

/// Reported once by a session whose packages are a copy.
const COPIED: &str =
    "The packages were copied into the sandbox; there they are not protected from writing.";
/// Reported if a new process of the code lacks what that defined.
const NOT_IN_PROCESS: &str = "A process that multiprocessing starts by `spawn` or `forkserver` does not have the functions and classes of this code: use `multiprocessing.get_context(\"fork\")`, or write them to a module and import it.";
/// Maximum number of contexts of a session, each of which is a process.
const MAX_CONTEXTS: usize = 64;
/// Maximum number of files that artifacts are looked for among.
const MAX_WALKED: usize = 100_000;
/// Maximum number of files of a working directory whose changes the tool lists, which takes some 20 ms.
const MAX_LISTED: usize = 10_000;

/// Python in one sandbox: one-shot runs, and contexts that keep their variables.
pub struct PythonSession {
    pub(crate) settings: Interpreter,
    sandbox: Arc<dyn Sandbox>,
    /// The Python of the sandbox, once one was found.
    python: OnceCell<Python>,
    has_unreported_copy: AtomicBool,
    contexts: Mutex<HashMap<String, Arc<Mutex<ContextState>>>>,
    /// The listing after the latest call, which is the next call's listing before: it saves a walk per call, and what
    /// background processes of a call write after its end is an artifact of the next one.
    latest_walk: Mutex<Option<Arc<Walk>>>,
}

#[derive(Default)]
struct ContextState {
    kernel: Option<Kernel>,
    has_run: bool,
}

impl fmt::Debug for PythonSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PythonSession");
        debug
            .field("sandbox", &self.sandbox.info().id)
            .finish_non_exhaustive()
    }
}

impl PythonSession {
    pub(super) fn new(settings: Interpreter, sandbox: Arc<dyn Sandbox>) -> Self {
        Self {
            settings,
            sandbox,
            python: OnceCell::new(),
            has_unreported_copy: AtomicBool::new(false),
            contexts: Mutex::default(),
            latest_walk: Mutex::default(),
        }
    }

    /// Returns the sandbox.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// Runs code in a new interpreter.
    ///
    /// # Errors
    /// If the sandbox fails. Code that fails is a result.
    pub async fn run(&self, code: &str) -> Result<Execution, SandboxError> {
        let request = match self.command(code).await? {
            Ok(request) => request,
            Err(refused) => return Ok(refused),
        };
        let before = self.walk_before().await?;
        let output = self.sandbox.run(request).await?;
        let outcome = match output.exit.status {
            ExitStatus::Code(0) => ExecutionOutcome::Completed,
            ExitStatus::Code(_) => ExecutionOutcome::Raised,
            ExitStatus::TimedOut { .. } => ExecutionOutcome::TimedOut,
            ExitStatus::LimitReached { .. } => ExecutionOutcome::LimitReached,
            ExitStatus::Cancelled => ExecutionOutcome::Cancelled,
            _ => ExecutionOutcome::Killed,
        };
        let mut execution = Execution::new(outcome);
        execution.exit = Some(output.exit.status);
        execution.stdout = output.stdout;
        execution.stderr = output.stderr;
        execution.stdout_file = output.exit.stdout.spilled;
        execution.stderr_file = output.exit.stderr.spilled;
        execution.notes = output.exit.notes;
        execution.duration = output.exit.duration;
        self.complete(execution, before).await
    }

    /// Returns the command of a one-shot run, for callers that forward its output, or the execution of code that is not
    /// started.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn command(
        &self,
        code: &str,
    ) -> Result<Result<SpawnRequest, Execution>, SandboxError> {
        let shown = RenderLimits::default().channel_chars;
        let command = |python: &str| {
            one_shot(python, code.to_owned())
                .with_env("MPLBACKEND", "agg")
                .with_timeout(self.settings.timeout)
                .with_spill(Spill::after(u64::try_from(shown).unwrap_or(u64::MAX)))
        };
        Ok(self.prepare(code).await?.map(command))
    }

    /// Executes code in a context, which keeps variables from call to call. The first call starts it.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn execute(&self, context: &str, code: &str) -> Result<Execution, SandboxError> {
        let never = CancellationToken::new();
        self.execute_with_observer(context, code, never, &mut |_, _| {})
            .await
    }

    /// Executes code like [`execute`](Self::execute), passes each piece of output to `observer`, and interrupts the code
    /// when `cancellation` is cancelled. Dropping the future kills the context's interpreter.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn execute_with_observer(
        &self,
        context: &str,
        code: &str,
        cancellation: CancellationToken,
        observer: &mut (dyn FnMut(Channel, &Bytes) + Send),
    ) -> Result<Execution, SandboxError> {
        let request = CodeRequest::new(context, code, self.settings.timeout, cancellation);
        self.execute_request(request, observer).await
    }

    /// Executes a request, and collects its results.
    pub(crate) async fn execute_request(
        &self,
        request: CodeRequest,
        observer: &mut (dyn FnMut(Channel, &Bytes) + Send),
    ) -> Result<Execution, SandboxError> {
        let python = match self.prepare(&request.code).await? {
            Ok(python) => python,
            Err(refused) => return Ok(refused),
        };
        let mut collector = Collector {
            observer,
            results: Vec::new(),
        };
        let executed = self.execute_in(python, &request, LongOutput::Kept, &mut collector);
        let mut execution = executed.await?;
        execution.results = collector.results;
        Ok(execution)
    }

    /// Executes code that has been checked.
    pub(crate) async fn execute_in(
        &self,
        python: &str,
        request: &CodeRequest,
        long_output: LongOutput,
        observer: &mut dyn CodeObserver,
    ) -> Result<Execution, SandboxError> {
        let Some(state) = self.context(&request.context).await else {
            let note = format!("A session has at most {MAX_CONTEXTS} contexts; close one first.");
            return Ok(Execution::new(ExecutionOutcome::Refused).with_note(note));
        };
        let mut state = tokio::select! {
            biased;
            () = request.cancellation.cancelled() => {
                let note = "The call was cancelled before its code began.";
                return Ok(Execution::new(ExecutionOutcome::Cancelled).with_note(note));
            }
            state = state.lock() => state,
        };
        let before = self.walk_before().await?;
        // Taken, so that a dropped call drops the kernel with it.
        let (mut kernel, is_new) = match state.kernel.take() {
            Some(kernel) => (kernel, false),
            None => {
                let figures = self.settings.figures;
                let directory = request.directory.as_deref().unwrap_or_default();
                match Kernel::start(&*self.sandbox, python, figures, directory).await? {
                    Ok(kernel) => (kernel, true),
                    Err(reason) => {
                        let note = format!("Python did not start: {reason}");
                        return Ok(Execution::new(ExecutionOutcome::SetupFailed).with_note(note));
                    }
                }
            }
        };
        let had_run = std::mem::replace(&mut state.has_run, true);
        let (mut execution, is_usable) = kernel.execute(request, long_output, observer).await?;
        state.kernel = is_usable.then_some(kernel);
        let is_missing = |error: &CodeError| error.name == "ModuleNotFoundError";
        if let Some(advice) = &self.settings.missing_module_advice
            && execution.error.as_ref().is_some_and(is_missing)
        {
            execution.notes.push(advice.to_string());
        }
        if is_new && had_run {
            execution.notes.insert(0, LOST_VARIABLES.to_owned());
        }
        drop(state);
        self.complete(execution, before).await
    }

    /// Ends a context's interpreter and forgets its variables. A call that is running is waited for.
    pub async fn restart(&self, context: &str) {
        let state = self.contexts.lock().await.get(context).cloned();
        if let Some(state) = state {
            *state.lock().await = ContextState::default();
        }
    }

    /// Ends a context's interpreter and removes the context.
    pub async fn remove(&self, context: &str) {
        self.contexts.lock().await.remove(context);
    }

    /// Ends all interpreters and closes the sandbox.
    ///
    /// # Errors
    /// As [`Sandbox::close`].
    pub async fn close(&self) -> Result<(), SandboxError> {
        self.contexts.lock().await.clear();
        self.sandbox.close().await
    }

    async fn context(&self, name: &str) -> Option<Arc<Mutex<ContextState>>> {
        let mut contexts = self.contexts.lock().await;
        if contexts.len() >= MAX_CONTEXTS && !contexts.contains_key(name) {
            return None;
        }
        Some(Arc::clone(contexts.entry(name.to_owned()).or_default()))
    }

    /// Returns the Python for this code, or the execution of code that is not started.
    async fn prepare(&self, code: &str) -> Result<Result<&str, Execution>, SandboxError> {
        let python = match self.python().await? {
            Ok(python) => python,
            Err(reason) => {
                let failed = Execution::new(ExecutionOutcome::SetupFailed).with_note(reason);
                return Ok(Err(self.report(failed)));
            }
        };
        let facts = || SourceFacts::for_minor_version(code.as_bytes(), python.minor);
        Ok(match self.settings.import_refusal(facts) {
            Some(refused) => Err(self.report(refused)),
            None => Ok(&python.program),
        })
    }

    /// Returns the Python of the sandbox, or why there is none.
    pub(crate) async fn python(&self) -> Result<Result<&Python, String>, SandboxError> {
        // The next call looks again: the reason may be temporary, such as a full disk.
        let found = self.python.get_or_try_init(|| async {
            match self.find_python().await {
                Ok(found) => found.map_err(Ok),
                Err(error) => Err(Err(error)),
            }
        });
        match found.await {
            Ok(python) => Ok(Ok(python)),
            Err(missing) => missing.map(Err),
        }
    }

    async fn find_python(&self) -> Result<Result<Python, String>, SandboxError> {
        let configured = self.settings.python.as_deref();
        let Some(packages) = &self.settings.packages else {
            return find_python(&*self.sandbox, configured).await;
        };
        let mut found = find_python(&*self.sandbox, Some(&packages.python())).await?;
        if found.is_err() {
            let own = match find_python(&*self.sandbox, configured).await? {
                Ok(own) => own,
                Err(reason) => return Ok(Err(reason)),
            };
            let copied = packages.copy_into(&*self.sandbox, &own.program).await?;
            let copied = match copied {
                Ok(python) => python,
                Err(reason) => return Ok(Err(reason)),
            };
            found = find_python(&*self.sandbox, Some(&copied)).await?;
            self.has_unreported_copy.store(true, Ordering::Relaxed);
        }
        let expected = packages.minor_version();
        Ok(found.and_then(|python| match python.minor == expected {
            true => Ok(python),
            false => Err(format!(
                "The packages were installed for Python 3.{expected}, and the sandbox's is 3.{} now; install them again.",
                python.minor
            )),
        }))
    }

    /// Lists the working directory, to tell what a call of the tool changed; `None` if that takes too long.
    pub(crate) async fn listing(&self) -> Result<Option<Walk>, SandboxError> {
        let root = SandboxPath::working_directory();
        match self.sandbox.walk(&root, MAX_LISTED).await {
            Ok(walk) => Ok((!walk.is_truncated).then_some(walk)),
            Err(error) if error.kind() == SandboxErrorKind::Gone => Err(error),
            Err(_) => Ok(None),
        }
    }

    async fn walk_before(&self) -> Result<Option<Arc<Walk>>, SandboxError> {
        if self.settings.artifacts.is_none() {
            return Ok(None);
        }
        let mut latest = self.latest_walk.lock().await;
        let walk = match &*latest {
            Some(walk) => Arc::clone(walk),
            None => Arc::new(self.walk().await?),
        };
        *latest = Some(Arc::clone(&walk));
        Ok(Some(walk))
    }

    async fn walk(&self) -> Result<Walk, SandboxError> {
        let root = SandboxPath::working_directory();
        self.sandbox.walk(&root, MAX_WALKED).await
    }

    /// Adds advice on processes, the artifacts and the enforcement report.
    async fn complete(
        &self,
        mut execution: Execution,
        before: Option<Arc<Walk>>,
    ) -> Result<Execution, SandboxError> {
        // The message depends on the version of Python.
        let is_missing =
            |line: &str| line.starts_with("AttributeError: ") && line.contains("module '__main__'");
        if execution.stderr.text().lines().any(is_missing) {
            execution.notes.push(NOT_IN_PROCESS.to_owned());
        }
        if let (Some(before), Some((limits, sink))) = (before, &self.settings.artifacts) {
            let root = SandboxPath::working_directory();
            let after = Arc::new(self.walk().await?);
            let artifacts = self
                .sandbox
                .artifacts(&root, &before, &after, *limits, &**sink);
            execution.artifacts = artifacts.await?;
            *self.latest_walk.lock().await = Some(after);
        }
        Ok(self.report(execution))
    }

    fn report(&self, mut execution: Execution) -> Execution {
        execution
            .enforcement
            .clone_from(&self.sandbox.info().enforcement);
        if self.has_unreported_copy.swap(false, Ordering::Relaxed) {
            execution.notes.push(COPIED.to_owned());
        }
        execution
    }
}

/// Keeps the results of a call.
struct Collector<'o> {
    observer: &'o mut (dyn FnMut(Channel, &Bytes) + Send),
    results: Vec<RichResult>,
}

#[async_trait]
impl CodeObserver for Collector<'_> {
    async fn output(&mut self, channel: Channel, bytes: Bytes) {
        (self.observer)(channel, &bytes);
    }

    async fn result(&mut self, result: RichResult) {
        self.results.push(result);
    }

    fn may_buffer(&mut self, _: usize) -> bool {
        true
    }
}
