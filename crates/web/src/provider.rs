//! The provider of the web tools.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::content::ImageLimits;
use cantle_core::policy::HostPattern;
use cantle_core::tool::{
    OpenContext, ProviderError, Requirements, ToolProvider, ToolSet, tool_set,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fetch::Fetcher;
use crate::page::{PageSettings, fetch_web_page};
use crate::search::{SearchProvider, web_search};

/// Default time limit of a call: a fetch with redirects and extraction, or a search with its retries.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Provides `fetch_web_page` and, with a search provider, `web_search`.
///
/// Requests come from this process, not from the sandbox: the sandbox's network policy doesn't bind them, and a model can
/// send data out in a URL or a query. Pages are fetched from addresses of the public internet only; an allowed host that is
/// marked (`HOST,private`) may be in a private network. Neither restriction applies to the search provider.
#[must_use]
#[derive(Clone, Debug)]
pub struct WebTools {
    pub(crate) page: PageSettings,
    search: Option<Arc<dyn SearchProvider>>,
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
        let page = PageSettings {
            fetcher: Fetcher::default(),
            timeout: TIMEOUT,
            images: None,
            extractions: Arc::new(Semaphore::new(parallelism)),
        };
        Self { page, search: None }
    }

    /// Allows these hosts only. Addresses in URLs are refused then.
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        self.page.fetcher.reach.allow = Some(hosts.into_iter().collect());
        self
    }

    /// Denies these hosts, on every port and even if they are allowed. Addresses in URLs are refused then.
    pub fn deny_hosts(mut self, hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        self.page.fetcher.reach.deny.extend(hosts);
        self
    }

    /// Shows images to the model, scaled to `limits`; for models that accept images. Without, they are files.
    pub fn images(mut self, limits: ImageLimits) -> Self {
        self.page.images = Some(limits);
        self
    }

    /// Fetches nothing: each call of `fetch_web_page` fails. For a replay, whose results are recorded.
    pub fn offline(mut self) -> Self {
        self.page.fetcher.reach.offline = true;
        self
    }

    /// Offers `web_search` with this provider, which the lists of hosts don't bind.
    pub fn search(mut self, provider: impl SearchProvider + 'static) -> Self {
        self.search = Some(Arc::new(provider));
        self
    }

    /// Sets the time limit of a call; by default 180 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.page.timeout = timeout;
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
        let reach = &self.page.fetcher.reach;
        json!({"allow": reach.allow, "deny": reach.deny, "search": search})
    }

    fn requirements(&self) -> Requirements {
        Requirements::new()
    }

    async fn open(&self, _: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        let mut tools = vec![fetch_web_page(self.page.clone())];
        if let Some(provider) = &self.search {
            tools.push(web_search(Arc::clone(provider), self.page.timeout));
        }
        Ok(tool_set(tools, || ready(Ok(()))))
    }
}
