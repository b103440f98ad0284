//! The tools that `cantle run` offers beside commands and finishing: none of them needs anything but what
//! the run has.

use cantle::agent::AgentBuilder;
use cantle::core::content::{ImageLimits, MediaKind};
use cantle::core::llm::ModelInfo;
use cantle::tools::{calculator, view_image};
use serde::{Deserialize, Serialize};

use crate::provider::Provider;
use crate::settings::Model;

/// Which of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Offers {
    pub(crate) calculator: bool,
    pub(crate) view_image: bool,
}

impl Offers {
    /// Those for a model. One that takes no images would fail with the first: pictures are offered where
    /// it is known that it takes them, or served by those whose models all do.
    pub(crate) fn of(model: &Model, info: &ModelInfo) -> Self {
        let served_with_eyes = || match model {
            Model::Served(model) => matches!(
                model.endpoint.provider,
                Some(Provider::Openai | Provider::Anthropic)
            ),
            Model::Recording(_) => false,
        };
        let known = info.abilities.as_ref();
        let known = known.map(|abilities| abilities.media.contains(&MediaKind::Image));
        Self {
            calculator: true,
            view_image: known.unwrap_or_else(served_with_eyes),
        }
    }

    /// Those that a recorded model had.
    pub(crate) fn recorded(was_offered: impl Fn(&str) -> bool) -> Self {
        Self {
            calculator: was_offered("calculator"),
            view_image: was_offered("view_image"),
        }
    }

    pub(crate) fn add_to(self, mut agent: AgentBuilder) -> AgentBuilder {
        if self.view_image {
            agent = agent.tool(view_image(ImageLimits::default()));
        }
        if self.calculator {
            agent = agent.tool(calculator());
        }
        agent
    }
}

#[cfg(test)]
mod tests {
    use cantle::core::llm::Abilities;

    use super::*;

    #[test]
    fn pictures_are_offered_to_models_that_take_them() {
        let model = Model::Recording("turns.jsonl".into());
        let mut info = ModelInfo::new("m");
        let offered = |info: &ModelInfo| Offers::of(&model, info).view_image;
        assert!(!offered(&info), "it is not known");
        info.abilities = Some(Abilities::new([MediaKind::Image]));
        assert!(offered(&info));
        info.abilities = Some(Abilities::new([MediaKind::Audio]));
        assert!(!offered(&info));
    }
}
