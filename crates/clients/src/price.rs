//! Costs computed from token prices.
//!
//! A cost that the provider reports takes precedence, and an answer without usage has no cost. HTTP
//! clients do this themselves if they have [prices](cantle_core::llm::ModelInfo::prices); this wrapper
//! is for other clients.

use std::sync::Arc;

use cantle_core::llm::{ChatEvent, ChatRequest, ChatStream, LlmClient, ModelInfo, Prices};
use futures_util::StreamExt as _;

/// A client that adds the cost to answers that lack it.
///
/// ```
/// use cantle_clients::price::Priced;
/// use cantle_clients::replay::ReplayClient;
/// use cantle_core::llm::{ChatRequest, LlmClientExt as _, Prices, ToolSpecs};
/// use cantle_core::message::{AssistantBlock, AssistantMessage, Message};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), cantle_core::llm::LlmError> {
/// let mut turn = AssistantMessage::new(vec![AssistantBlock::text("Hello!")]);
/// turn.token_usage.answer = 1_000_000;
/// let model = Priced::new(ReplayClient::new("demo", vec![turn]), Prices::per_million(3.0, 15.0));
/// let request = ChatRequest::new(vec![Message::user("Hi").into()], ToolSpecs::default());
/// assert_eq!(model.complete(request).await?.cost_usd, Some(15.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Priced<C> {
    client: Arc<C>,
    model: ModelInfo,
}

impl<C: LlmClient> Priced<C> {
    /// Wraps `client`, whose tokens have these prices.
    pub fn new(client: C, prices: Prices) -> Self {
        let mut model = client.model().clone();
        model.prices = Some(prices);
        Self {
            client: Arc::new(client),
            model,
        }
    }
}

impl<C: LlmClient> LlmClient for Priced<C> {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let stream = self.client.stream(request);
        match self.model.prices {
            Some(prices) => with_prices(stream, prices),
            None => stream,
        }
    }
}

/// Adds the cost to the end of a turn if it has usage but no cost.
pub(crate) fn with_prices(stream: ChatStream, prices: Prices) -> ChatStream {
    Box::pin(stream.map(move |event| {
        let mut event = event?;
        if let ChatEvent::Finished(end) = &mut event
            && end.cost_usd.is_none()
        {
            end.cost_usd = end.usage.map(|usage| prices.cost_usd(&usage));
        }
        Ok(event)
    }))
}

#[cfg(test)]
mod tests {
    use cantle_core::llm::{
        ChatRequest, LlmClientExt as _, Prices, StopReason, ToolSpecs, TurnEnd,
    };
    use cantle_core::usage::TokenUsage;

    use super::Priced;
    use crate::scripted::{ScriptedClient, done_with};

    async fn cost(end: TurnEnd) -> Option<f64> {
        let prices = Prices::per_million(1.0, 10.0).with_cache_per_million(0.1, 2.0);
        let client = Priced::new(
            ScriptedClient::always(move || done_with(end.clone())),
            prices,
        );
        let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
        client.complete(request).await.unwrap().cost_usd
    }

    #[tokio::test]
    async fn reported_costs_take_precedence_and_missing_usage_has_no_cost() {
        let usage = TokenUsage {
            input: 1_000_000,
            cache_read: 1_000_000,
            cache_write: 1_000_000,
            answer: 500_000,
            reasoning: 500_000,
        };
        let end = TurnEnd::new(StopReason::EndTurn, Some(usage));
        assert!((cost(end.clone()).await.unwrap() - 13.1).abs() < 1e-9);
        let mut reported = end;
        reported.cost_usd = Some(0.5);
        assert_eq!(cost(reported).await, Some(0.5));
        assert_eq!(cost(TurnEnd::new(StopReason::EndTurn, None)).await, None);
    }
}
