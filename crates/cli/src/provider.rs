//! Model providers: their addresses, wire protocols and the variables of their keys.

use std::fmt;

use clap::ValueEnum as _;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};

/// Variable of a key for whatever endpoint is in use.
pub(crate) const KEY_VARIABLE: &str = "CANTLE_API_KEY";

/// A wire protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Api {
    /// OpenAI Chat Completions, which most servers support
    Chat,
    /// OpenAI Responses
    Responses,
    /// Anthropic Messages
    Messages,
}

/// A model provider.
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
    /// A server on this machine, such as llama.cpp
    Local,
}

impl Provider {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    pub(crate) fn base_url(self) -> &'static str {
        match self {
            Self::Openai => "https://api.openai.com/v1",
            Self::Openrouter => "https://openrouter.ai/api/v1",
            Self::Litellm => "http://127.0.0.1:4000/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
            Self::Local => "http://127.0.0.1:8080/v1",
        }
    }

    /// Returns the variable of this provider's key.
    pub(crate) fn key_variable(self) -> Option<&'static str> {
        match self {
            Self::Openai => Some("OPENAI_API_KEY"),
            Self::Openrouter => Some("OPENROUTER_API_KEY"),
            Self::Litellm => Some("LITELLM_API_KEY"),
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::Local => None,
        }
    }

    /// Returns whether the provider refuses requests without a key.
    pub(crate) fn needs_key(self) -> bool {
        matches!(self, Self::Openai | Self::Openrouter | Self::Anthropic)
    }

    /// Returns the default wire protocol at an address, which may be the provider's own.
    pub(crate) fn api(self, is_own: bool) -> Api {
        match self {
            Self::Anthropic => Api::Messages,
            // Its newer models take tools and reasoning together only in Responses; few other servers have it.
            Self::Openai if is_own => Api::Responses,
            Self::Openai | Self::Openrouter | Self::Litellm | Self::Local => Api::Chat,
        }
    }

    /// Returns all variables of keys, the general one first.
    pub(crate) fn all_key_variables() -> impl Iterator<Item = &'static str> {
        let own = Self::all().filter_map(Self::key_variable);
        [KEY_VARIABLE].into_iter().chain(own)
    }

    pub(crate) fn of_base_url(base_url: &str) -> Option<Self> {
        let base_url = base_url.trim_end_matches('/');
        Self::all().find(|p| p.base_url() == base_url)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", PossibleValue::get_name))
    }
}
