//! Providers and endpoints: where a model is served, and which key may go there.
//!
//! A key goes only to the endpoint it is for. `CANTLE_API_KEY` is for whatever endpoint is in use; a
//! provider's own variable is for that provider: it is read where the provider was named, or the
//! base URL is the provider's own. A `cantle.toml` in the current directory may be somebody else's,
//! so an address that only it names gets no key, unless it is on this machine.

use cantle::core::secret::SecretText;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// The variable with a key for whatever endpoint is in use.
pub(crate) const KEY_VARIABLE: &str = "CANTLE_API_KEY";

/// What is spoken with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Api {
    /// OpenAI's Chat Completions, which most servers speak
    Chat,
    /// OpenAI's Responses
    Responses,
    /// Anthropic's Messages
    Messages,
}

/// Who serves models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Provider {
    /// OpenAI
    Openai,
    /// OpenRouter
    Openrouter,
    /// A LiteLLM proxy
    Litellm,
    /// Anthropic
    Anthropic,
    /// A server on this machine, such as llama.cpp's
    Local,
}

impl Provider {
    const ALL: [Self; 5] = [
        Self::Openai,
        Self::Openrouter,
        Self::Litellm,
        Self::Anthropic,
        Self::Local,
    ];

    pub(crate) fn base_url(self) -> &'static str {
        match self {
            Self::Openai => "https://api.openai.com/v1",
            Self::Openrouter => "https://openrouter.ai/api/v1",
            Self::Litellm => "http://127.0.0.1:4000/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
            Self::Local => "http://127.0.0.1:8080/v1",
        }
    }

    /// The variable with a key for this provider.
    fn key_variable(self) -> Option<&'static str> {
        match self {
            Self::Openai => Some("OPENAI_API_KEY"),
            Self::Openrouter => Some("OPENROUTER_API_KEY"),
            Self::Litellm => Some("LITELLM_API_KEY"),
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::Local => None,
        }
    }

    /// Whether nothing works there without a key.
    fn needs_key(self) -> bool {
        matches!(self, Self::Openai | Self::Openrouter | Self::Anthropic)
    }

    /// What is spoken there, unless something else was said.
    fn api(self) -> Api {
        match self {
            Self::Anthropic => Api::Messages,
            Self::Openai | Self::Openrouter | Self::Litellm | Self::Local => Api::Chat,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Openrouter => "openrouter",
            Self::Litellm => "litellm",
            Self::Anthropic => "anthropic",
            Self::Local => "local",
        }
    }

    /// Every variable that may hold a key, the general one first.
    pub(crate) fn all_key_variables() -> impl Iterator<Item = &'static str> {
        let own = Self::ALL.into_iter().filter_map(Self::key_variable);
        [KEY_VARIABLE].into_iter().chain(own)
    }

    fn of_base_url(base_url: &str) -> Option<Self> {
        let base_url = base_url.trim_end_matches('/');
        Self::ALL.into_iter().find(|p| p.base_url() == base_url)
    }
}

/// What was said about where the model is, all of it in one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct EndpointChoice {
    pub(crate) provider: Option<Provider>,
    pub(crate) api: Option<Api>,
    pub(crate) base_url: Option<String>,
    /// It was said in the current directory's `cantle.toml` and nowhere else.
    pub(crate) by_directory: bool,
}

/// Where the model is, and the key for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) base_url: String,
    /// Who is there, where that is known.
    pub(crate) provider: Option<Provider>,
    pub(crate) api: Api,
    pub(crate) key: Option<Key>,
    /// Variables that could have brought a key, in their order.
    pub(crate) key_variables: Vec<&'static str>,
    /// A variable whose key was not used because only the current directory names the address.
    pub(crate) withheld: Option<&'static str>,
}

/// A key and the variable it came from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) variable: &'static str,
    pub(crate) text: SecretText,
}

/// There is no key where one is needed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MissingKey {
    pub(crate) provider: &'static str,
    pub(crate) base_url: String,
    pub(crate) variables: Vec<&'static str>,
    /// Another provider whose variable is set, and that variable.
    pub(crate) other: Option<(&'static str, &'static str)>,
}

impl EndpointChoice {
    /// Finds the endpoint and its key; `variable` reads the environment.
    pub(crate) fn resolve(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Endpoint, MissingKey> {
        let provider = match (self.provider, &self.base_url) {
            (Some(provider), _) => Some(provider),
            (None, Some(base_url)) => Provider::of_base_url(base_url),
            (None, None) => Some(Provider::Openai),
        };
        let own_url = provider.map(Provider::base_url);
        let base_url = match (&self.base_url, own_url) {
            (Some(base_url), _) => base_url.clone(),
            (None, Some(own_url)) => own_url.to_owned(),
            (None, None) => Provider::Openai.base_url().to_owned(),
        };
        let is_own = provider.is_some() && provider == Provider::of_base_url(&base_url);

        let own_variable = provider.and_then(Provider::key_variable);
        let key_variables: Vec<_> = [Some(KEY_VARIABLE), own_variable]
            .into_iter()
            .flatten()
            .collect();
        let key_of = |name: &'static str| {
            let text = variable(name)?.trim().to_owned();
            (!text.is_empty()).then(|| Key {
                variable: name,
                text: text.into(),
            })
        };
        let mut key = key_variables.iter().copied().find_map(key_of);
        let mut withheld = None;
        if self.by_directory && !is_own && !is_this_machine(&base_url) {
            withheld = key.take().map(|key| key.variable);
        }
        if let Some(provider) = provider
            && provider.needs_key()
            && is_own
            && key.is_none()
        {
            let mut others = Provider::ALL.into_iter().filter(|other| *other != provider);
            let other = others.find_map(|other| {
                let name = other.key_variable()?;
                key_of(name).map(|_| (other.name(), name))
            });
            return Err(MissingKey {
                provider: provider.name(),
                base_url,
                variables: key_variables.into_iter().rev().collect(),
                other,
            });
        }
        Ok(Endpoint {
            base_url,
            provider,
            api: self
                .api
                .or(provider.map(Provider::api))
                .unwrap_or(Api::Chat),
            key,
            key_variables,
            withheld,
        })
    }
}

fn is_this_machine(base_url: &str) -> bool {
    match Url::parse(base_url).as_ref().map(Url::host) {
        Ok(Some(Host::Domain(name))) => name == "localhost",
        Ok(Some(Host::Ipv4(address))) => address.is_loopback(),
        Ok(Some(Host::Ipv6(address))) => address.is_loopback(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(provider: Option<Provider>, base_url: Option<&str>) -> EndpointChoice {
        EndpointChoice {
            provider,
            api: None,
            base_url: base_url.map(str::to_owned),
            by_directory: false,
        }
    }

    /// All variables are set, each to its own name in lower case.
    fn all(name: &str) -> Option<String> {
        Some(format!("{} \n", name.to_lowercase()))
    }

    /// All but the general one are set.
    fn own(name: &str) -> Option<String> {
        all(name).filter(|_| name != KEY_VARIABLE)
    }

    fn sent(choice: &EndpointChoice, env: impl Fn(&str) -> Option<String>) -> (String, String) {
        let endpoint = choice.resolve(env).unwrap();
        let key = endpoint.key.map(|key| key.text.expose().to_owned());
        (endpoint.base_url, key.unwrap_or_default())
    }

    fn pair(url: &str, key: &str) -> (String, String) {
        (url.to_owned(), key.to_owned())
    }

    #[test]
    fn each_provider_has_its_address_and_its_variable() {
        let table = Provider::ALL.map(|provider| sent(&choice(Some(provider), None), own));
        let expected = [
            pair("https://api.openai.com/v1", "openai_api_key"),
            pair("https://openrouter.ai/api/v1", "openrouter_api_key"),
            pair("http://127.0.0.1:4000/v1", "litellm_api_key"),
            pair("https://api.anthropic.com/v1", "anthropic_api_key"),
            pair("http://127.0.0.1:8080/v1", ""),
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn a_provider_has_an_api_of_its_own_unless_another_one_is_named() {
        let api = |choice: EndpointChoice| choice.resolve(all).unwrap().api;
        let anthropic = "https://api.anthropic.com/v1";
        assert_eq!(api(choice(None, None)), Api::Chat);
        assert_eq!(api(choice(Some(Provider::Anthropic), None)), Api::Messages);
        assert_eq!(api(choice(None, Some(anthropic))), Api::Messages);
        assert_eq!(api(choice(None, Some("https://other.example"))), Api::Chat);
        let named = EndpointChoice {
            api: Some(Api::Responses),
            ..choice(Some(Provider::Litellm), None)
        };
        assert_eq!(api(named), Api::Responses);
    }

    #[test]
    fn the_general_key_goes_first() {
        let endpoint = sent(&choice(Some(Provider::Openai), None), all);
        assert_eq!(
            endpoint,
            pair("https://api.openai.com/v1", "cantle_api_key")
        );
    }

    #[test]
    fn a_providers_key_never_goes_to_an_address_of_nobodys() {
        let url = "https://models.example/v1";
        assert_eq!(sent(&choice(None, Some(url)), own), pair(url, ""));
        assert_eq!(
            sent(&choice(None, Some(url)), all),
            pair(url, "cantle_api_key")
        );
        // Said so by whoever named both.
        let named = choice(Some(Provider::Openai), Some(url));
        assert_eq!(sent(&named, own), pair(url, "openai_api_key"));
    }

    #[test]
    fn a_providers_own_address_names_the_provider() {
        let url = "https://openrouter.ai/api/v1/";
        assert_eq!(
            sent(&choice(None, Some(url)), own),
            pair(url, "openrouter_api_key")
        );
    }

    #[test]
    fn an_address_that_only_the_directory_names_gets_no_key() {
        let by_directory = |provider, url| {
            let choice = EndpointChoice {
                by_directory: true,
                ..choice(provider, Some(url))
            };
            let endpoint = choice.resolve(all).unwrap();
            (endpoint.key.map(|key| key.variable), endpoint.withheld)
        };
        let key = Some(KEY_VARIABLE);
        assert_eq!(by_directory(None, "https://evil.example/v1"), (None, key));
        assert_eq!(
            by_directory(None, "http://127.0.0.1.evil.example/v1"),
            (None, key)
        );
        assert_eq!(
            by_directory(None, "http://localhost:1@evil.example/v1"),
            (None, key)
        );
        let openai = Some(Provider::Openai);
        assert_eq!(by_directory(openai, "https://evil.example/v1"), (None, key));
        assert_eq!(
            by_directory(openai, "https://api.openai.com/v1"),
            (key, None)
        );
        assert_eq!(by_directory(None, "http://127.0.0.1:8000/v1"), (key, None));
        assert_eq!(by_directory(None, "http://[::1]:8000"), (key, None));
    }

    #[test]
    fn a_missing_key_names_what_to_set() {
        let none = |_: &str| None;
        let missing = choice(None, None).resolve(none).unwrap_err();
        let expected = MissingKey {
            provider: "openai",
            base_url: "https://api.openai.com/v1".to_owned(),
            variables: vec!["OPENAI_API_KEY", KEY_VARIABLE],
            other: None,
        };
        assert_eq!(missing, expected);

        let router = |name: &str| (name == "OPENROUTER_API_KEY").then(|| "x".to_owned());
        let missing = choice(None, None).resolve(router).unwrap_err();
        assert_eq!(missing.other, Some(("openrouter", "OPENROUTER_API_KEY")));
    }

    #[test]
    fn an_empty_variable_is_no_key() {
        let blank = |_: &str| Some(" ".to_owned());
        assert!(choice(None, None).resolve(blank).is_err());
        assert_eq!(sent(&choice(Some(Provider::Litellm), None), blank).1, "");
    }
}
