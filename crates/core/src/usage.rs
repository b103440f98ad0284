//! Token usage.
//!
//! Providers report overlapping numbers: OpenAI's prompt tokens include cached ones, its completion
//! tokens include reasoning. The counters here are disjoint, so that sums and prices need no special
//! cases. The history's JSON keeps Stirrup's fields, where `input` includes cache reads and writes.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Tokens of one model call, or the sum of many. No token is in two counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "UsageJson", into = "UsageJson")]
#[expect(
    clippy::exhaustive_structs,
    reason = "a plain record of counters; adding one is a change"
)]
pub struct TokenUsage {
    /// Input tokens that were neither read from nor written to a provider's prompt cache.
    pub input: u64,
    /// Input tokens read from the cache.
    pub cache_read: u64,
    /// Input tokens written to the cache.
    pub cache_write: u64,
    /// Output tokens of the answer and its tool calls.
    pub answer: u64,
    /// Output tokens of reasoning.
    pub reasoning: u64,
}

impl TokenUsage {
    /// Returns all input tokens, cached or not.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
    }

    /// Returns all output tokens, including reasoning.
    pub fn output_total(&self) -> u64 {
        self.answer.saturating_add(self.reasoning)
    }

    /// Returns all tokens.
    pub fn total(&self) -> u64 {
        self.input_total().saturating_add(self.output_total())
    }
}

impl Add for TokenUsage {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for TokenUsage {
    // Saturating, because the numbers come from servers.
    fn add_assign(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.answer = self.answer.saturating_add(other.answer);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }
}

impl Sum for TokenUsage {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}

#[derive(Serialize, Deserialize)]
struct UsageJson {
    #[serde(default)]
    input: u64,
    #[serde(default)]
    answer: Option<u64>,
    // Stirrup 0.1 wrote this; 0.2 reads it as `answer`, where that is missing.
    #[serde(default, skip_serializing)]
    output: Option<u64>,
    #[serde(default)]
    reasoning: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    cache_read: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    cache_write: u64,
}

pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl From<UsageJson> for TokenUsage {
    fn from(json: UsageJson) -> Self {
        Self {
            input: json
                .input
                .saturating_sub(json.cache_read)
                .saturating_sub(json.cache_write),
            cache_read: json.cache_read,
            cache_write: json.cache_write,
            answer: json.answer.or(json.output).unwrap_or_default(),
            reasoning: json.reasoning,
        }
    }
}

impl From<TokenUsage> for UsageJson {
    fn from(usage: TokenUsage) -> Self {
        Self {
            input: usage.input_total(),
            answer: Some(usage.answer),
            output: None,
            reasoning: usage.reasoning,
            cache_read: usage.cache_read,
            cache_write: usage.cache_write,
        }
    }
}

#[cfg(test)]
mod tests;
