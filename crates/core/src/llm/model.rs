//! A model: its name, its size, what it can take, and what it costs.

use crate::content::{Media, MediaKind};
use crate::message::{Message, SharedMessage};
use crate::usage::TokenUsage;

use super::{LlmError, LlmErrorKind};

/// A model: its name, its size, what it can take and what it costs, as far as that is known.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The provider's name for it.
    pub slug: String,
    /// Tokens that input and output may have together, where known.
    pub context_window: Option<u64>,
    /// Tokens that one turn may produce, where limited.
    pub max_output_tokens: Option<u64>,
    /// What it takes beside text. `None` where that is not known: then the provider decides.
    pub abilities: Option<Abilities>,
    /// What its tokens cost, where known.
    pub prices: Option<Prices>,
    /// Whether its provider says what a call cost. `None` where that is not known.
    pub reports_cost: Option<bool>,
}

impl ModelInfo {
    /// A model of which only the name is known.
    pub fn new(slug: impl Into<String>) -> Self {
        Self {
            slug: slug.into(),
            context_window: None,
            max_output_tokens: None,
            abilities: None,
            prices: None,
            reports_cost: None,
        }
    }

    /// Whether nobody can say what its calls cost: its provider does not, and it has no prices. Then a
    /// budget of money can't be kept.
    #[must_use]
    pub fn costs_nobody_knows_what(&self) -> bool {
        self.prices.is_none() && self.reports_cost == Some(false)
    }

    /// The same with a context window and an output limit.
    ///
    /// # Errors
    /// [`LlmErrorKind::InvalidRequest`] unless 0 < output limit ≤ context window, as far as given.
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

    /// Whether the model can take these messages, as far as its abilities are known.
    ///
    /// # Errors
    /// [`LlmErrorKind::Unsupported`] where one holds media that it can't take. The error names them
    /// and what it can take.
    pub fn takes(&self, messages: &[SharedMessage]) -> Result<(), LlmError> {
        let Some(abilities) = &self.abilities else {
            return Ok(());
        };
        for message in messages {
            let (content, allowed, place) = match &**message {
                Message::System(message) => (&message.content, &abilities.media, ""),
                Message::User(message) => (&message.content, &abilities.media, ""),
                Message::Tool(message) => (
                    &message.content,
                    &abilities.in_tool_results,
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
            takes.push_str(kind_in_general(*kind));
        }
        let (slug, kind) = (&self.slug, kind_in_general(kind));
        let message =
            format!("the conversation holds {kind}{place}, and `{slug}` takes {takes} there");
        LlmError::new(LlmErrorKind::Unsupported, message).with_advice(format!(
            "Use a model that takes {kind}, or put it into words."
        ))
    }
}

fn kind_in_general(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "images",
        MediaKind::Video => "video",
        MediaKind::Audio => "audio",
    }
}

/// What a model takes beside text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// Media that it takes in messages of the user.
    pub media: Vec<MediaKind>,
    /// Media that it takes in results of tools.
    pub in_tool_results: Vec<MediaKind>,
}

impl Abilities {
    /// Text alone.
    #[must_use]
    pub fn text_only() -> Self {
        Self::default()
    }

    /// These media in messages of the user, and none in results of tools.
    #[must_use]
    pub fn new(media: impl IntoIterator<Item = MediaKind>) -> Self {
        Self {
            media: media.into_iter().collect(),
            in_tool_results: Vec::new(),
        }
    }

    /// The same with these media in results of tools.
    #[must_use]
    pub fn with_tool_results(mut self, media: impl IntoIterator<Item = MediaKind>) -> Self {
        self.in_tool_results = media.into_iter().collect();
        self
    }
}

/// What tokens cost, in US dollars for each.
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
    /// A token of input that is neither read from nor written to the cache.
    pub input: f64,
    /// A token of output, reasoning included.
    pub output: f64,
    /// A token of input read from the cache.
    pub cache_read: f64,
    /// A token of input written to the cache.
    pub cache_write: f64,
}

impl Prices {
    /// Prices in US dollars for a million tokens; what is read from or written to the cache costs
    /// what other input costs.
    #[must_use]
    pub fn per_million(input: f64, output: f64) -> Self {
        let input = input / 1e6;
        Self {
            input,
            output: output / 1e6,
            cache_read: input,
            cache_write: input,
        }
    }

    /// The same with other prices for what is read from and written to the cache.
    #[must_use]
    pub fn with_cache_per_million(mut self, read: f64, write: f64) -> Self {
        self.cache_read = read / 1e6;
        self.cache_write = write / 1e6;
        self
    }

    /// What these tokens cost in US dollars.
    #[must_use]
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
    use super::{Abilities, ModelInfo};
    use crate::content::{Content, Media, MediaKind, Part};
    use crate::llm::LlmErrorKind;
    use crate::message::{Message, SharedMessage, ToolCall, ToolMessage};

    fn image() -> Content {
        let image = Media::image(&b"\x89PNG\r\n\x1a\n"[..]).unwrap();
        vec![Part::Text("Look:".to_owned()), Part::Media(image)].into()
    }

    fn refusal(abilities: Option<Abilities>, message: Message) -> Option<String> {
        let mut model = ModelInfo::new("m");
        model.abilities = abilities;
        let error = model.takes(&[SharedMessage::new(message)]).err()?;
        assert_eq!(error.kind(), LlmErrorKind::Unsupported);
        Some(error.to_string())
    }

    #[test]
    fn sound_and_moving_pictures_are_refused_with_what_to_do_instead() {
        let mp4 = Media::new(MediaKind::Video, &b"\x00\x00\x00\x18ftypmp42"[..]).unwrap();
        let wav = Media::new(MediaKind::Audio, &b"RIFF\x24\x00\x00\x00WAVEfmt "[..]).unwrap();
        assert_eq!(
            (mp4.mime_type(), wav.mime_type()),
            ("video/mp4", "audio/x-wav")
        );
        let mut model = ModelInfo::new("m");
        model.abilities = Some(Abilities::new([MediaKind::Image]));
        let refused = [mp4.clone(), wav.clone()].map(|media| {
            let message = Message::user(Content::from(vec![Part::Media(media)]));
            let error = model.takes(&[SharedMessage::new(message)]).unwrap_err();
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
        model.abilities = Some(Abilities::new([MediaKind::Audio, MediaKind::Video]));
        let both = Content::from(vec![Part::Media(mp4), Part::Media(wav)]);
        assert!(
            model
                .takes(&[SharedMessage::new(Message::user(both))])
                .is_ok()
        );
    }

    #[test]
    fn a_cost_that_nobody_knows_is_one_that_is_neither_reported_nor_priced() {
        let mut model = ModelInfo::new("m");
        assert!(!model.costs_nobody_knows_what(), "it may be told");
        model.reports_cost = Some(false);
        assert!(model.costs_nobody_knows_what());
        model.prices = Some(super::Prices::per_million(1.0, 2.0));
        assert!(!model.costs_nobody_knows_what());
    }

    #[test]
    fn media_that_a_model_cannot_take_are_refused_with_what_it_can() {
        let user = || Message::user(image());
        let result = || Message::from(ToolMessage::new(&ToolCall::new(None, "f", ""), image()));
        let images = Abilities::new([MediaKind::Image]);
        assert_eq!(refusal(None, user()), None);
        assert_eq!(refusal(Some(images.clone()), user()), None);
        assert_eq!(
            refusal(Some(Abilities::new([MediaKind::Audio])), user()).unwrap(),
            "the conversation holds images, and `m` takes text and audio there"
        );
        assert_eq!(
            refusal(Some(images.clone()), result()).unwrap(),
            "the conversation holds images in the result of a tool, and `m` takes text there"
        );
        let everywhere = images.with_tool_results([MediaKind::Image]);
        assert_eq!(refusal(Some(everywhere), result()), None);
        assert_eq!(
            refusal(Some(Abilities::text_only()), Message::user("Hi")),
            None
        );
    }
}
