//! The backend: configuration from which sandboxes are opened.

mod builder;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cantle_command_driver::check_environment;
use cantle_core::policy::{PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend, Enforcement, Isolation, Sandbox, SandboxContext, SandboxError, SandboxErrorKind,
    SandboxHandle, SandboxInfo, SandboxPath, Survival,
};
use cantle_core::secret::SecretText;
use reqwest::Url;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use self::builder::{ApiGeneration, RemoteBackendBuilder};
use crate::api::{Api, CreateRequest};
use crate::command::side;
use crate::envd::{Envd, Fault, SandboxRecord};
use crate::http::TlsCache;
use crate::policy::{self, CommandLimits};
use crate::sandbox::{RemoteSandbox, SandboxParts, parse_handle};

/// The backend's name in reports and handles.
pub(crate) const NAME: &str = "remote";

/// Time limit for a new sandbox to respond.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

const PROBE: &str = include_str!("scripts/probe.bash");
const KILL_LEFTOVERS: &str = include_str!("scripts/kill_leftovers.bash");

/// Opens sandboxes at a service that speaks E2B's protocol.
///
/// Cheap to clone; clones share one rate limit for creating sandboxes. See the [crate documentation](crate).
#[derive(Clone, Debug)]
pub struct RemoteBackend {
    service: Arc<Service>,
}

/// The service, shared by all sandboxes of a backend.
pub(crate) struct Service {
    pub(crate) api: Api,
    tls_cache: TlsCache,
    sandbox_url: Option<Url>,
    domain: String,
    template: String,
    pub(crate) lifetime: Duration,
    metadata: BTreeMap<String, String>,
    environment: BTreeMap<String, SecretText>,
    pub(crate) pause_when_idle: Option<Duration>,
    directory: Option<String>,
    /// Requests that must complete even if their caller is dropped: creating and killing sandboxes.
    tasks: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("api", &self.api)
            .field("template", &self.template)
            .finish_non_exhaustive()
    }
}

impl Service {
    pub(crate) fn connect_envd(&self, record: &SandboxRecord) -> Result<Envd, SandboxError> {
        Envd::new(
            record,
            self.sandbox_url.as_ref(),
            &self.domain,
            &self.tls_cache,
        )
    }

    fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime, the sandbox ends with its lifetime.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &runtime);
    }

    /// Completes `work` even if the caller is dropped; then the result is passed to `on_abandoned`.
    async fn complete<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
        on_abandoned: impl FnOnce(Arc<Self>, T) + Send + 'static,
    ) -> Option<T> {
        let (done, answer) = oneshot::channel();
        let service = Arc::clone(self);
        self.spawn_task(async move {
            if let Err(result) = done.send(work.await) {
                on_abandoned(service, result);
            }
        });
        answer.await.ok()
    }

    /// Kills a sandbox.
    pub(crate) async fn kill(self: &Arc<Self>, id: &str) -> Result<(), SandboxError> {
        let (service, id) = (Arc::clone(self), id.to_owned());
        let ended = self
            .complete(async move { service.api.kill(&id).await }, |_, _| {})
            .await;
        ended.unwrap_or_else(|| {
            Err(SandboxError::new(
                SandboxErrorKind::Io,
                "the sandbox was not killed because the runtime was shut down; it ends with its lifetime",
            ))
        })
    }

    /// Kills a sandbox in the background.
    pub(crate) fn kill_in_background(self: &Arc<Self>, id: &str) {
        let (service, id) = (Arc::clone(self), id.to_owned());
        self.spawn_task(async move {
            if let Err(error) = service.api.kill(&id).await {
                tracing::warn!(sandbox = id, %error, "failed to kill a sandbox; it ends with its lifetime");
            }
        });
    }

    /// Creates a sandbox; returns it with the expected enforcement report.
    async fn create_with_policy(
        self: &Arc<Self>,
        cx: &SandboxContext,
    ) -> Result<(SandboxRecord, Vec<Enforcement>), SandboxError> {
        let mut report = policy::report(&cx.policy)?;
        let network = policy::network(&cx.policy).unwrap_or_default();
        let error = match self.create(self.create_request(cx, &network)).await {
            Ok(record) => return Ok((record, report)),
            Err(error) => error,
        };
        // The service may not support network policies.
        if network.is_empty() || !may_concern_network(&error) {
            return Err(error);
        }
        if cx.policy.strictness == Strictness::Strict {
            return Err(policy::unenforceable(vec![PolicyField::Network]).with_source(error));
        }
        let record = self.create(self.create_request(cx, &Map::new())).await?;
        policy::mark_not_enforced(&mut report, PolicyField::Network);
        Ok((record, report))
    }

    async fn create(
        self: &Arc<Self>,
        request: CreateRequest,
    ) -> Result<SandboxRecord, SandboxError> {
        let service = Arc::clone(self);
        let creating = async move { service.api.create(&request).await };
        let on_abandoned = |service: Arc<Self>, result: Result<SandboxRecord, SandboxError>| {
            if let Ok(record) = result {
                service.kill_in_background(&record.sandbox_id);
            }
        };
        self.complete(creating, on_abandoned)
            .await
            .unwrap_or_else(|| {
                let message = "no sandbox was created: the runtime was shut down";
                Err(SandboxError::new(SandboxErrorKind::Io, message))
            })
    }

    fn create_request(&self, cx: &SandboxContext, network: &Map<String, Value>) -> CreateRequest {
        let mut metadata = self.metadata.clone();
        metadata.insert("cantle-run".to_owned(), cx.run.to_string());
        let environment: BTreeMap<&str, &str> = self
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        let mut body = json!({
            "templateID": self.template,
            "timeout": self.lifetime.as_secs(),
            "metadata": metadata,
        });
        if let Value::Object(body) = &mut body {
            if !environment.is_empty() {
                body.insert("envVars".to_owned(), json!(environment));
            }
            if cx.durable || self.pause_when_idle.is_some() {
                body.insert("autoPause".to_owned(), Value::Bool(true));
            }
            body.extend(network.clone());
        }
        CreateRequest {
            body,
            template: self.template.clone(),
            idempotency_key: crate::random_token(),
        }
    }

    /// Connects to a sandbox and inspects it.
    async fn enter(
        self: &Arc<Self>,
        record: &SandboxRecord,
        cx: &SandboxContext,
        mut report: Vec<Enforcement>,
        directory: Option<&str>,
        is_kept: bool,
    ) -> Result<RemoteSandbox, SandboxError> {
        let envd = self.connect_envd(record)?;
        let (home, is_root) = probe(&envd, directory, is_kept).await?;
        if is_root && cx.policy.limits.processes.is_some() {
            // The process limit doesn't apply to root.
            if cx.policy.strictness == Strictness::Strict {
                return Err(policy::unenforceable(vec![PolicyField::Processes]));
            }
            policy::mark_not_enforced(&mut report, PolicyField::Processes);
        }
        let directory = SandboxPath::new(&home)?;
        let mut info = SandboxInfo::new(NAME, &record.sandbox_id, directory);
        info.isolation = Isolation::Machine;
        info.mechanisms = vec![format!(
            "a machine of {}, from `{}`",
            self.api.address(),
            self.template
        )];
        info.enforcement = report;
        if cx.durable || is_kept {
            info.survival = Survival::Workspace;
        }
        Ok(RemoteSandbox::new(SandboxParts {
            info,
            home,
            limits: CommandLimits::new(&cx.policy.limits),
            environment: cx.policy.environment.clone(),
            service: Arc::clone(self),
            id: record.sandbox_id.clone(),
            envd,
            is_kept,
        }))
    }
}

/// Waits until the sandbox responds; returns its working directory and whether commands run as root.
async fn probe(
    envd: &Envd,
    directory: Option<&str>,
    is_kept: bool,
) -> Result<(String, bool), SandboxError> {
    let doing = "failed to enter the sandbox";
    let began = Instant::now();
    // Commands of an earlier owner must not keep running unnoticed.
    let script = if is_kept {
        [KILL_LEFTOVERS, PROBE].concat()
    } else {
        PROBE.to_owned()
    };
    let answer = loop {
        match side::run(envd, &script, &[directory.unwrap_or_default()]).await {
            Ok(answer) => break answer,
            Err(fault)
                if (fault.is_unanswered() || matches!(fault, Fault::Gone(_)))
                    && began.elapsed() < READY_TIMEOUT =>
            {
                sleep(Duration::from_millis(200)).await;
            }
            Err(fault) => {
                let error = fault.into_error(doing);
                return Err(SandboxError::new(SandboxErrorKind::Unavailable, error.to_string())
                    .with_source(error)
                    .with_advice(
                        "Check the URL or domain of the sandboxes, and that the template has bash.",
                    ));
            }
        }
    };
    let text = String::from_utf8_lossy(&answer.stdout);
    let mut lines = text.lines();
    match lines.next() {
        Some(home) if answer.success && home.starts_with('/') => {
            Ok((home.to_owned(), lines.next() == Some("0")))
        }
        _ => {
            let reason = answer.stderr.trim();
            let message = format!("{doing}: it has no working directory: {reason}");
            Err(SandboxError::new(SandboxErrorKind::Unavailable, message))
        }
    }
}

#[async_trait]
impl Backend for RemoteBackend {
    fn name(&self) -> &str {
        NAME
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        check(&cx)?;
        let (record, report) = self.service.create_with_policy(&cx).await?;
        let guard = KillGuard(Some((Arc::clone(&self.service), record.sandbox_id.clone())));
        let directory = self.service.directory.as_deref();
        let sandbox = self
            .service
            .enter(&record, &cx, report, directory, false)
            .await?;
        guard.disarm();
        Ok(Arc::new(sandbox))
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        check(&cx)?;
        let (id, directory) = parse_handle(handle)?;
        let report = policy::report(&cx.policy)?;
        let record = self.service.api.connect(&id, self.service.lifetime).await?;
        let sandbox = self
            .service
            .enter(&record, &cx, report, Some(&directory), true)
            .await?;
        Ok(Arc::new(sandbox))
    }
}

/// Checks the policy before a sandbox is created.
fn check(cx: &SandboxContext) -> Result<(), SandboxError> {
    check_environment(&cx.policy.environment)?;
    policy::report(&cx.policy).map(|_| ())
}

/// Whether the service may have refused the network settings; errors differ between services.
fn may_concern_network(error: &SandboxError) -> bool {
    let text = error.to_string().to_lowercase();
    let words = ["network", "internet", "egress", "allow", "deny"];
    // An error without text may concern anything.
    let is_named = text.ends_with("400") || words.iter().any(|word| text.contains(word));
    error.kind() == SandboxErrorKind::InvalidInput && is_named
}

/// Kills a new sandbox on drop unless it is disarmed.
struct KillGuard(Option<(Arc<Service>, String)>);

impl KillGuard {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillGuard {
    fn drop(&mut self) {
        if let Some((service, id)) = self.0.take() {
            service.kill_in_background(&id);
        }
    }
}
