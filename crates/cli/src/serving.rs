//! How a model is asked besides where: who serves it, what it costs, how often it may be asked, and who
//! is asked in its place.

use anyhow::bail;
use cantle::clients::chat::Server;
use cantle::core::llm::Prices;
use clap::ArgAction;
use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// All of it, as far as it was said in one place.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Model")]
pub(crate) struct ServingArgs {
    /// What serves it, where the address does not tell: decides how requests are written
    ///
    /// vllm, for instance, wants an output limit that fits what the context window leaves.
    #[arg(long, env = "CANTLE_SERVER", hide_env_values = true, value_parser = server_parser())]
    #[serde(with = "server", skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<Server>,

    /// Let the provider keep the conversation, with --api responses
    #[arg(long, env = "CANTLE_STATEFUL", hide_env_values = true,
        action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stateful: Option<bool>,

    /// Another model there, to ask where the first can't answer; repeat it for more
    #[arg(
        long,
        value_name = "NAME",
        env = "CANTLE_FALLBACK_MODEL",
        hide_env_values = true,
        value_delimiter = ','
    )]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) fallback_model: Vec<String>,

    /// US dollars for a million tokens of input, where the provider does not say what it costs
    #[arg(long, value_name = "USD", env = "CANTLE_PRICE_INPUT", hide_env_values = true,
        value_parser = parse_price, requires = "price_output")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price_input: Option<f64>,

    /// The same for output, reasoning included
    #[arg(long, value_name = "USD", env = "CANTLE_PRICE_OUTPUT", hide_env_values = true,
        value_parser = parse_price, requires = "price_input")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price_output: Option<f64>,

    /// The same for input read from the cache [default: as other input]
    #[arg(long, value_name = "USD", env = "CANTLE_PRICE_CACHE_READ", hide_env_values = true,
        value_parser = parse_price, requires = "price_input")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price_cache_read: Option<f64>,

    /// The same for input written to the cache [default: as other input]
    #[arg(long, value_name = "USD", env = "CANTLE_PRICE_CACHE_WRITE", hide_env_values = true,
        value_parser = parse_price, requires = "price_input")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price_cache_write: Option<f64>,

    /// Requests in a minute, at most
    #[arg(long, value_name = "N", env = "CANTLE_RPM", hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rpm: Option<u32>,

    /// Tokens in a minute, read and written, at most
    #[arg(long, value_name = "N", env = "CANTLE_TPM", hide_env_values = true,
        value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tpm: Option<u64>,
}

impl ServingArgs {
    /// What is said here, else there. Prices belong together: they come from one place.
    pub(crate) fn or(self, weaker: &Self) -> Self {
        let prices = if self.price_input.is_some() {
            &self
        } else {
            weaker
        };
        Self {
            price_input: prices.price_input,
            price_output: prices.price_output,
            price_cache_read: prices.price_cache_read,
            price_cache_write: prices.price_cache_write,
            server: self.server.or(weaker.server),
            stateful: self.stateful.or(weaker.stateful),
            rpm: self.rpm.or(weaker.rpm),
            tpm: self.tpm.or(weaker.tpm),
            fallback_model: if self.fallback_model.is_empty() {
                weaker.fallback_model.clone()
            } else {
                self.fallback_model
            },
        }
    }

    /// What of it was said by a flag.
    pub(crate) fn by_flag(&self, by_flag: impl Fn(&str) -> bool) -> Self {
        let all = self.clone();
        Self {
            server: all.server.filter(|_| by_flag("server")),
            stateful: all.stateful.filter(|_| by_flag("stateful")),
            price_input: all.price_input.filter(|_| by_flag("price_input")),
            price_output: all.price_output.filter(|_| by_flag("price_output")),
            price_cache_read: all.price_cache_read.filter(|_| by_flag("price_cache_read")),
            price_cache_write: all
                .price_cache_write
                .filter(|_| by_flag("price_cache_write")),
            rpm: all.rpm.filter(|_| by_flag("rpm")),
            tpm: all.tpm.filter(|_| by_flag("tpm")),
            fallback_model: if by_flag("fallback_model") {
                all.fallback_model
            } else {
                Vec::new()
            },
        }
    }

    /// Refuses what makes no sense: files are not as strict as flags.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let prices = [
            ("price_input", self.price_input),
            ("price_output", self.price_output),
            ("price_cache_read", self.price_cache_read),
            ("price_cache_write", self.price_cache_write),
        ];
        for (name, price) in prices {
            if price.is_some_and(|price| !price.is_finite() || price < 0.0) {
                bail!("`{name}` must be US dollars for a million tokens, such as 0.25");
            }
        }
        if prices.iter().any(|(_, price)| price.is_some()) && self.prices().is_none() {
            bail!("prices need both `price_input` and `price_output`");
        }
        if self.rpm == Some(0) || self.tpm == Some(0) {
            bail!("`rpm` and `tpm` must be above 0");
        }
        Ok(())
    }

    /// What tokens cost, where that was said.
    pub(crate) fn prices(&self) -> Option<Prices> {
        let (input, output) = (self.price_input?, self.price_output?);
        let read = self.price_cache_read.unwrap_or(input);
        let write = self.price_cache_write.unwrap_or(input);
        Some(Prices::per_million(input, output).with_cache_per_million(read, write))
    }
}

fn server_parser() -> impl TypedValueParser<Value = Server> {
    let names = Server::ALL.iter().map(|server| server.as_str());
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// A price, which may be nothing.
fn parse_price(text: &str) -> Result<f64, String> {
    let dollars = text.trim().trim_start_matches('$').parse::<f64>().ok();
    dollars
        .filter(|dollars| dollars.is_finite() && *dollars >= 0.0)
        .ok_or_else(|| "expected US dollars for a million tokens, such as 0.25".to_owned())
}

/// A server's name in a file.
pub(crate) mod server {
    use super::{Deserialize as _, Deserializer, Serialize as _, Serializer, Server};

    pub(crate) fn serialize<S: Serializer>(
        server: &Option<Server>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        server.map(Server::as_str).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Server>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        let server = name.map(|name| name.parse()).transpose();
        server.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use cantle::clients::chat::Server;
    use cantle::core::llm::Prices;

    use super::ServingArgs;

    fn said() -> ServingArgs {
        ServingArgs {
            server: Some(Server::Vllm),
            fallback_model: vec!["b".to_owned()],
            price_input: Some(3.0),
            price_output: Some(15.0),
            rpm: Some(60),
            ..ServingArgs::default()
        }
    }

    #[test]
    fn the_stronger_place_wins_and_prices_stay_together() {
        let weaker = ServingArgs {
            price_input: Some(1.0),
            price_output: Some(2.0),
            price_cache_read: Some(0.1),
            rpm: Some(5),
            tpm: Some(7),
            ..ServingArgs::default()
        };
        let both = said().or(&weaker);
        assert_eq!(
            both,
            ServingArgs {
                tpm: Some(7),
                ..said()
            }
        );
        assert_eq!(both.prices(), Some(Prices::per_million(3.0, 15.0)));
        let cached = Prices::per_million(1.0, 2.0).with_cache_per_million(0.1, 1.0);
        assert_eq!(weaker.prices(), Some(cached));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: fn(&mut ServingArgs)| {
            let mut args = said();
            change(&mut args);
            args.check().unwrap_err().to_string()
        };
        said().check().unwrap();
        ServingArgs::default().check().unwrap();
        assert_eq!(
            refused(|args| args.price_input = Some(-1.0)),
            "`price_input` must be US dollars for a million tokens, such as 0.25"
        );
        assert_eq!(
            refused(|args| args.price_output = None),
            "prices need both `price_input` and `price_output`"
        );
        assert_eq!(
            refused(|args| args.rpm = Some(0)),
            "`rpm` and `tpm` must be above 0"
        );
    }

    #[test]
    fn it_is_kept_with_a_run_and_flags_say_otherwise() {
        let json = serde_json::to_value(said()).unwrap();
        assert_eq!(json.get("server").unwrap(), "vllm");
        let kept: ServingArgs = serde_json::from_value(json).unwrap();
        assert_eq!(kept, said());
        let flags = ServingArgs {
            rpm: Some(1),
            tpm: Some(2),
            ..ServingArgs::default()
        };
        let flags = flags.by_flag(|name| name == "tpm");
        assert_eq!(
            flags.or(&kept),
            ServingArgs {
                tpm: Some(2),
                ..said()
            }
        );
    }
}
