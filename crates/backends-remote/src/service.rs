//! The service: creation and removal of sandboxes that complete even if their caller is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::ids::unique_id;
use cantle_core::policy::{PolicyField, Strictness};
use cantle_core::sandbox::{Enforcement, SandboxContext, SandboxError, SandboxErrorKind};
use cantle_core::secret::SecretText;
use parking_lot::Mutex;
use reqwest::Url;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::api::{Api, CreateRequest};
use crate::envd::{Envd, SandboxRecord};
use crate::http::TlsCache;
use crate::policy;

/// The settings that all sandboxes of a backend share.
#[derive(Clone)]
pub(crate) struct ServiceOptions {
    pub(crate) domain: String,
    pub(crate) template: String,
    pub(crate) lifetime: Duration,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Further fields of requests that create a sandbox.
    pub(crate) parameters: Map<String, Value>,
    pub(crate) environment: BTreeMap<String, SecretText>,
    pub(crate) pause_when_idle: Option<Duration>,
    pub(crate) directory: Option<String>,
}

/// The service, shared by all sandboxes of a backend.
pub(crate) struct Service {
    pub(crate) api: Api,
    pub(crate) tls_cache: TlsCache,
    pub(crate) sandbox_url: Option<Url>,
    pub(crate) options: ServiceOptions,
    /// Requests that must complete even if their caller is dropped: creating and killing sandboxes.
    pub(crate) tasks: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("api", &self.api)
            .field("template", &self.options.template)
            .finish_non_exhaustive()
    }
}

impl Service {
    pub(crate) fn connect_envd(&self, record: &SandboxRecord) -> Result<Envd, SandboxError> {
        Envd::new(
            record,
            self.sandbox_url.as_ref(),
            &self.options.domain,
            &self.tls_cache,
        )
    }

    fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime, the sandbox ends with its lifetime.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut tasks = self.tasks.lock();
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

    /// Creates a sandbox; returns it with the expected enforcement report and the network fields of the request.
    pub(crate) async fn create_with_policy(
        self: &Arc<Self>,
        cx: &SandboxContext,
    ) -> Result<(SandboxRecord, Vec<Enforcement>, Map<String, Value>), SandboxError> {
        let mut report = policy::report(&cx.policy)?;
        let network = policy::network(&cx.policy).unwrap_or_default();
        let error = match self.create(self.create_request(cx, &network)).await {
            Ok(record) => return Ok((record, report, network)),
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
        Ok((record, report, Map::new()))
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
        let options = &self.options;
        let mut metadata = options.metadata.clone();
        metadata.insert("cantle-run".to_owned(), cx.run.to_string());
        let environment: BTreeMap<&str, &str> = options
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        let mut body = json!({
            "templateID": options.template,
            "timeout": options.lifetime.as_secs(),
            "metadata": metadata,
        });
        if let Value::Object(body) = &mut body {
            body.extend(options.parameters.clone());
            if !environment.is_empty() {
                body.insert("envVars".to_owned(), json!(environment));
            }
            if cx.durable || options.pause_when_idle.is_some() {
                body.insert("autoPause".to_owned(), Value::Bool(true));
            }
            body.extend(network.clone());
        }
        CreateRequest {
            body,
            template: options.template.clone(),
            idempotency_key: unique_id(),
        }
    }
}

/// Whether the service may have refused the network settings; errors differ between services.
fn may_concern_network(error: &SandboxError) -> bool {
    let text = error.to_string().to_lowercase();
    let words = ["network", "internet", "egress", "allow", "deny"];
    // An error without text may concern anything.
    let is_named = text.ends_with("400") || words.iter().any(|word| text.contains(word));
    error.kind() == SandboxErrorKind::InvalidInput && is_named
}
