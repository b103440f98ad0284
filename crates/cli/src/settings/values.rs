//! Values of settings: how they are parsed on the command line and read from files.

use std::str::FromStr;
use std::time::Duration;

use anyhow::bail;
use cantle::clients::chat::Server;
use cantle::core::policy::{self, HostPattern, InvalidPolicy, Limits, Preset, parse_bytes};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::backend::BackendArg;

/// The smallest limit of memory. Programs crash without a message if they can't map their stack and libraries.
const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// A valid limit as it was written, such as `memory=2G`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub(crate) struct Limit(String);

impl Limit {
    /// Sets this limit in `limits`.
    pub(crate) fn apply_to(&self, limits: &mut Limits) -> Result<(), InvalidPolicy> {
        limits.set(&self.0)
    }
}

impl FromStr for Limit {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut limits = Limits::default();
        limits.set(text)?;
        let memory = limits.memory_bytes;
        if memory.is_some_and(|bytes| bytes < MIN_MEMORY_BYTES) {
            bail!("`{text}` is too little to start a program: the smallest limit is memory=1M");
        }
        Ok(Self(text.to_owned()))
    }
}

/// An allowed host, or the mark of the one before it: a list is split at its commas.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum AllowedHost {
    Host(HostPattern),
    Private,
}

/// The mark of a host whose addresses may be private.
const PRIVATE: &str = "private";

impl AllowedHost {
    /// Returns the hosts, each with its mark.
    ///
    /// # Errors
    /// If a mark follows no host.
    pub(crate) fn patterns(hosts: Vec<Self>) -> anyhow::Result<Vec<HostPattern>> {
        let mut patterns: Vec<HostPattern> = Vec::new();
        for host in hosts {
            match (host, patterns.pop()) {
                (Self::Host(host), before) => {
                    patterns.extend(before);
                    patterns.push(host);
                }
                (Self::Private, Some(before)) => patterns.push(before.with_private_addresses()),
                (Self::Private, None) => {
                    bail!(
                        "`private` comes after the host that it applies to, as in mirror.example.org,private"
                    )
                }
            }
        }
        Ok(patterns)
    }
}

impl FromStr for AllowedHost {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        match text {
            PRIVATE => Ok(Self::Private),
            _ => text.parse().map(Self::Host),
        }
    }
}

impl From<AllowedHost> for String {
    fn from(host: AllowedHost) -> Self {
        match host {
            AllowedHost::Host(host) => host.to_string(),
            AllowedHost::Private => PRIVATE.to_owned(),
        }
    }
}

/// Parameters of requests as they were written: `NAME=JSON`, or a JSON object.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Param {
    text: String,
    parameters: Map<String, Value>,
}

impl Param {
    /// Returns the parameters with their names.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (String, Value)> {
        self.parameters.clone().into_iter()
    }
}

impl FromStr for Param {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            r#"expected NAME=JSON, such as top_p=0.9 or user="\"me\"", or a JSON object"#.to_owned()
        };
        let parameters = match text.split_once('=') {
            _ if text.trim_start().starts_with('{') => serde_json::from_str(text).ok(),
            Some((name, value)) if !name.trim().is_empty() => serde_json::from_str(value)
                .ok()
                .map(|value| Map::from_iter([(name.trim().to_owned(), value)])),
            _ => None,
        };
        let parameters = parameters.ok_or_else(expected)?;
        // Parameters are kept with runs, and recorded.
        if let Some(name) = parameters.keys().find(|name| is_secret_parameter(name)) {
            return Err(format!(
                "`{name}`: keys do not belong in parameters; set CANTLE_API_KEY in the environment"
            ));
        }
        Ok(Self {
            parameters,
            text: text.to_owned(),
        })
    }
}

/// Returns whether a request parameter of this name would hold a secret. `prompt_cache_key` does not.
fn is_secret_parameter(name: &str) -> bool {
    let name = name.to_lowercase().replace(['-', '_'], "");
    let secret = [
        "apikey",
        "authorization",
        "credential",
        "password",
        "secret",
    ];
    secret.iter().any(|word| name.contains(word))
}

impl From<Param> for String {
    fn from(param: Param) -> Self {
        param.text
    }
}

/// A number of bytes, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Size {
    bytes: u64,
    text: String,
}

impl Size {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_bytes(text).ok_or("expected a size such as 500M or 2G")?;
        Ok(Self {
            bytes,
            text: text.to_owned(),
        })
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        size.text
    }
}

/// Reads values from files as they are read on the command line.
macro_rules! from_text {
    ($($type:ty),+) => {$(
        impl TryFrom<String> for $type {
            type Error = <Self as FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
    )+};
}

from_text!(Limit, AllowedHost, Param, Size, BackendArg);

/// A property that is usually found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    On,
    Off,
}

/// A tool of `--tools`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OptionalTool {
    Browser,
    Calculator,
    Python,
    Web,
}

/// A search service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Search {
    Brave,
    Tavily,
    Exa,
    Searxng,
}

/// Parses a sampling temperature.
pub(super) fn parse_temperature(text: &str) -> Result<f64, String> {
    let temperature = text.trim().parse::<f64>().ok();
    temperature
        .filter(|temperature| (0.0..=f64::MAX).contains(temperature))
        .ok_or_else(|| "expected a number from 0, such as 0.7".to_owned())
}

/// Reads a sampling temperature from a number.
pub(super) fn temperature<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let number = Option::<f64>::deserialize(from)?;
    let number = number.map(|number| parse_temperature(&number.to_string()));
    number.transpose().map_err(D::Error::custom)
}

/// Parses an age, which may be in days (`7d`).
pub(crate) fn parse_age(text: &str) -> Result<Duration, String> {
    match text.trim().strip_suffix('d') {
        Some(days) => match parse_duration(&format!("{}h", days.trim())) {
            Ok(hours) => Ok(hours.saturating_mul(24)),
            Err(_) => Err("expected a time such as 90m, 12h or 7d".to_owned()),
        },
        None => parse_duration(text),
    }
}

/// Parses a duration such as `300`, `90s`, `1.5m` or `1h`; the default unit is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = policy::parse_duration(text.trim());
    duration.ok_or_else(|| "expected a time such as 300, 90s, 5m or 1h".to_owned())
}

/// Parses an amount of money above zero.
pub(super) fn parse_dollars(text: &str) -> Result<f64, String> {
    parse_price(text)
        .ok()
        .filter(|dollars| *dollars > 0.0)
        .ok_or_else(|| "expected US dollars above 0, such as 1.50".to_owned())
}

/// Parses a price, which may be zero.
pub(super) fn parse_price(text: &str) -> Result<f64, String> {
    let dollars = text.trim().trim_start_matches('$').parse::<f64>().ok();
    dollars
        .filter(|dollars| dollars.is_finite() && *dollars >= 0.0)
        .ok_or_else(|| "expected US dollars for a million tokens, such as 0.25".to_owned())
}

/// Reads a price from a number.
pub(super) fn price<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let dollars = Option::<f64>::deserialize(from)?;
    let price = dollars.map(|dollars| parse_price(&dollars.to_string()));
    price.transpose().map_err(D::Error::custom)
}

/// A number of seconds, or text such as `5m`.
pub(crate) mod duration {
    use super::*;

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a time such as 300 or \"5m\"")]
    enum Written {
        Seconds(f64),
        Text(String),
    }

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(crate) fn serialize<S: serde::Serializer>(
        duration: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        duration
            .map(|duration| duration.as_secs_f64())
            .serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = Option::<Written>::deserialize(from)?.map(|written| match written {
            Written::Seconds(seconds) => seconds.to_string(),
            Written::Text(text) => text,
        });
        let duration = text.map(|text| parse_duration(&text));
        duration.transpose().map_err(D::Error::custom)
    }
}

/// Implements serialization of an optional value by its name.
macro_rules! by_name {
    ($module:ident, $type:ty) => {
        pub(super) mod $module {
            use super::*;

            pub(crate) fn serialize<S: serde::Serializer>(
                value: &Option<$type>,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                value.map(<$type>::as_str).serialize(to)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
                from: D,
            ) -> Result<Option<$type>, D::Error> {
                let name = Option::<String>::deserialize(from)?;
                let value = name.map(|name| name.parse()).transpose();
                value.map_err(D::Error::custom)
            }
        }
    };
}

by_name!(server_name, Server);
by_name!(preset_name, Preset);

/// Returns a parser of server types that lists them in `--help`.
pub(super) fn server() -> impl TypedValueParser<Value = Server> {
    let names = Server::ALL.iter().map(|server| server.as_str());
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// Returns a parser of policy names that lists them in `--help`.
pub(super) fn preset() -> impl TypedValueParser<Value = Preset> {
    let names = Preset::ALL.iter().map(|preset| preset.as_str());
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}
