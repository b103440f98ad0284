//! Model properties: limits, input modalities and prices.

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
    /// Whether the provider reports the cost of a call. `None` if unknown.
    pub reports_cost: Option<bool>,
    /// Settings of requests that influence answers, by name: `reasoning_effort`, `temperature`, others.
    /// They are part of a run's identity.
    pub parameters: Map<String, Value>,
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
            reports_cost: None,
            parameters: Map::new(),
        }
    }

    /// Returns whether the cost of calls can't be known: the provider doesn't report it, and there are
    /// no prices. A cost budget then has no effect.
    pub fn has_unknown_cost(&self) -> bool {
        self.prices.is_none() && self.reports_cost == Some(false)
    }

    /// Returns the price of these tokens in US dollars; `None` without prices or without tokens.
    pub fn cost_usd(&self, usage: &TokenUsage) -> Option<f64> {
        let prices = self.prices.as_ref()?;
        (usage.total() > 0).then(|| prices.cost_usd(usage))
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
        }
    }

    /// Sets the prices of cached input tokens, in US dollars per million.
    pub fn with_cache_per_million(mut self, read: f64, write: f64) -> Self {
        self.cache_read = read / 1e6;
        self.cache_write = write / 1e6;
        self
    }

    /// Computes the cost of these tokens in US dollars.
    pub fn cost_usd(&self, usage: &TokenUsage) -> f64 {
        // Token counts are far below 2^52, where the conversion is exact.
        usage.input as f64 * self.input
            + usage.cache_read as f64 * self.cache_read
            + usage.cache_write as f64 * self.cache_write
            + usage.output_total() as f64 * self.output
    }
}

#[cfg(test)]
mod tests {
    use super::{InputModalities, ModelInfo};
    use crate::content::{Content, Media, MediaKind, Part};
    use crate::llm::LlmErrorKind;
    use crate::message::{Message, SharedMessage, ToolCall, ToolMessage};

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
        let mut model = ModelInfo::new("m");
        assert!(!model.has_unknown_cost());
        model.reports_cost = Some(false);
        assert!(model.has_unknown_cost());
        model.prices = Some(super::Prices::per_million(1.0, 2.0));
        assert!(!model.has_unknown_cost());
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
