//! The web tools of a run, and the search service behind them.

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use cantle::core::content::ImageLimits;
use cantle::core::policy::{Network, Policy};
use cantle::web::{SearchHit, SearchProvider, SearchService, WebError, WebErrorKind, WebTools};
use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::environment::variable;
use crate::settings::{Search, Settings};

/// Tells the user of a run with web tools that data can leave.
const NOTICE: &str = "The model can read web pages, from this machine and not from the sandbox: what it sends in URLs \
                      and queries leaves this machine.";

/// Returns the notice for the reader of a run that had these tools.
pub(crate) fn notice(tools: &[String]) -> Option<&'static str> {
    let is_web = |name: &String| matches!(name.as_str(), "fetch_web_page" | "web_search");
    tools.iter().any(is_web).then_some(NOTICE)
}

/// The web tools of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WebOffer {
    #[default]
    None,
    Pages,
    PagesAndSearch,
}

impl WebOffer {
    pub(crate) fn new(pages: bool, search: bool) -> Self {
        match (pages, search) {
            (_, true) => Self::PagesAndSearch,
            (true, false) => Self::Pages,
            (false, false) => Self::None,
        }
    }

    /// Returns a notice for the user of a run in which an agent has the tools.
    pub(crate) fn notice(self) -> Option<&'static str> {
        (self != Self::None).then_some(NOTICE)
    }

    /// Returns the tools, which reach the hosts of the policy if it lists hosts, and nothing in a replay.
    ///
    /// # Errors
    /// If the search service has no key, or its host is not allowed.
    pub(crate) fn tools(
        self,
        policy: &Policy,
        settings: &Settings,
        images: bool,
        is_replay: bool,
    ) -> anyhow::Result<Option<WebTools>> {
        if self == Self::None {
            return Ok(None);
        }
        let denied = &settings.sandbox.policy.deny_host;
        let mut web = WebTools::new().deny_hosts(denied.iter().cloned());
        if images {
            web = web.images(ImageLimits::default());
        }
        if let Some(Network::Hosts(hosts)) = &policy.network {
            web = web.allow_hosts(hosts.iter().cloned());
        }
        if is_replay {
            web = web.offline();
        }
        Ok(Some(match self {
            Self::PagesAndSearch if is_replay => web.search(RecordedSearch),
            Self::PagesAndSearch => web.search(allowed_service(settings, policy)?),
            Self::None | Self::Pages => web,
        }))
    }
}

/// Returns the search service of the settings.
fn allowed_service(settings: &Settings, policy: &Policy) -> anyhow::Result<SearchService> {
    let search = settings
        .search
        .context("web_search needs --search SERVICE")?;
    let (service, address) = service(search)?;
    let Some(host) = address.host_str().and_then(|host| host.parse().ok()) else {
        return Ok(service);
    };
    let denied = &settings.sandbox.policy.deny_host;
    if denied.iter().any(|pattern| pattern.matches_name(&host)) {
        bail!("--search sends queries to {host}, which --deny-host denies");
    }
    let port = address.port_or_known_default().unwrap_or_default();
    if let Some(network @ Network::Hosts(_)) = &policy.network
        && !network.allows(&host, port)
    {
        bail!(
            "--search sends queries to {host}, which is not among the allowed hosts: add --allow-host {host}"
        );
    }
    Ok(service)
}

/// Returns the variable of a service's key or address.
fn variable_of(search: Search) -> &'static str {
    match search {
        Search::Brave => "BRAVE_API_KEY",
        Search::Tavily => "TAVILY_API_KEY",
        Search::Exa => "EXA_API_KEY",
        Search::Searxng => "SEARXNG_URL",
    }
}

/// Returns the variables of all search services, and whether each is set.
pub(crate) fn service_variables() -> impl Iterator<Item = (&'static str, bool)> {
    let names = Search::value_variants().iter().copied().map(variable_of);
    names.map(|name| (name, value_of(name).is_some()))
}

/// Returns the value of a variable that holds a key or an address. Spaces are none.
fn value_of(name: &str) -> Option<String> {
    let value = variable(name)?.trim().to_owned();
    (!value.is_empty()).then_some(value)
}

/// Returns a search service with its key from the environment, and its address.
fn service(search: Search) -> anyhow::Result<(SearchService, Url)> {
    let name = variable_of(search);
    let value =
        value_of(name).with_context(|| format!("--search needs {name} in the environment"))?;
    let service = match search {
        Search::Brave => SearchService::brave(value),
        Search::Tavily => SearchService::tavily(value),
        Search::Exa => SearchService::exa(value),
        Search::Searxng => SearchService::searxng(&value).context("SEARXNG_URL is not valid")?,
    };
    let address = service.url().parse()?;
    Ok((service, address))
}

/// Stands for the search service of a recorded run.
#[derive(Debug)]
struct RecordedSearch;

#[async_trait]
impl SearchProvider for RecordedSearch {
    fn name(&self) -> &str {
        "recording"
    }

    async fn search(&self, _: &str, _: usize) -> Result<Vec<SearchHit>, WebError> {
        Err(WebError::new(
            WebErrorKind::Refused,
            "the recording has no answer to this",
            "",
        ))
    }
}
