//! Built-in list prices and context windows of common models.
//!
//! They apply only at the provider's own endpoint, and give way to what the user sets and the provider
//! reports. The data is in `list_prices.json`: US dollars per million tokens, each entry with the latest
//! date for which it is known to be the price on the provider's page. Models whose price depends on the time of day, and
//! prices that are offered for a limited time, are left out.

use std::sync::OnceLock;

use cantle_core::llm::{LongPrompt, PriceSource, Prices};
use reqwest::Url;
use serde::Deserialize;

const JSON: &str = include_str!("list_prices.json");

/// The price list of a provider.
#[derive(Debug, Deserialize)]
pub(crate) struct PriceList {
    /// Name of the provider, which OpenRouter and LiteLLM put before its models' names.
    provider: &'static str,
    /// Host of the provider's own endpoint.
    host: &'static str,
    models: Vec<ListedModel>,
}

/// A model in a price list, with prices in US dollars per million tokens.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct ListedModel {
    name: &'static str,
    /// Latest date for which the prices are known.
    date: &'static str,
    pub(crate) context_window: Option<u64>,
    input: f64,
    output: f64,
    cache_read: f64,
    /// The input price by default.
    cache_write: Option<f64>,
    long_prompt: Option<LongPrompt>,
}

impl PriceList {
    /// Returns the model of this name, which may end in the date of a version.
    pub(crate) fn model(&self, name: &str) -> Option<&ListedModel> {
        let is_name = |listed: &&ListedModel| {
            let version = name.strip_prefix(listed.name);
            version.is_some_and(|version| version.is_empty() || is_date(version))
        };
        self.models.iter().find(is_name)
    }
}

impl ListedModel {
    pub(crate) fn prices(&self) -> Prices {
        Prices::per_million(self.input, self.output)
            .with_cache_per_million(self.cache_read, self.cache_write.unwrap_or(self.input))
            .with_long_prompt(self.long_prompt)
            .from_source(PriceSource::List(self.date))
    }
}

/// Returns the price list of the provider whose own endpoint this is.
pub(crate) fn at(url: &Url) -> Option<&'static PriceList> {
    let is_own = |list: &&PriceList| url.scheme() == "https" && url.host_str() == Some(list.host);
    lists().iter().find(is_own).filter(|_| url.port().is_none())
}

/// Returns prices that no listed model of the provider exceeds, for a model named `PROVIDER/MODEL`.
pub(crate) fn highest_for(model: &str) -> Option<Prices> {
    let (provider, _) = model.split_once('/')?;
    let list = lists().iter().find(|list| list.provider == provider)?;
    let prices = list.models.iter().map(ListedModel::prices);
    prices.reduce(Prices::max)
}

fn lists() -> &'static [PriceList] {
    static LISTS: OnceLock<Vec<PriceList>> = OnceLock::new();
    // A test parses the file.
    LISTS.get_or_init(|| serde_json::from_str(JSON).unwrap_or_default())
}

/// Returns whether a name's end is a date, such as `-20250929` or `-2025-08-07`.
fn is_date(end: &str) -> bool {
    let digits: String = end.split('-').collect();
    end.starts_with('-') && digits.len() == 8 && digits.bytes().all(|it| it.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn found(url: &str, model: &str) -> Option<&'static str> {
        let list = at(&Url::parse(url).unwrap())?;
        Some(list.model(model)?.name)
    }

    #[test]
    fn entries_have_a_date_and_a_source() {
        let file: Vec<Value> = serde_json::from_str(JSON).unwrap();
        assert_eq!(file.len(), lists().len());
        for (list, read) in file.iter().zip(lists()) {
            assert!(
                list["source"].as_str().unwrap().starts_with("https://"),
                "{list}"
            );
            for model in &read.models {
                assert!(is_date(&format!("-{}", model.date)), "{model:?}");
                let is_sane = model.input > 0.0
                    && model.output >= model.input
                    && model.cache_read <= model.input;
                assert!(is_sane, "{model:?}");
                let same = read.model(model.name).unwrap().name;
                assert_eq!(same, model.name, "the first entry of a name counts");
            }
        }
    }

    #[test]
    fn only_the_providers_own_endpoint_has_list_prices() {
        let (openai, anthropic) = ("https://api.openai.com/v1", "https://api.anthropic.com/v1");
        for (url, model, expected) in [
            (openai, "gpt-5", Some("gpt-5")),
            (openai, "gpt-5-2025-08-07", Some("gpt-5")),
            (openai, "gpt-5-mini", Some("gpt-5-mini")),
            (openai, "gpt-5-chat", None),
            (openai, "claude-haiku-4-5", None),
            (
                anthropic,
                "claude-haiku-4-5-20251001",
                Some("claude-haiku-4-5"),
            ),
            ("http://api.openai.com/v1", "gpt-5", None),
            ("https://api.openai.com:8443/v1", "gpt-5", None),
            ("https://eu.api.openai.com/v1", "gpt-5", None),
            ("https://api.openai.com.example.com/v1", "gpt-5", None),
            ("https://openrouter.ai/api/v1", "openai/gpt-5", None),
        ] {
            assert_eq!(found(url, model), expected, "{url} {model}");
        }
    }

    #[test]
    fn highest_prices_are_those_of_the_named_provider() {
        let highest = highest_for("anthropic/claude-next").unwrap();
        assert_eq!((highest.input, highest.output), (10.0 / 1e6, 50.0 / 1e6));
        assert!(highest.list_date().is_some());
        assert_eq!(highest_for("unknown/model"), None);
        assert_eq!(highest_for("claude-next"), None);
    }
}
