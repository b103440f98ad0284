//! A budget of money is kept, or refused where it can't be.

use anyhow::bail;
use cantle::core::llm::ModelInfo;

use crate::provider::{Api, Provider};
use crate::settings::ServedModel;

/// Refuses a budget where it is known that nobody says what a call costs. Where it is not known, the run
/// says so as soon as it is.
pub(crate) fn check(
    budget_usd: Option<f64>,
    model: &ServedModel,
    info: &ModelInfo,
) -> anyhow::Result<()> {
    if budget_usd.is_none() || info.prices.is_some() || info.reports_cost == Some(true) {
        return Ok(());
    }
    let endpoint = &model.endpoint;
    let who = match (endpoint.provider, endpoint.api) {
        (Some(Provider::Openai), _) => "OpenAI",
        (Some(Provider::Anthropic), _) => "Anthropic",
        (Some(Provider::Local), _) => "a server on this machine",
        (_, Api::Responses | Api::Messages) => "what is spoken there",
        _ if info.reports_cost == Some(false) => "its provider",
        _ => return Ok(()),
    };
    bail!(
        "--budget-usd can't be kept: {who} does not say what a call costs, and no prices were given. Give \
         them with --price-input and --price-output, or limit tokens with --budget-tokens"
    )
}
