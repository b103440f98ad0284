//! Costs computed from token prices.
//!
//! Prices of the user replace the cost that the provider reports; other prices apply if it reports none.
//! An answer without usage has no cost. HTTP clients do this themselves if they have
//! [prices](cantle_core::llm::ModelInfo::prices); this wrapper is for other clients.

use std::sync::Arc;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, ModelInfo, PriceSource, Prices,
};
use futures_util::StreamExt as _;

/// A client that sets the cost of answers.
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

/// Sets the cost of a turn with usage, unless the provider reports it and the prices are not the user's.
pub(crate) fn with_prices(stream: ChatStream, prices: Prices) -> ChatStream {
    Box::pin(stream.map(move |event| {
        let mut event = event?;
        if let ChatEvent::Finished(end) = &mut event
            && let Some(usage) = end.usage
            && (end.cost_usd.is_none() || prices.source == PriceSource::User)
        {
            end.cost_usd = Some(prices.cost_usd(&usage));
            end.list_price_date = prices.list_date().map(str::to_owned);
        }
        Ok(event)
    }))
}

#[cfg(test)]
mod tests {
    use cantle_core::llm::{
        ChatRequest, LlmClientExt as _, PriceSource, Prices, StopReason, ToolSpecs, TurnEnd,
    };
    use cantle_core::usage::TokenUsage;

    use super::Priced;
    use crate::scripted::{ScriptedClient, done_with};

    async fn cost(end: TurnEnd, source: PriceSource) -> (Option<f64>, Option<String>) {
        let prices = Prices::per_million(1.0, 10.0).with_cache_per_million(0.1, 2.0);
        let client = Priced::new(
            ScriptedClient::always(move || done_with(end.clone())),
            prices.from_source(source),
        );
        let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
        let completion = client.complete(request).await.unwrap();
        (completion.cost_usd, completion.list_price_date)
    }

    #[tokio::test]
    async fn prices_of_the_user_precede_reported_costs_and_these_precede_others() {
        let usage = TokenUsage {
            input: 1_000_000,
            cache_read: 1_000_000,
            cache_write: 1_000_000,
            answer: 500_000,
            reasoning: 500_000,
        };
        let end = TurnEnd::new(StopReason::EndTurn, Some(usage));
        let mut reported = end.clone();
        reported.cost_usd = Some(0.5);
        let none = TurnEnd::new(StopReason::EndTurn, None);
        let list = PriceSource::List("2026-11-01");
        let date = || Some("2026-11-01".to_owned());
        for (end, source, expected) in [
            (&end, PriceSource::User, (Some(13.1), None)),
            (&end, PriceSource::Provider, (Some(13.1), None)),
            (&end, list, (Some(13.1), date())),
            (&reported, PriceSource::User, (Some(13.1), None)),
            (&reported, PriceSource::Provider, (Some(0.5), None)),
            (&reported, list, (Some(0.5), None)),
            (&none, PriceSource::User, (None, None)),
        ] {
            assert_eq!(cost(end.clone(), source).await, expected, "{source:?}");
        }
    }
}
