//! Model properties: limits, input modalities and prices.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::content::{Media, MediaKind};
use crate::message::{Message, SharedMessage};
use crate::usage::TokenUsage;

use super::{LlmError, LlmErrorKind};

/// Properties of a model, as far as they are known.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The provider's name of the model.
    pub slug: String,
    /// Maximum tokens of input and output together.
    pub context_window: Option<u64>,
    /// Maximum output tokens of one turn.
    pub max_output_tokens: Option<u64>,
    /// Supported media. `None` if unknown: requests are then not checked.
    pub input_modalities: Option<InputModalities>,
    /// Token prices.
    pub prices: Option<Prices>,
    /// Upper bound of the prices, for calls whose cost the provider should report but does not.
    pub highest_prices: Option<Prices>,
    /// Whether the provider reports the cost of a call. `None` if unknown.
    pub reports_cost: Option<bool>,
    /// Settings of requests that influence answers, by name: `reasoning_effort`, `temperature`, others.
    /// They are part of a run's identity.
    pub parameters: Map<String, Value>,
    /// The models that the client calls if this one fails.
    pub fallbacks: Vec<Self>,
}

impl ModelInfo {
    /// Creates a model of which only the name is known.
    pub fn new(slug: impl Into<String>) -> Self {
        Self {
            slug: slug.into(),
            context_window: None,
            max_output_tokens: None,
            input_modalities: None,
            prices: None,
            highest_prices: None,
            reports_cost: None,
            parameters: Map::new(),
            fallbacks: Vec::new(),
        }
    }

    /// Returns the first of this model and its fallbacks whose calls have no known cost: the provider is
    /// not known to report it, and there are no prices. A cost budget then can't be enforced.
    pub fn without_cost(&self) -> Option<&Self> {
        let has_cost = self.prices.is_some() || self.reports_cost == Some(true);
        match has_cost {
            true => self.fallbacks.iter().find_map(Self::without_cost),
            false => Some(self),
        }
    }

    /// Returns this model, or the fallback of this name.
    pub fn named(&self, slug: &str) -> &Self {
        let mut fallbacks = self.fallbacks.iter();
        fallbacks.find(|model| model.slug == slug).unwrap_or(self)
    }

    /// Sets the context window and the output limit.
    ///
    /// # Errors
    /// [`LlmErrorKind::InvalidRequest`] unless 0 < output limit ≤ context window.
    pub fn with_limits(
        mut self,
        context_window: Option<u64>,
        max_output_tokens: Option<u64>,
    ) -> Result<Self, LlmError> {
        let invalid = |message: String| Err(LlmError::new(LlmErrorKind::InvalidRequest, message));
        if context_window == Some(0) {
            return invalid("the context window must be larger than 0 tokens".to_owned());
        }
        if max_output_tokens == Some(0) {
            return invalid("the output limit must be larger than 0 tokens".to_owned());
        }
        if let (Some(output), Some(window)) = (max_output_tokens, context_window)
            && output > window
        {
            return invalid(format!(
                "the output limit ({output} tokens) must not exceed the context window ({window} tokens)"
            ));
        }
        self.context_window = context_window;
        self.max_output_tokens = max_output_tokens;
        Ok(self)
    }

    /// Checks the media in messages against the model's input modalities, if they are known.
    ///
    /// # Errors
    /// [`LlmErrorKind::Unsupported`] if a message contains media that the model doesn't support.
    pub fn check_media(&self, messages: &[SharedMessage]) -> Result<(), LlmError> {
        let Some(input_modalities) = &self.input_modalities else {
            return Ok(());
        };
        for message in messages {
            let (content, allowed, place) = match &**message {
                Message::System(message) => (&message.content, &input_modalities.media, ""),
                Message::User(message) => (&message.content, &input_modalities.media, ""),
                Message::Tool(message) => (
                    &message.content,
                    &input_modalities.tool_results,
                    " in the result of a tool",
                ),
                Message::Assistant(_) => continue,
            };
            let refused = |media: &&Media| !allowed.contains(&media.kind());
            if let Some(media) = content.media().find(refused) {
                return Err(self.cannot_take(media.kind(), allowed, place));
            }
        }
        Ok(())
    }

    fn cannot_take(&self, kind: MediaKind, allowed: &[MediaKind], place: &str) -> LlmError {
        let mut takes = "text".to_owned();
        for kind in allowed {
            takes.push_str(" and ");
            takes.push_str(plural(*kind));
        }
        let (slug, kind) = (&self.slug, plural(kind));
        let message =
            format!("the conversation holds {kind}{place}, and `{slug}` takes {takes} there");
        LlmError::new(LlmErrorKind::Unsupported, message).with_advice(format!(
            "Use a model that takes {kind}, or put it into words."
        ))
    }
}

fn plural(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "images",
        MediaKind::Video => "video",
        MediaKind::Audio => "audio",
    }
}

/// Media that a model supports as input, besides text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputModalities {
    /// Media supported in user messages.
    pub media: Vec<MediaKind>,
    /// Media supported in tool results.
    pub tool_results: Vec<MediaKind>,
}

impl InputModalities {
    /// Returns text without media.
    pub fn text_only() -> Self {
        Self::default()
    }

    /// Creates the modalities of a model that supports `media` in user messages only.
    pub fn new(media: impl IntoIterator<Item = MediaKind>) -> Self {
        Self {
            media: media.into_iter().collect(),
            tool_results: Vec::new(),
        }
    }

    /// Sets the media supported in tool results.
    pub fn with_tool_results(mut self, media: impl IntoIterator<Item = MediaKind>) -> Self {
        self.tool_results = media.into_iter().collect();
        self
    }
}

/// Token prices, in US dollars per token.
///
/// ```
/// use cantle_core::llm::Prices;
/// use cantle_core::usage::TokenUsage;
///
/// let prices = Prices::per_million(3.0, 15.0).with_cache_per_million(0.3, 3.75);
/// let usage = TokenUsage { input: 1000, cache_read: 10_000, answer: 100, ..TokenUsage::default() };
/// assert!((prices.cost_usd(&usage) - 0.0075).abs() < 1e-9);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Prices {
    /// Price of an input token that is neither read from nor written to the cache.
    pub input: f64,
    /// Price of an output token, including reasoning.
    pub output: f64,
    /// Price of an input token read from the cache.
    pub cache_read: f64,
    /// Price of an input token written to the cache.
    pub cache_write: f64,
    /// Higher prices of long prompts.
    pub long_prompt: Option<LongPrompt>,
    /// The origin of the prices.
    pub source: PriceSource,
}

/// Higher prices of requests with a long prompt, which apply to all tokens of the request.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct LongPrompt {
    /// Input tokens, cached or not, above which they apply.
    pub above_tokens: u64,
    /// Factor for input tokens, cached or not.
    pub input_factor: f64,
    /// Factor for output tokens.
    pub output_factor: f64,
}

/// The origin of prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PriceSource {
    /// The user, whose prices replace costs that the provider reports.
    User,
    /// The provider.
    Provider,
    /// A price list of this date, such as `2026-11-15`.
    List(&'static str),
}

impl Prices {
    /// Creates prices in US dollars per million tokens, with the input price for cached tokens.
    pub fn per_million(input: f64, output: f64) -> Self {
        let input = input / 1e6;
        Self {
            input,
            output: output / 1e6,
            cache_read: input,
            cache_write: input,
            long_prompt: None,
            source: PriceSource::User,
        }
    }

    /// Sets the prices of cached input tokens, in US dollars per million.
    pub fn with_cache_per_million(mut self, read: f64, write: f64) -> Self {
        self.cache_read = read / 1e6;
        self.cache_write = write / 1e6;
        self
    }

    /// Sets higher prices of long prompts.
    pub fn with_long_prompt(mut self, long_prompt: Option<LongPrompt>) -> Self {
        self.long_prompt = long_prompt;
        self
    }

    /// Sets where the prices come from; the user by default.
    pub fn from_source(mut self, source: PriceSource) -> Self {
        self.source = source;
        self
    }

    /// Returns the date of the price list, if the prices come from one.
    pub fn list_date(&self) -> Option<&'static str> {
        match self.source {
            PriceSource::List(date) => Some(date),
            PriceSource::User | PriceSource::Provider => None,
        }
    }

    /// Returns prices that are no lower than these and `other`.
    pub fn max(self, other: Self) -> Self {
        let long = [self.long_prompt, other.long_prompt].into_iter().flatten();
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cache_read: self.cache_read.max(other.cache_read),
            cache_write: self.cache_write.max(other.cache_write),
            long_prompt: long.reduce(|a, b| LongPrompt {
                above_tokens: a.above_tokens.min(b.above_tokens),
                input_factor: a.input_factor.max(b.input_factor),
                output_factor: a.output_factor.max(b.output_factor),
            }),
            source: self.source,
        }
    }

    /// Computes the cost of the tokens of one call in US dollars.
    pub fn cost_usd(&self, usage: &TokenUsage) -> f64 {
        // Token counts are far below 2^52, where the conversion is exact.
        let input = usage.input as f64 * self.input
            + usage.cache_read as f64 * self.cache_read
            + usage.cache_write as f64 * self.cache_write;
        let output = usage.output_total() as f64 * self.output;
        match self.long_prompt {
            Some(long) if usage.input_total() > long.above_tokens => {
                input * long.input_factor + output * long.output_factor
            }
            _ => input + output,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{InputModalities, LongPrompt, ModelInfo, Prices};
    use crate::content::{Content, Media, MediaKind, Part};
    use crate::llm::LlmErrorKind;
    use crate::message::{Message, SharedMessage, ToolCall, ToolMessage};
    use crate::usage::TokenUsage;

    fn image() -> Content {
        let image = Media::image(&b"\x89PNG\r\n\x1a\n"[..]).unwrap();
        vec![Part::Text("Look:".to_owned()), Part::Media(image)].into()
    }

    fn refusal(input_modalities: Option<InputModalities>, message: Message) -> Option<String> {
        let mut model = ModelInfo::new("m");
        model.input_modalities = input_modalities;
        let error = model.check_media(&[SharedMessage::new(message)]).err()?;
        assert_eq!(error.kind(), LlmErrorKind::Unsupported);
        Some(error.to_string())
    }

    #[test]
    fn unsupported_audio_and_video_are_refused_with_advice() {
        let mp4 = Media::new(MediaKind::Video, &b"\x00\x00\x00\x18ftypmp42"[..]).unwrap();
        let wav = Media::new(MediaKind::Audio, &b"RIFF\x24\x00\x00\x00WAVEfmt "[..]).unwrap();
        assert_eq!(
            (mp4.mime_type(), wav.mime_type()),
            ("video/mp4", "audio/x-wav")
        );
        let mut model = ModelInfo::new("m");
        model.input_modalities = Some(InputModalities::new([MediaKind::Image]));
        let refused = [mp4.clone(), wav.clone()].map(|media| {
            let message = Message::user(Content::from(vec![Part::Media(media)]));
            let error = model
                .check_media(&[SharedMessage::new(message)])
                .unwrap_err();
            (
                error.to_string(),
                error.advice().unwrap_or_default().to_owned(),
            )
        });
        let expected = ["video", "audio"].map(|kind| {
            (
                format!("the conversation holds {kind}, and `m` takes text and images there"),
                format!("Use a model that takes {kind}, or put it into words."),
            )
        });
        assert_eq!(refused, expected);
        model.input_modalities = Some(InputModalities::new([MediaKind::Audio, MediaKind::Video]));
        let both = Content::from(vec![Part::Media(mp4), Part::Media(wav)]);
        assert!(
            model
                .check_media(&[SharedMessage::new(Message::user(both))])
                .is_ok()
        );
    }

    #[test]
    fn cost_is_unknown_if_neither_reported_nor_priced() {
        let without_cost = |model: &ModelInfo| model.without_cost().map(|model| model.slug.clone());
        let mut model = ModelInfo::new("m");
        assert_eq!(without_cost(&model).as_deref(), Some("m"));
        model.reports_cost = Some(false);
        assert_eq!(without_cost(&model).as_deref(), Some("m"));
        model.reports_cost = Some(true);
        assert_eq!(without_cost(&model), None);
        model.reports_cost = None;
        model.prices = Some(Prices::per_million(1.0, 2.0));
        assert_eq!(without_cost(&model), None);
        model.fallbacks = vec![model.clone(), ModelInfo::new("n")];
        assert_eq!(without_cost(&model).as_deref(), Some("n"));
    }

    #[test]
    fn long_prompts_cost_more() {
        let long = LongPrompt {
            above_tokens: 1000,
            input_factor: 2.0,
            output_factor: 1.5,
        };
        let prices = Prices::per_million(1.0, 10.0)
            .with_cache_per_million(0.5, 1.0)
            .with_long_prompt(Some(long));
        let mut usage = TokenUsage {
            input: 800,
            cache_read: 200,
            answer: 100,
            ..TokenUsage::default()
        };
        let micros = |usage: &TokenUsage| (prices.cost_usd(usage) * 1e6).round();
        assert_eq!(micros(&usage), 800.0 + 100.0 + 1000.0);
        usage.input += 1;
        assert_eq!(micros(&usage), (801.0 + 100.0) * 2.0 + 1500.0);
    }

    #[test]
    fn refusals_name_the_supported_media() {
        let user = || Message::user(image());
        let result = || Message::from(ToolMessage::new(&ToolCall::new(None, "f", ""), image()));
        let images = InputModalities::new([MediaKind::Image]);
        assert_eq!(refusal(None, user()), None);
        assert_eq!(refusal(Some(images.clone()), user()), None);
        assert_eq!(
            refusal(Some(InputModalities::new([MediaKind::Audio])), user()).unwrap(),
            "the conversation holds images, and `m` takes text and audio there"
        );
        assert_eq!(
            refusal(Some(images.clone()), result()).unwrap(),
            "the conversation holds images in the result of a tool, and `m` takes text there"
        );
        let everywhere = images.with_tool_results([MediaKind::Image]);
        assert_eq!(refusal(Some(everywhere), result()), None);
        assert_eq!(
            refusal(Some(InputModalities::text_only()), Message::user("Hi")),
            None
        );
    }
}
