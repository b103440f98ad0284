//! The endpoint of a model, and which key may be sent to it.
//!
//! A key is sent only to the endpoint it is meant for. `CANTLE_API_KEY` is for whatever endpoint is in
//! use; a provider's own variable is read only if the provider is named, or the base URL is the
//! provider's own. An address on this machine that only a directory's `cantle.toml` names gets no key,
//! even if the user trusts that directory: any user of the machine may listen there.

use cantle::core::network::{is_public, may_be_private_host};
use cantle::core::secret::SecretText;
use url::{Host, Url};

use crate::provider::{Api, KEY_VARIABLE, Provider};
use crate::settings::ModelSettings;
use crate::settings::layers::Origin;

/// The address of a model, and the key for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) base_url: String,
    /// The provider at this address, if known.
    pub(crate) provider: Option<Provider>,
    pub(crate) api: Api,
    pub(crate) key: Option<Key>,
    /// Variables that could hold the key, the preferred one first.
    pub(crate) key_variables: Vec<&'static str>,
    /// The variable whose key is not sent because a directory's file names the address.
    pub(crate) withheld: Option<&'static str>,
    /// Whether the address must get no key, because a directory's file names it.
    pub(crate) is_foreign: bool,
}

/// A key and the variable it comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) variable: &'static str,
    pub(crate) text: SecretText,
}

/// The error that a provider's key is not set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MissingKey {
    pub(crate) provider: Provider,
    pub(crate) base_url: String,
    pub(crate) variables: Vec<&'static str>,
    /// Another provider whose key is set, and its variable.
    pub(crate) other: Option<(Provider, &'static str)>,
}

impl Endpoint {
    /// Returns the endpoint that settings of an origin name, with its key; `variable` reads the environment.
    pub(crate) fn resolve(
        settings: &ModelSettings,
        origin: Option<Origin>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, MissingKey> {
        let provider = match (settings.provider, &settings.base_url) {
            (Some(provider), _) => Some(provider),
            (None, Some(base_url)) => Provider::of_base_url(base_url),
            (None, None) => Some(Provider::Openai),
        };
        let own_url = || provider.unwrap_or(Provider::Openai).base_url().to_owned();
        let base_url = settings.base_url.clone().unwrap_or_else(own_url);
        let is_own = provider.is_some() && provider == Provider::of_base_url(&base_url);

        let own_variable = provider.and_then(Provider::key_variable);
        let key_variables: Vec<_> = [KEY_VARIABLE].into_iter().chain(own_variable).collect();
        let key_of = |name: &'static str| {
            let text = variable(name)?.trim().to_owned();
            (!text.is_empty()).then(|| Key {
                variable: name,
                text: text.into(),
            })
        };
        let key = key_variables.iter().copied().find_map(key_of);
        let is_foreign = match origin {
            Some(Origin::Directory) => is_this_machine(&base_url),
            Some(Origin::UntrustedDirectory) => !is_own || is_this_machine(&base_url),
            _ => false,
        };
        let (key, withheld) = match is_foreign {
            true => (None, key.map(|key| key.variable)),
            false => (key, None),
        };
        if let Some(provider) = provider
            && provider.needs_key()
            && is_own
            && key.is_none()
        {
            let mut others = Provider::all().filter(|other| *other != provider);
            let other = others.find_map(|other| {
                let name = other.key_variable()?;
                key_of(name).map(|_| (other, name))
            });
            return Err(MissingKey {
                provider,
                base_url,
                variables: key_variables.into_iter().rev().collect(),
                other,
            });
        }
        Ok(Self {
            base_url,
            provider,
            api: settings
                .api
                .or(provider.map(|provider| provider.api(is_own)))
                .unwrap_or(Api::Chat),
            key,
            key_variables,
            withheld,
            is_foreign,
        })
    }
}

/// Whether an address leads to this machine, or to a service of the link that gives out credentials.
fn is_this_machine(base_url: &str) -> bool {
    let is_other = |address| is_public(address) || may_be_private_host(address);
    match Url::parse(base_url).as_ref().map(Url::host) {
        Ok(Some(Host::Domain(name))) => {
            let name = name.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
        Ok(Some(Host::Ipv4(address))) => !is_other(address.into()),
        Ok(Some(Host::Ipv6(address))) => !is_other(address.into()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(provider: Option<Provider>, base_url: Option<&str>) -> ModelSettings {
        ModelSettings {
            provider,
            base_url: base_url.map(str::to_owned),
            ..ModelSettings::default()
        }
    }

    /// An environment in which each variable is set to its own name in lower case.
    fn all(name: &str) -> Option<String> {
        Some(format!("{} \n", name.to_lowercase()))
    }

    /// Like [`all`], without `CANTLE_API_KEY`.
    fn own(name: &str) -> Option<String> {
        all(name).filter(|_| name != KEY_VARIABLE)
    }

    fn sent(settings: &ModelSettings, env: impl Fn(&str) -> Option<String>) -> (String, String) {
        let endpoint = Endpoint::resolve(settings, None, env).unwrap();
        let key = endpoint.key.map(|key| key.text.expose().to_owned());
        (endpoint.base_url, key.unwrap_or_default())
    }

    fn pair(url: &str, key: &str) -> (String, String) {
        (url.to_owned(), key.to_owned())
    }

    #[test]
    fn each_provider_has_an_address_and_a_key_variable() {
        let table = Provider::all().map(|provider| sent(&settings(Some(provider), None), own));
        let expected = [
            pair("https://api.openai.com/v1", "openai_api_key"),
            pair("https://openrouter.ai/api/v1", "openrouter_api_key"),
            pair("http://127.0.0.1:4000/v1", "litellm_api_key"),
            pair("https://api.anthropic.com/v1", "anthropic_api_key"),
            pair("http://127.0.0.1:8080/v1", ""),
        ];
        assert_eq!(table.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_provider_has_a_default_api() {
        let api = |settings: ModelSettings| Endpoint::resolve(&settings, None, all).unwrap().api;
        let anthropic = "https://api.anthropic.com/v1";
        let (openai, other) = ("https://api.openai.com/v1/", "https://other.example.com");
        for (provider, url, expected) in [
            (None, None, Api::Responses),
            (None, Some(openai), Api::Responses),
            (Some(Provider::Openai), Some(other), Api::Chat),
            (None, Some(other), Api::Chat),
            (Some(Provider::Anthropic), None, Api::Messages),
            (Some(Provider::Anthropic), Some(other), Api::Messages),
            (None, Some(anthropic), Api::Messages),
        ] {
            assert_eq!(
                api(settings(provider, url)),
                expected,
                "{provider:?} {url:?}"
            );
        }
        let named = ModelSettings {
            api: Some(Api::Responses),
            ..settings(Some(Provider::Litellm), None)
        };
        assert_eq!(api(named), Api::Responses);
    }

    #[test]
    fn the_general_key_is_preferred() {
        let endpoint = sent(&settings(Some(Provider::Openai), None), all);
        assert_eq!(
            endpoint,
            pair("https://api.openai.com/v1", "cantle_api_key")
        );
    }

    #[test]
    fn a_providers_key_is_not_sent_to_an_unknown_address() {
        let url = "https://models.example.com/v1";
        assert_eq!(sent(&settings(None, Some(url)), own), pair(url, ""));
        assert_eq!(
            sent(&settings(None, Some(url)), all),
            pair(url, "cantle_api_key")
        );
        // Naming both sends it there.
        let named = settings(Some(Provider::Openai), Some(url));
        assert_eq!(sent(&named, own), pair(url, "openai_api_key"));
    }

    #[test]
    fn a_providers_own_address_implies_the_provider() {
        let url = "https://openrouter.ai/api/v1/";
        assert_eq!(
            sent(&settings(None, Some(url)), own),
            pair(url, "openrouter_api_key")
        );
    }

    #[test]
    fn an_address_that_a_directory_names_may_get_no_key() {
        let sent = |origin, provider, url| {
            let settings = settings(provider, url);
            let endpoint = Endpoint::resolve(&settings, Some(origin), all).unwrap();
            (endpoint.key.map(|key| key.variable), endpoint.withheld)
        };
        let (is_sent, is_withheld) = ((Some(KEY_VARIABLE), None), (None, Some(KEY_VARIABLE)));
        let (always, never) = ([is_sent; 2], [is_withheld; 2]);
        let if_trusted = [is_sent, is_withheld];
        let (openai, litellm) = (Some(Provider::Openai), Some(Provider::Litellm));
        for (provider, url, [trusted, untrusted]) in [
            (None, "https://models.example.com/v1", if_trusted),
            (None, "http://127.0.0.1.example.com/v1", if_trusted),
            (None, "http://localhost:1@example.com/v1", if_trusted),
            (openai, "https://models.example.com/v1", if_trusted),
            (openai, "https://api.openai.com/v1", always),
            (None, "http://127.0.0.1:8000/v1", never),
            (None, "http://[::1]:8000", never),
            (None, "http://[::ffff:127.0.0.1]", never),
            (None, "http://0.0.0.0:8000", never),
            (None, "http://[::]:8000", never),
            (None, "http://LocalHost.:8000", never),
            (None, "http://models.localhost", never),
            (None, "http://192.168.0.9:8000", if_trusted),
            // Its own address is on this machine.
            (litellm, "", never),
        ] {
            let url = Some(url).filter(|url| !url.is_empty());
            let case = format!("{provider:?} {url:?}");
            assert_eq!(sent(Origin::Directory, provider, url), trusted, "{case}");
            assert_eq!(
                sent(Origin::UntrustedDirectory, provider, url),
                untrusted,
                "{case}"
            );
        }
    }

    #[test]
    fn a_missing_key_error_names_the_variables() {
        let none = |_: &str| None;
        let missing = Endpoint::resolve(&settings(None, None), None, none).unwrap_err();
        let expected = MissingKey {
            provider: Provider::Openai,
            base_url: "https://api.openai.com/v1".to_owned(),
            variables: vec!["OPENAI_API_KEY", KEY_VARIABLE],
            other: None,
        };
        assert_eq!(missing, expected);

        let router = |name: &str| (name == "OPENROUTER_API_KEY").then(|| "x".to_owned());
        let missing = Endpoint::resolve(&settings(None, None), None, router).unwrap_err();
        assert_eq!(
            missing.other,
            Some((Provider::Openrouter, "OPENROUTER_API_KEY"))
        );
    }

    #[test]
    fn a_blank_variable_is_no_key() {
        let blank = |_: &str| Some(" ".to_owned());
        assert!(Endpoint::resolve(&settings(None, None), None, blank).is_err());
        assert_eq!(sent(&settings(Some(Provider::Litellm), None), blank).1, "");
    }
}
