//! The interpreter: configuration from which sessions are opened.

mod session;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    ArtifactLimits, ArtifactSink, Backend, Sandbox, SandboxContext, SandboxError, SpawnRequest,
    Stdin,
};
use cantle_core::tool::Requirements;

pub use self::session::PythonSession;
use crate::execution::{Execution, ExecutionOutcome};
use crate::packages::PackageSet;
use crate::source::SourceFacts;

/// Runs code from standard input with a traceback of the user's frames.
const ONE_SHOT: &str = include_str!("one_shot.py");
/// Its argument: what writes the traceback, which is compiled only for one.
const TRACEBACK: &str = include_str!("one_shot_traceback.py");

/// Configuration of a Python interpreter in sandboxes of a backend. Immutable; clones are cheap.
///
/// ```no_run
/// use cantle_backends_local::LocalBackend;
/// use cantle_python::Interpreter;
///
/// # async fn example() -> Result<(), cantle_core::sandbox::SandboxError> {
/// let python = Interpreter::new(LocalBackend::new());
/// let session = python.open().await?;
/// session.execute("main", "x = 20").await?;
/// let execution = session.execute("main", "x + 1").await?;
/// assert_eq!(execution.results[0].text(), Some("21"));
/// session.close().await
/// # }
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct Interpreter {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) policy: Policy,
    pub(crate) python: Option<String>,
    pub(crate) allowed_imports: Option<Arc<[String]>>,
    pub(crate) timeout: Duration,
    pub(crate) artifacts: Option<(ArtifactLimits, Arc<dyn ArtifactSink>)>,
    pub(crate) figures: bool,
    pub(crate) packages: Option<PackageSet>,
    pub(crate) missing_module_advice: Option<Arc<str>>,
}

impl Interpreter {
    /// Creates an interpreter with the policy [`Policy::workspace`], the sandbox's `python3`, all imports and a timeout of
    /// 60 s per call, without artifacts.
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self {
            backend: Arc::new(backend),
            policy: Policy::workspace(),
            python: None,
            allowed_imports: None,
            timeout: Duration::from_secs(60),
            artifacts: None,
            figures: true,
            packages: None,
            missing_module_advice: None,
        }
    }

    /// Sets the policy of the sandboxes that it opens.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the Python to use: a name on the sandbox's `PATH`, or a path in the sandbox.
    pub fn python(mut self, python: impl Into<String>) -> Self {
        self.python = Some(python.into());
        self
    }

    /// Uses packages that were prepared. A sandbox that this interpreter or a session of an agent opens shows them
    /// read-only; in another one they are a copy, which code can change.
    pub fn packages(mut self, packages: PackageSet) -> Self {
        self.packages = Some(packages);
        self
    }

    /// Sets what a context reports after a `ModuleNotFoundError`, such as how to install packages.
    pub fn missing_module_advice(mut self, advice: impl Into<Arc<str>>) -> Self {
        self.missing_module_advice = Some(advice.into());
        self
    }

    /// Allows only these modules to be imported by import statements; an empty list allows none. This guides a model;
    /// it is no boundary, because code can import in other ways.
    pub fn allowed_imports<M: Into<String>>(
        mut self,
        modules: impl IntoIterator<Item = M>,
    ) -> Self {
        self.allowed_imports = Some(modules.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the time limit of a call.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Collects the files of the working directory that changed since the session's previous call, or since the start of
    /// its first one, and copies them into `sink`; `()` only describes them. This includes what background processes and
    /// the host change between calls.
    pub fn artifacts(mut self, limits: ArtifactLimits, sink: impl ArtifactSink + 'static) -> Self {
        self.artifacts = Some((limits, Arc::new(sink)));
        self
    }

    /// Leaves matplotlib's backend alone. Otherwise, figures of pyplot are results of a kernel's call.
    pub fn without_figures(mut self) -> Self {
        self.figures = false;
        self
    }

    /// Analyses code without executing it.
    pub fn check(&self, code: &str) -> Execution {
        self.refusal(&SourceFacts::of(code.as_bytes()))
            .unwrap_or_else(|| Execution::new(ExecutionOutcome::NotExecuted))
    }

    /// Runs code in a new interpreter in a sandbox of its own.
    ///
    /// # Errors
    /// If the sandbox can't be opened, fails or can't be closed. Code that fails is a result.
    pub async fn run(&self, code: &str) -> Result<Execution, SandboxError> {
        if let Some(refused) = self.import_refusal(|| SourceFacts::of(code.as_bytes())) {
            return Ok(refused);
        }
        let session = self.open().await?;
        let execution = session.run(code).await;
        let closed = session.close().await;
        // The run's error is the first one, and often the cause of the other.
        let execution = execution?;
        closed.map(|()| execution)
    }

    /// Opens a sandbox for a session.
    ///
    /// # Errors
    /// As [`Backend::open`].
    pub async fn open(&self) -> Result<PythonSession, SandboxError> {
        let mut policy = self.policy.clone();
        self.requirements().add_to(&mut policy);
        let context = SandboxContext::new(RunId::new(), policy);
        Ok(self.attach(self.backend.open(context).await?))
    }

    /// Returns what a sandbox of this machine has to show and set before it opens.
    pub fn requirements(&self) -> Requirements {
        let packages = self.packages.as_ref();
        packages.map(PackageSet::requirements).unwrap_or_default()
    }

    /// Returns a session in an open sandbox, which keeps its own policy.
    pub fn attach(&self, sandbox: Arc<dyn Sandbox>) -> PythonSession {
        PythonSession::new(self.clone(), sandbox)
    }

    /// Returns the execution of code that is not started, if there are allowed imports: its own are others, or unknown
    /// because of a syntax error. Otherwise the interpreter itself reports syntax errors.
    pub(crate) fn import_refusal(&self, facts: impl FnOnce() -> SourceFacts) -> Option<Execution> {
        self.allowed_imports.as_ref()?;
        self.refusal(&facts())
    }

    /// Returns the execution of code that is refused, because of a syntax error or an import.
    fn refusal(&self, facts: &SourceFacts) -> Option<Execution> {
        let refused = || Execution::new(ExecutionOutcome::Refused);
        if let Some(error) = &facts.syntax_error {
            return Some(refused().with_note(format!("Syntax error: {error}.")));
        }
        let allowed = self.allowed_imports.as_deref();
        let forbidden = facts.forbidden_imports(allowed);
        let forbidden: Vec<_> = forbidden
            .take(20)
            .map(|it| format!("`{}` (line {})", it.module, it.line))
            .collect();
        if forbidden.is_empty() {
            return None;
        }
        let allowed = match allowed.unwrap_or_default() {
            [] => "No module may be imported".to_owned(),
            modules => format!("Allowed are {}", modules.join(", ")),
        };
        let note = format!(
            "Imports that are not allowed: {}. {allowed}.",
            forbidden.join(", ")
        );
        Some(refused().with_note(note))
    }
}

/// Returns the command that runs code in a new interpreter. Tracebacks show its lines.
pub fn one_shot(python: &str, code: impl Into<Bytes>) -> SpawnRequest {
    SpawnRequest::argv([python, "-c", ONE_SHOT, TRACEBACK])
        .with_env("PYTHONIOENCODING", "utf-8")
        .with_stdin(Stdin::Bytes(code.into()))
}
