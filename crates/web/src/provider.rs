//! The provider of the web tools.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::content::ImageLimits;
use cantle_core::policy::HostPattern;
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{DynTool, OpenContext, ProviderError, Requirements, ToolProvider, ToolSet};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fetch::Fetcher;
use crate::page::FetchWebPage;
use crate::search::{SearchProvider, WebSearch};
use crate::target::Reach;

/// Default time limit of a call: a fetch with redirects and extraction, or a search with its retries.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Provides `fetch_web_page` and, with a search provider, `web_search`.
///
/// Requests come from this process, not from the sandbox: the sandbox's network policy doesn't bind them, and a model can
/// send data out in a URL or a query. Only addresses of the public internet are reached, whatever the lists of hosts say. The search provider is reached wherever it is.
#[must_use]
#[derive(Clone, Debug)]
pub struct WebTools {
    pub(crate) reach: Reach,
    images: Option<ImageLimits>,
    search: Option<Arc<dyn SearchProvider>>,
    timeout: Duration,
    extractions: Arc<Semaphore>,
}

impl Default for WebTools {
    fn default() -> Self {
        Self::new()
    }
}

impl WebTools {
    /// Tools that may reach every host of the public internet.
    pub fn new() -> Self {
        let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            reach: Reach::default(),
            images: None,
            search: None,
            timeout: TIMEOUT,
            extractions: Arc::new(Semaphore::new(parallelism)),
        }
    }

    /// Allows these hosts only. Addresses in URLs are refused then.
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        self.reach.allow = Some(hosts.into_iter().collect());
        self
    }

    /// Denies these hosts, on every port and even if they are allowed. Addresses in URLs are refused then.
    pub fn deny_hosts(mut self, hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        self.reach.deny.extend(hosts);
        self
    }

    /// Shows images to the model, scaled to `limits`; for models that accept images. Without, they are files.
    pub fn images(mut self, limits: ImageLimits) -> Self {
        self.images = Some(limits);
        self
    }

    /// Fetches nothing: each call of `fetch_web_page` fails. For a replay, whose results are recorded.
    pub fn offline(mut self) -> Self {
        self.reach.offline = true;
        self
    }

    /// Offers `web_search` with this provider, which the lists of hosts don't bind.
    pub fn search(mut self, provider: impl SearchProvider + 'static) -> Self {
        self.search = Some(Arc::new(provider));
        self
    }

    /// Sets the time limit of a call; by default 180 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

#[async_trait]
impl ToolProvider for WebTools {
    fn name(&self) -> &str {
        "web"
    }

    fn provides_sandbox(&self) -> bool {
        false
    }

    fn identity(&self) -> Value {
        let search = self.search.as_ref().map(|provider| provider.name());
        json!({"allow": self.reach.allow, "deny": self.reach.deny, "search": search})
    }

    fn requirements(&self) -> Requirements {
        Requirements::new()
    }

    async fn open(&self, _: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        let fetcher = Fetcher::new(self.reach.clone());
        let extractions = Arc::clone(&self.extractions);
        let page = FetchWebPage::new(fetcher, self.timeout, self.images, extractions);
        let mut tools = vec![DynTool::new(page)];
        if let Some(provider) = &self.search {
            tools.push(DynTool::new(WebSearch::new(
                Arc::clone(provider),
                self.timeout,
            )));
        }
        Ok(Box::new(Tools(tools)))
    }
}

struct Tools(Vec<DynTool>);

#[async_trait]
impl ToolSet for Tools {
    fn tools(&self) -> Vec<DynTool> {
        self.0.clone()
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        None
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        Ok(())
    }
}
