//! The configuration from which sandboxes are opened.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
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

use crate::api::{Api, Wanted};
use crate::command::{check_variable, side};
use crate::envd::{Envd, Fault, Made};
use crate::gate::Gate;
use crate::http;
use crate::policy::{self, OwnLimits};
use crate::sandbox::{Parts, RemoteSandbox, kept_as};
use crate::tls::Trust;

/// What the backend is called in reports and handles.
pub(crate) const NAME: &str = "remote";

const DEFAULT_DOMAIN: &str = "e2b.app";
const DEFAULT_TEMPLATE: &str = "base";
/// Prolonged as long as somebody has the sandbox; what is left of it is how long it outlives us.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);
/// Less could end between two calls.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(15);
const DEFAULT_AT_ONCE: usize = 8;
const DEFAULT_SPACING: Duration = Duration::from_millis(200);
/// How long a sandbox that was made may take to answer.
const READY: Duration = Duration::from_secs(15);

const LOOK: &str = include_str!("scripts/look.bash");
const CLEAR: &str = include_str!("scripts/clear.bash");

/// Which paths of the service's API are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApiGeneration {
    /// The second, or the first where the service has no second.
    #[default]
    Newest,
    /// The first.
    V1,
    /// The second.
    V2,
}

/// Opens sandboxes at a service that speaks E2B's protocol.
///
/// Cheap to clone; clones share one gate for making sandboxes. See the [crate's documentation](crate).
#[derive(Clone, Debug)]
pub struct RemoteBackend {
    service: Arc<Service>,
}

impl RemoteBackend {
    /// E2B's own service, with everything else at its default. Needs a key.
    #[must_use]
    pub fn builder() -> RemoteBackendBuilder {
        RemoteBackendBuilder {
            api_key: None,
            api_url: None,
            sandbox_url: None,
            domain: DEFAULT_DOMAIN.to_owned(),
            template: DEFAULT_TEMPLATE.to_owned(),
            lifetime: DEFAULT_LIFETIME,
            metadata: BTreeMap::new(),
            environment: BTreeMap::new(),
            generation: ApiGeneration::default(),
            at_once: DEFAULT_AT_ONCE,
            spacing: DEFAULT_SPACING,
            pause_when_idle: None,
            directory: None,
        }
    }

    /// What the environment says: `E2B_API_KEY`, `E2B_API_URL`, `E2B_SANDBOX_URL` and `E2B_DOMAIN`, as
    /// E2B's own clients read them. Nothing else here looks at the environment, but for
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    #[must_use]
    pub fn from_env() -> RemoteBackendBuilder {
        let read = |name| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let mut builder = Self::builder();
        builder.api_key = read("E2B_API_KEY").map(SecretText::new);
        builder.api_url = read("E2B_API_URL");
        builder.sandbox_url = read("E2B_SANDBOX_URL");
        if let Some(domain) = read("E2B_DOMAIN") {
            builder.domain = domain;
        }
        builder
    }
}

/// Describes a [`RemoteBackend`].
#[derive(Clone)]
pub struct RemoteBackendBuilder {
    api_key: Option<SecretText>,
    api_url: Option<String>,
    sandbox_url: Option<String>,
    domain: String,
    template: String,
    lifetime: Duration,
    metadata: BTreeMap<String, String>,
    environment: BTreeMap<String, SecretText>,
    generation: ApiGeneration,
    at_once: usize,
    spacing: Duration,
    pause_when_idle: Option<Duration>,
    directory: Option<String>,
}

/// An address may hold a password until it has been checked.
impl fmt::Debug for RemoteBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteBackendBuilder")
            .field("domain", &self.domain)
            .field("template", &self.template)
            .finish_non_exhaustive()
    }
}

impl RemoteBackendBuilder {
    /// The key for the service. White space around it is dropped.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<SecretText>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Where the API is that makes sandboxes; `https://api.` and the domain otherwise.
    #[must_use]
    pub fn api_url(mut self, url: impl Into<String>) -> Self {
        self.api_url = Some(url.into());
        self
    }

    /// Where all sandboxes are reached, told apart by headers. Otherwise each has a host of the domain.
    #[must_use]
    pub fn sandbox_url(mut self, url: impl Into<String>) -> Self {
        self.sandbox_url = Some(url.into());
        self
    }

    /// The service's domain, `e2b.app` by default. What the service says of a sandbox comes first.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = domain.into();
        self
    }

    /// The template that sandboxes are made from, `base` by default. It has to have bash.
    #[must_use]
    pub fn template(mut self, template: impl Into<String>) -> Self {
        self.template = template.into();
        self
    }

    /// How long a sandbox lives without us: 5 minutes by default, 15 seconds at least. Ours are
    /// prolonged as long as they are held.
    #[must_use]
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// A word about each sandbox, for its owner to find it by.
    #[must_use]
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// A variable that everything in the sandbox has, besides the policy's for commands.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<SecretText>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// Which paths of the API are used; the newest that the service has by default.
    #[must_use]
    pub fn api_generation(mut self, generation: ApiGeneration) -> Self {
        self.generation = generation;
        self
    }

    /// How many sandboxes are made at once, 8 by default, and how far apart, 200 ms by default.
    #[must_use]
    pub fn creation_rate(mut self, at_once: usize, spacing: Duration) -> Self {
        self.at_once = at_once;
        self.spacing = spacing;
        self
    }

    /// Pauses a sandbox that nobody has used for so long, and with it whatever still runs in it. The
    /// next use wakes it.
    #[must_use]
    pub fn pause_when_idle(mut self, idle: Duration) -> Self {
        self.pause_when_idle = Some(idle);
        self
    }

    /// The working directory, absolute; made where it is missing. The user's home by default.
    #[must_use]
    pub fn working_directory(mut self, directory: impl Into<String>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Makes the backend. For an `https` address this reads the system's certificates from disk.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unavailable`] where there is no key or one that can't be sent, or an
    /// address is none; [`SandboxErrorKind::InvalidInput`] where a variable's name or the working
    /// directory can't be.
    pub fn build(self) -> Result<RemoteBackend, SandboxError> {
        let key = self
            .api_key
            .as_ref()
            .map(|key| key.expose().trim())
            .unwrap_or_default();
        if key.is_empty() {
            let message = "there is no API key for the remote sandboxes";
            return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("Set E2B_API_KEY, or give the key to the backend."));
        }
        let api_url = self
            .api_url
            .unwrap_or_else(|| format!("https://api.{}", self.domain));
        let sandbox_url = match &self.sandbox_url {
            Some(url) => Some(http::address("URL of the sandboxes", url)?),
            None => None,
        };
        for (name, value) in &self.environment {
            check_variable(name, value.expose())?;
        }
        if self
            .directory
            .as_ref()
            .is_some_and(|it| !it.starts_with('/') || it.contains('\0'))
        {
            let message = "the working directory of a remote sandbox must be an absolute path";
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        let trust = Trust::default();
        let api = Api::new(
            http::address("API's URL", &api_url)?,
            &SecretText::new(key),
            self.environment.values().cloned(),
            self.generation,
            Gate::new(self.at_once, self.spacing),
            &trust,
        )?;
        Ok(RemoteBackend {
            service: Arc::new(Service {
                api,
                trust,
                sandbox_url,
                domain: self.domain,
                template: self.template,
                lifetime: self.lifetime.max(SHORTEST_LIFETIME),
                metadata: self.metadata,
                environment: self.environment,
                pause_when_idle: self.pause_when_idle,
                directory: self.directory,
                tasks: Mutex::default(),
            }),
        })
    }
}

/// The service as all sandboxes of a backend see it.
pub(crate) struct Service {
    pub(crate) api: Api,
    trust: Trust,
    sandbox_url: Option<Url>,
    domain: String,
    template: String,
    pub(crate) lifetime: Duration,
    metadata: BTreeMap<String, String>,
    environment: BTreeMap<String, SecretText>,
    pub(crate) pause_when_idle: Option<Duration>,
    directory: Option<String>,
    /// What must be brought to its end though nobody waits: a sandbox that is made, one that is ended.
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
    pub(crate) fn way_into(&self, made: &Made) -> Result<Envd, SandboxError> {
        Envd::new(made, self.sandbox_url.as_ref(), &self.domain, &self.trust)
    }

    fn attend(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime there is nobody to do it: the sandbox's lifetime ends it.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &runtime);
    }

    /// Does something to its end, also where nobody waits for it any more.
    async fn surely<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
        undone: impl FnOnce(Arc<Self>, T) + Send + 'static,
    ) -> Option<T> {
        let (done, answer) = oneshot::channel();
        let service = Arc::clone(self);
        self.attend(async move {
            if let Err(result) = done.send(work.await) {
                undone(service, result);
            }
        });
        answer.await.ok()
    }

    /// Ends a sandbox.
    pub(crate) async fn end(self: &Arc<Self>, id: &str) -> Result<(), SandboxError> {
        let (service, id) = (Arc::clone(self), id.to_owned());
        let ended = self
            .surely(async move { service.api.kill(&id).await }, |_, _| {})
            .await;
        ended.unwrap_or_else(|| {
            Err(SandboxError::new(
                SandboxErrorKind::Io,
                "the sandbox is left to the end of its lifetime: the runtime was shut down",
            ))
        })
    }

    /// Ends a sandbox when there is time.
    pub(crate) fn end_some_time(self: &Arc<Self>, id: &str) {
        let (service, id) = (Arc::clone(self), id.to_owned());
        self.attend(async move {
            if let Err(error) = service.api.kill(&id).await {
                tracing::warn!(sandbox = id, %error, "a sandbox is left to its lifetime");
            }
        });
    }

    /// Makes a sandbox, and what enforces its policy as far as that is known before one looks.
    async fn create_under(
        self: &Arc<Self>,
        cx: &SandboxContext,
    ) -> Result<(Made, Vec<Enforcement>), SandboxError> {
        let mut report = policy::report(&cx.policy)?;
        let network = policy::network(&cx.policy).unwrap_or_default();
        let error = match self.create(self.wanted(cx, &network)).await {
            Ok(made) => return Ok((made, report)),
            Err(error) => error,
        };
        // A service need not be able to keep a network off.
        if network.is_empty() || !may_be_about_the_network(&error) {
            return Err(error);
        }
        if cx.policy.strictness == Strictness::Strict {
            return Err(policy::refused(vec![PolicyField::Network]).with_source(error));
        }
        let made = self.create(self.wanted(cx, &Map::new())).await?;
        policy::give_up(&mut report, PolicyField::Network);
        Ok((made, report))
    }

    async fn create(self: &Arc<Self>, wanted: Wanted) -> Result<Made, SandboxError> {
        let service = Arc::clone(self);
        let making = async move { service.api.create(&wanted).await };
        let undone = |service: Arc<Self>, made: Result<Made, SandboxError>| {
            if let Ok(made) = made {
                service.end_some_time(&made.sandbox_id);
            }
        };
        self.surely(making, undone).await.unwrap_or_else(|| {
            let message = "no sandbox was made: the runtime was shut down";
            Err(SandboxError::new(SandboxErrorKind::Io, message))
        })
    }

    fn wanted(&self, cx: &SandboxContext, network: &Map<String, Value>) -> Wanted {
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
        Wanted {
            body,
            template: self.template.clone(),
            idempotency_key: crate::random_token(),
        }
    }

    /// Makes one's way into a sandbox, and looks around.
    async fn enter(
        self: &Arc<Self>,
        made: &Made,
        cx: &SandboxContext,
        mut report: Vec<Enforcement>,
        directory: Option<&str>,
        is_kept: bool,
    ) -> Result<RemoteSandbox, SandboxError> {
        let envd = self.way_into(made)?;
        let (home, is_root) = look_around(&envd, directory, is_kept).await?;
        if is_root && cx.policy.limits.processes.is_some() {
            // The kernel does not count what root starts.
            if cx.policy.strictness == Strictness::Strict {
                return Err(policy::refused(vec![PolicyField::Processes]));
            }
            policy::give_up(&mut report, PolicyField::Processes);
        }
        let directory = SandboxPath::new(&home)?;
        let mut info = SandboxInfo::new(NAME, &made.sandbox_id, directory);
        info.isolation = Isolation::Machine;
        info.walls = vec![format!(
            "a machine of {}, from `{}`",
            self.api.address(),
            self.template
        )];
        info.enforcement = report;
        if cx.durable || is_kept {
            info.survival = Survival::Workspace;
        }
        Ok(RemoteSandbox::new(Parts {
            info,
            home,
            limits: OwnLimits::new(&cx.policy.limits),
            environment: cx.policy.environment.clone(),
            service: Arc::clone(self),
            id: made.sandbox_id.clone(),
            envd,
            is_kept,
        }))
    }
}

/// Waits until the sandbox answers, and asks for its working directory and whether commands are root's.
async fn look_around(
    envd: &Envd,
    directory: Option<&str>,
    is_kept: bool,
) -> Result<(String, bool), SandboxError> {
    let doing = "failed to enter the sandbox";
    let began = Instant::now();
    // What ran when its owner was lost must not go on unseen.
    let script = if is_kept {
        [CLEAR, LOOK].concat()
    } else {
        LOOK.to_owned()
    };
    let answer = loop {
        match side::run(envd, &script, &[directory.unwrap_or_default()]).await {
            Ok(answer) => break answer,
            Err(fault)
                if (fault.is_unanswered() || matches!(fault, Fault::Gone(_)))
                    && began.elapsed() < READY =>
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
            let why = answer.stderr.trim();
            let message = format!("{doing}: it has no working directory: {why}");
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
        let (made, report) = self.service.create_under(&cx).await?;
        let ends = EndsUnlessEntered(Some((Arc::clone(&self.service), made.sandbox_id.clone())));
        let directory = self.service.directory.as_deref();
        let sandbox = self
            .service
            .enter(&made, &cx, report, directory, false)
            .await?;
        ends.entered();
        Ok(Arc::new(sandbox))
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        check(&cx)?;
        let (id, directory) = kept_as(handle)?;
        let report = policy::report(&cx.policy)?;
        let made = self.service.api.connect(&id, self.service.lifetime).await?;
        let sandbox = self
            .service
            .enter(&made, &cx, report, Some(&directory), true)
            .await?;
        Ok(Arc::new(sandbox))
    }
}

/// Refuses before anything is made.
fn check(cx: &SandboxContext) -> Result<(), SandboxError> {
    for (name, value) in &cx.policy.environment {
        check_variable(name, value.expose())?;
    }
    policy::report(&cx.policy).map(|_| ())
}

/// Whether what was refused may be what was asked of the network. A service says so in its own words.
fn may_be_about_the_network(error: &SandboxError) -> bool {
    let text = error.to_string().to_lowercase();
    let words = ["network", "internet", "egress", "allow", "deny"];
    // Of one that says nothing it may be anything.
    let is_named = text.ends_with("400") || words.iter().any(|word| text.contains(word));
    error.kind() == SandboxErrorKind::InvalidInput && is_named
}

/// Ends a sandbox that was made and never used.
struct EndsUnlessEntered(Option<(Arc<Service>, String)>);

impl EndsUnlessEntered {
    fn entered(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsUnlessEntered {
    fn drop(&mut self) {
        if let Some((service, id)) = self.0.take() {
            service.end_some_time(&id);
        }
    }
}
