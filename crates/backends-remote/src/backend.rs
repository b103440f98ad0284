//! The backend: configuration from which sandboxes are opened.

mod builder;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use cantle_command_driver::{OnDrop, check_environment};
use cantle_core::policy::{PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend, Enforcement, Isolation, Sandbox, SandboxContext, SandboxError, SandboxHandle,
    SandboxInfo, SandboxPath, Survival,
};
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::builder::RemoteBackendBuilder;
use crate::envd::{Envd, Fault, SandboxRecord};
use crate::policy::{self, CommandLimits};
use crate::sandbox::{RemoteSandbox, parse_handle};
use crate::service::Service;
use crate::shared::{Phase, Shared};
use crate::{NAME, script};

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

impl RemoteBackend {
    /// Connects to a sandbox and inspects it.
    async fn enter(
        &self,
        record: &SandboxRecord,
        cx: &SandboxContext,
        (mut report, network): (Vec<Enforcement>, Option<Map<String, Value>>),
        directory: Option<&str>,
        is_kept: bool,
    ) -> Result<RemoteSandbox, SandboxError> {
        let envd = self.service.connect_envd(record)?;
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
            self.service.api.address(),
            self.service.options.template
        )];
        info.enforcement = report;
        info.network.clone_from(&cx.policy.network);
        if cx.durable || is_kept {
            info.survival = Survival::Workspace;
        }
        Ok(RemoteSandbox::new(Shared {
            info,
            home,
            limits: CommandLimits::new(&cx.policy.limits),
            environment: cx.policy.environment.clone(),
            service: Arc::clone(&self.service),
            id: record.sandbox_id.clone(),
            network,
            envd: RwLock::new(envd),
            phase: Arc::new(tokio::sync::RwLock::new(Phase::Running)),
            last_use: Mutex::new(Instant::now()),
            gone: Mutex::new(None),
            gone_signal: CancellationToken::new(),
            closed: CancellationToken::new(),
            kept: AtomicBool::new(is_kept),
            tasks: Mutex::default(),
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
    let text = if is_kept {
        [KILL_LEFTOVERS, PROBE].concat()
    } else {
        PROBE.to_owned()
    };
    let answer = loop {
        match script::run(envd, &text, &[directory.unwrap_or_default()]).await {
            Ok(answer) => break answer,
            Err(fault)
                if (fault.is_unanswered() || matches!(fault, Fault::Gone(_)))
                    && began.elapsed() < READY_TIMEOUT =>
            {
                sleep(Duration::from_millis(200)).await;
            }
            Err(fault) => {
                let message = fault.into_error(doing).to_string();
                return Err(SandboxError::unavailable(message).with_advice(
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
            Err(SandboxError::unavailable(message))
        }
    }
}

#[async_trait]
impl Backend for RemoteBackend {
    fn name(&self) -> &str {
        NAME
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        check_environment(&cx.policy.environment)?;
        let (record, report, network) = self.service.create_with_policy(&cx).await?;
        let guard = OnDrop::new(|| self.service.kill_in_background(&record.sandbox_id));
        let directory = self.service.options.directory.as_deref();
        let applied = (report, Some(network));
        let sandbox = self.enter(&record, &cx, applied, directory, false).await?;
        guard.disarm();
        Ok(Arc::new(sandbox))
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        check_environment(&cx.policy.environment)?;
        let mut report = policy::report(&cx.policy)?;
        let token = parse_handle(handle)?;
        // The network policy was applied when the sandbox was created.
        let network = policy::network(&cx.policy);
        if network.is_some() && network != token.network {
            if cx.policy.strictness == Strictness::Strict {
                return Err(policy::unenforceable(vec![PolicyField::Network]));
            }
            policy::mark_not_enforced(&mut report, PolicyField::Network);
        }
        let lifetime = self.service.options.lifetime;
        let record = self.service.api.connect(&token.sandbox, lifetime).await?;
        let applied = (report, token.network);
        let sandbox = self
            .enter(&record, &cx, applied, Some(&token.directory), true)
            .await?;
        Ok(Arc::new(sandbox))
    }
}
