//! What is kept with a run so that it can go on as itself: the settings it began with, without keys.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cantle::core::policy::Policy;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::RunArgs;
use crate::offers::Offers;
use crate::place::Place;
use crate::provider::EndpointChoice;
use crate::serving::ServingArgs;
use crate::settings::{
    Model, Rules, ServedModel, Settings, nothing_to_ask, resolve_policy, text_or_file, variable,
};

/// The settings of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    model: NotedModel,
    system_prompt: Option<String>,
    max_turns: u32,
    timeout_s: f64,
    /// Where commands run.
    #[serde(default)]
    pub(crate) backend: Place,
    pub(crate) policy: Policy,
    pub(crate) schema: Option<Value>,
    pub(crate) approve: Option<String>,
    pub(crate) output_dir: Option<PathBuf>,
    /// Whether the model could ask somebody.
    pub(crate) asks_user: bool,
    /// What else it was offered.
    #[serde(default)]
    pub(crate) offers: Offers,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NotedModel {
    Served {
        slug: String,
        choice: EndpointChoice,
        max_tokens: Option<u64>,
        context_window: Option<u64>,
        stream: bool,
        #[serde(default)]
        serving: ServingArgs,
    },
    Recording(PathBuf),
}

impl Note {
    /// Notes the settings of a run that begins.
    ///
    /// # Errors
    /// Where the current directory can't be told, below which paths are.
    pub(crate) fn new(
        settings: &Settings,
        args: &RunArgs,
        schema: Option<&Value>,
        asks_user: bool,
    ) -> anyhow::Result<Self> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path).with_context(|| format!("{} has no place", path.display()))
        };
        let Settings { model, rules } = settings;
        Ok(Self {
            model: match model {
                Model::Recording(path) => NotedModel::Recording(absolute(path)?),
                Model::Served(model) => NotedModel::Served {
                    slug: model.slug.clone(),
                    choice: model.choice.clone(),
                    max_tokens: model.max_tokens,
                    context_window: model.context_window,
                    stream: model.stream,
                    serving: model.serving.clone(),
                },
            },
            system_prompt: rules.system_prompt.clone(),
            max_turns: rules.max_turns,
            timeout_s: rules.timeout.as_secs_f64(),
            backend: rules.place.clone(),
            policy: rules.policy.clone(),
            schema: schema.cloned(),
            approve: match args.approve.as_deref() {
                Some(path) if !matches!(path, "never" | "ask") => {
                    let path = absolute(&PathBuf::from(path))?;
                    Some(path.display().to_string())
                }
                said => said.map(str::to_owned),
            },
            output_dir: args.output_dir.as_ref().map(absolute).transpose()?,
            asks_user,
            offers: Offers::default(),
        })
    }

    /// The settings again, with what flags say otherwise.
    ///
    /// # Errors
    /// Where there is no key any more, or what flags say makes no sense.
    pub(crate) fn settings(&self, args: &RunArgs) -> anyhow::Result<Settings> {
        let by_flag = |id: &str| args.by_flag.iter().any(|flag| flag == id);
        let model = match &self.model {
            NotedModel::Recording(path) => {
                let given = args.model.replay.clone().filter(|_| by_flag("replay"));
                Model::Recording(given.unwrap_or_else(|| path.clone()))
            }
            NotedModel::Served {
                slug,
                choice,
                max_tokens,
                context_window,
                stream,
                serving,
            } => {
                let mut slug = slug.clone();
                if let Some(given) = args.model.model.clone().filter(|_| by_flag("model")) {
                    slug = given;
                }
                let mut choice = choice.clone();
                if by_flag("provider") || by_flag("base_url") {
                    choice.provider = args.model.provider;
                    choice.base_url.clone_from(&args.model.base_url);
                    choice.by_directory = false;
                    choice.api = None;
                }
                if by_flag("api") {
                    choice.api = args.model.api;
                }
                let endpoint = choice
                    .resolve(variable)
                    .map_err(|missing| nothing_to_ask(Some(&slug), Some(&missing)))?;
                let flag = |id, given: Option<u64>| given.filter(|_| by_flag(id));
                Model::Served(Box::new(ServedModel {
                    slug,
                    choice,
                    endpoint,
                    max_tokens: flag("max_tokens", args.model.max_tokens).or(*max_tokens),
                    context_window: flag("context_window", args.model.context_window)
                        .or(*context_window),
                    stream: *stream && !by_flag("no_stream"),
                    serving: args.model.serving.by_flag(by_flag).or(serving),
                    record: args.model.record.clone(),
                }))
            }
        };
        if by_flag("backend") && args.place.backend.as_ref() != Some(&self.backend) {
            bail!(
                "the run's commands ran with --backend {}, and its files are there: it can't go on elsewhere",
                self.backend
            );
        }
        let says_policy = ["policy", "allow_host", "limit", "best_effort"];
        let policy = if says_policy.into_iter().any(by_flag) {
            resolve_policy(&args.policy).map_err(|failure| failure.error)?
        } else {
            self.policy.clone()
        };
        let said = args
            .system_prompt
            .as_ref()
            .filter(|_| by_flag("system_prompt"));
        let said = said.map(|text| text_or_file(text, Path::new("")));
        let said = said.transpose()?;
        let timeout = Duration::try_from_secs_f64(self.timeout_s)?;
        Ok(Settings {
            model,
            rules: Rules {
                system_prompt: said.or_else(|| self.system_prompt.clone()),
                max_turns: args
                    .max_turns
                    .filter(|_| by_flag("max_turns"))
                    .unwrap_or(self.max_turns),
                timeout: args
                    .timeout
                    .filter(|_| by_flag("timeout"))
                    .unwrap_or(timeout),
                place: self.backend.clone(),
                policy,
            },
        })
    }
}
