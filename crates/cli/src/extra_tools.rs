//! The tools that `cantle run` offers besides `code_exec`, `finish` and `user_input`.

use std::sync::Arc;

use cantle::agent::AgentBuilder;
use cantle::browser::BrowserTools;
use cantle::core::content::{ImageLimits, MediaKind};
use cantle::core::llm::ModelInfo;
use cantle::core::policy::Policy;
use cantle::core::sandbox::Backend;
use cantle::python::{Interpreter, PackageSet, PythonTool};
use cantle::tools::{calculator, view_image};
use serde::{Deserialize, Serialize};

use crate::config::ModelSource;
use crate::provider::Provider;
use crate::settings::{OptionalTool, Settings};
use crate::web::WebOffer;

/// The extra tools of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct ExtraTools {
    pub(crate) calculator: bool,
    pub(crate) view_image: bool,
    pub(crate) python: bool,
    pub(crate) web: WebOffer,
    pub(crate) browser: BrowserOffer,
}

/// Whether a run has the browser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BrowserOffer {
    #[default]
    None,
    Offered,
}

impl BrowserOffer {
    fn new(is_offered: bool) -> Self {
        match is_offered {
            true => Self::Offered,
            false => Self::None,
        }
    }
}

impl ExtraTools {
    /// Returns the tools for a model.
    ///
    /// A model that takes no images fails at the first one, so `view_image` is offered only if the
    /// model is known to take images, or if all models of its provider do.
    pub(crate) fn for_model(model: &ModelSource, info: &ModelInfo, settings: &Settings) -> Self {
        let is_wanted = |tool| settings.tools.contains(&tool);
        let provider_takes_images = || match model {
            ModelSource::Endpoint(_, endpoint) => matches!(
                endpoint.provider,
                Some(Provider::Openai | Provider::Anthropic)
            ),
            ModelSource::Recording(_) => false,
        };
        let known = info.input_modalities.as_ref();
        let known = known.map(|modalities| modalities.media.contains(&MediaKind::Image));
        Self {
            calculator: is_wanted(OptionalTool::Calculator),
            view_image: known.unwrap_or_else(provider_takes_images),
            python: is_wanted(OptionalTool::Python),
            web: WebOffer::new(is_wanted(OptionalTool::Web), settings.search.is_some()),
            browser: BrowserOffer::new(is_wanted(OptionalTool::Browser)),
        }
    }

    /// Returns the tools that a recorded run had.
    pub(crate) fn recorded(was_offered: impl Fn(&str) -> bool) -> Self {
        Self {
            calculator: was_offered("calculator"),
            view_image: was_offered("view_image"),
            python: was_offered("python"),
            web: WebOffer::new(was_offered("fetch_web_page"), was_offered("web_search")),
            browser: BrowserOffer::new(was_offered("browser_navigate")),
        }
    }

    /// Adds the tools to an agent, whose commands run in sandboxes of this backend with this policy. In a replay, no
    /// tool reaches anything outside.
    ///
    /// # Errors
    /// If the web tools can't be set up.
    pub(crate) fn add_to(
        self,
        mut agent: AgentBuilder,
        backend: &Arc<dyn Backend>,
        policy: &Policy,
        packages: Option<&PackageSet>,
        settings: &Settings,
        is_replay: bool,
    ) -> anyhow::Result<AgentBuilder> {
        let web = self.web.tools(policy, settings, self.view_image, is_replay);
        if let Some(web) = web? {
            agent = agent.provider(web);
        }
        if self.browser == BrowserOffer::Offered {
            let mut browser = BrowserTools::new();
            if self.view_image {
                browser = browser.images(ImageLimits::default());
            }
            agent = agent.provider(browser);
        }
        if self.python {
            let mut python = Interpreter::new(Arc::clone(backend))
                .policy(policy.clone())
                .timeout(settings.timeout());
            if let Some(packages) = packages {
                python = python.packages(packages.clone());
            }
            agent = agent.provider(PythonTool::new(python).images(self.view_image));
        }
        if self.view_image {
            agent = agent.tool(view_image(ImageLimits::default()));
        }
        if self.calculator {
            agent = agent.tool(calculator());
        }
        Ok(agent)
    }
}

#[cfg(test)]
mod tests {
    use cantle::core::llm::InputModalities;

    use super::*;

    #[test]
    fn images_are_offered_only_to_models_that_take_them() {
        let model = ModelSource::Recording("turns.jsonl".into());
        let mut info = ModelInfo::new("m");
        let offers_images =
            |info: &ModelInfo| ExtraTools::for_model(&model, info, &Settings::default()).view_image;
        assert!(!offers_images(&info), "unknown modalities");
        info.input_modalities = Some(InputModalities::new([MediaKind::Image]));
        assert!(offers_images(&info));
        info.input_modalities = Some(InputModalities::new([MediaKind::Audio]));
        assert!(!offers_images(&info));
    }
}
