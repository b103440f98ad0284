//! Token counts that overlap on the wire, and reported costs.

use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde_json::Value;

/// xAI's unit of costs. <https://docs.x.ai/developers/cost-tracking>
const TICKS_PER_USD: f64 = 1e10;

/// Cost fields of a usage object.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ReportedCost {
    /// Charge in US dollars, from OpenRouter; from Perplexity, an object with the sum in `total_cost`.
    cost: Option<Value>,
    /// OpenRouter's field for a request with the user's own provider key ("bring your own key").
    is_byok: Option<bool>,
    cost_details: Option<CostDetails>,
    /// Charge from xAI.
    cost_in_usd_ticks: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct CostDetails {
    /// Charge of the model's provider in US dollars, from OpenRouter.
    upstream_inference_cost: Option<f64>,
}

impl ReportedCost {
    /// Returns the reported cost in US dollars, if it is complete.
    ///
    /// OpenRouter's charge includes the provider's, except with the user's own provider key:
    /// <https://openrouter.ai/docs/cookbook/administration/usage-accounting#cost-breakdown>
    pub(crate) fn usd(&self) -> Option<f64> {
        let cost = self.cost.as_ref();
        let cost = cost.and_then(|cost| cost.get("total_cost").unwrap_or(cost).as_f64());
        let ticks = || self.cost_in_usd_ticks.map(|ticks| ticks / TICKS_PER_USD);
        let mut cost = cost.or_else(ticks);
        if self.is_byok == Some(true) {
            let upstream = self.cost_details.as_ref()?.upstream_inference_cost?;
            cost = Some(cost.unwrap_or(0.0) + upstream);
        }
        cost.filter(|cost| cost.is_finite() && *cost >= 0.0)
    }
}

/// Counts that are parts of an input or of an output.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct TokenDetails {
    pub(crate) cached_tokens: Option<u64>,
    /// Tokens written to the cache, from OpenAI and OpenRouter.
    pub(crate) cache_write_tokens: Option<u64>,
    /// LiteLLM's name for them.
    pub(crate) cache_creation_tokens: Option<u64>,
    pub(crate) reasoning_tokens: Option<u64>,
    /// Anthropic's name for them.
    pub(crate) thinking_tokens: Option<u64>,
}

/// Returns disjoint counts of an input that includes tokens read from and written to a cache, and an output that
/// includes reasoning.
pub(crate) fn disjoint_usage(
    input: Option<u64>,
    [cache_read, cache_write]: [Option<u64>; 2],
    output: Option<u64>,
    reasoning: Option<u64>,
) -> TokenUsage {
    let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
    let cache_read = cache_read.unwrap_or(0).min(input);
    let cache_write = cache_write.unwrap_or(0).min(input - cache_read);
    let reasoning = reasoning.unwrap_or(0).min(output);
    TokenUsage {
        input: input - cache_read - cache_write,
        cache_read,
        cache_write,
        answer: output - reasoning,
        reasoning,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ReportedCost;

    #[test]
    fn costs_are_read_in_every_format() {
        let details = json!({"upstream_inference_cost": 0.25});
        for (usage, expected) in [
            (
                json!({"cost": 0, "is_byok": true, "cost_details": details}),
                Some(0.25),
            ),
            (
                json!({"cost": 0.5, "is_byok": true, "cost_details": details}),
                Some(0.75),
            ),
            (
                json!({"cost": 0.5, "is_byok": false, "cost_details": details}),
                Some(0.5),
            ),
            (json!({"cost": 0.5, "cost_details": null}), Some(0.5)),
            // The provider's charge is unknown.
            (json!({"cost": 0, "is_byok": true}), None),
            (
                json!({"cost": {"request_cost": 0.25, "total_cost": 0.5}}),
                Some(0.5),
            ),
            (json!({"cost": {"input": 0.5}}), None),
            (json!({"cost": "0.5"}), None),
            (json!({"cost": -0.5}), None),
            (json!({"cost_in_usd_ticks": 5_000_000_000_u64}), Some(0.5)),
        ] {
            let parsed: ReportedCost = serde_json::from_value(usage.clone()).unwrap();
            assert_eq!(parsed.usd(), expected, "{usage}");
        }
    }
}
