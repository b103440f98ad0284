//! Tests of the remote backend with faulty services and connections: a real server behind a proxy that
//! injects faults.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod creation;
mod generations;
mod life;
mod old_versions;
mod proxy;
mod secrets;
mod streams;
#[path = "../served/support.rs"]
mod support;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use cantle_backends_remote::{RemoteBackend, RemoteBackendBuilder};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, Sandbox, SandboxContext, SandboxError};

use self::proxy::{Fault, Proxy, ReceivedRequest};
use self::support::{KEY, TestServer};

/// Returns a builder of a backend that sends all requests through the proxy.
fn through(proxy: &Proxy) -> RemoteBackendBuilder {
    RemoteBackend::builder()
        .api_key(KEY)
        .api_url(&proxy.url)
        .sandbox_url(&proxy.url)
        .creation_rate(8, Duration::ZERO)
}

/// Opens a sandbox of a server through a proxy with these faults.
async fn open_through(
    server: &TestServer,
    plan: impl Fn(&ReceivedRequest) -> Fault + Send + Sync + 'static,
) -> (Proxy, Arc<dyn Sandbox>) {
    let proxy = Proxy::start(&server.url, plan).await;
    let opened = through(&proxy).build().unwrap().open(context()).await;
    (proxy, opened.unwrap())
}

fn context() -> SandboxContext {
    SandboxContext::new(RunId::new(), Policy::unconfined())
}

async fn refused(backend: &RemoteBackend) -> SandboxError {
    let opened = backend.open(context()).await;
    opened.map(drop).expect_err("the sandbox was opened")
}
