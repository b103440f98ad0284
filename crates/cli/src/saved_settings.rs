//! The settings of a run that are kept with it, so that it can be resumed. They hold no key.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::core::ids::RunId;
use cantle::core::policy::Policy;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::args::RunArgs;
use crate::config::{ModelSource, RunConfig};
use crate::delivery::StoreTarget;
use crate::extra_tools::ExtraTools;
use crate::in_place::InPlace;
use crate::policy;
use crate::settings::Settings;
use crate::settings::layers::{Layer, Layers, Origin, layer_of};
use crate::sub_agents::SubAgentTable;
use crate::trust::canonical;
use crate::working_copy::WorkingCopy;

/// The settings that a run began with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedSettings {
    settings: Layer,
    /// The address of the model comes from the `cantle.toml` of the directory where the run began, and gets no
    /// key.
    is_directory_endpoint: bool,
    /// The recording that answers model calls.
    replay: Option<PathBuf>,
    /// Without the variables, whose values are not kept.
    pub(crate) policy: Policy,
    /// Names of the variables of commands.
    #[serde(default)]
    pub(crate) variables: Vec<String>,
    pub(crate) schema: Option<Value>,
    pub(crate) approve: Option<String>,
    pub(crate) output_dir: Option<PathBuf>,
    /// The directory where the run began.
    #[serde(default)]
    pub(crate) started_in: PathBuf,
    /// The directory that the run works on.
    #[serde(default)]
    pub(crate) working_copy: Option<WorkingCopy>,
    /// The directory that the run changes itself.
    #[serde(default)]
    pub(crate) in_place: Option<InPlace>,
    /// Shared by the runs that follow each other in one session.
    #[serde(default)]
    pub(crate) session: Option<RunId>,
    /// The run from which the first one of the session goes on.
    #[serde(default)]
    pub(crate) continues: Option<RunId>,
    /// The budgets of cost and tokens with which the run began, for its page.
    #[serde(default)]
    pub(crate) budget_usd: Option<f64>,
    #[serde(default)]
    pub(crate) budget_tokens: Option<u64>,
    /// The directory of skills.
    #[serde(default)]
    pub(crate) skills: Option<PathBuf>,
    /// Whether the model could ask the user.
    pub(crate) asks_user: bool,
    #[serde(default, rename = "offers")]
    pub(crate) extra_tools: ExtraTools,
    #[serde(default)]
    pub(crate) sub_agents: Vec<SubAgentTable>,
    /// The file of `--mcp`, which is read again.
    #[serde(default)]
    pub(crate) mcp: Option<PathBuf>,
    /// The trusted directory whose `mcp.json` the run began with. It must be trusted again.
    #[serde(default)]
    pub(crate) mcp_directory: Option<PathBuf>,
}

impl SavedSettings {
    /// Returns the settings of a new run.
    ///
    /// # Errors
    /// If the current directory, which paths are relative to, is unknown.
    pub(crate) fn new(
        config: &RunConfig,
        args: &RunArgs,
        schema: Option<&Value>,
        (working_copy, in_place): (Option<&WorkingCopy>, Option<&InPlace>),
        asks_user: bool,
        sub_agents: &[SubAgentTable],
        (continues, mcp_directory): (Option<RunId>, Option<&Path>),
    ) -> anyhow::Result<Self> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .with_context(|| format!("failed to find the directory of {}", path.display()))
        };
        let (replay, is_directory_endpoint) = match &config.model {
            ModelSource::Recording(path) => (Some(absolute(path)?), false),
            ModelSource::Endpoint(_, endpoint) => (None, endpoint.is_foreign),
        };
        let approve = match args.approve.as_deref() {
            Some(path) if !matches!(path, "never" | "ask") => {
                Some(absolute(&PathBuf::from(path))?.display().to_string())
            }
            mode => mode.map(str::to_owned),
        };
        let mut policy = config.policy.clone();
        policy.environment.clear();
        Ok(Self {
            settings: layer_of(&config.settings)?,
            is_directory_endpoint,
            replay,
            variables: config.policy.environment.keys().cloned().collect(),
            policy,
            schema: schema.cloned(),
            approve,
            output_dir: match &args.output_dir {
                Some(store) if StoreTarget::of(store).is_some() => Some(store.clone()),
                directory => directory.as_ref().map(absolute).transpose()?,
            },
            started_in: std::env::current_dir().unwrap_or_default(),
            working_copy: working_copy.cloned(),
            in_place: in_place.cloned(),
            session: Some(RunId::new()),
            continues,
            budget_usd: args.budget_usd,
            budget_tokens: args.budget_tokens,
            skills: args.skills.as_ref().map(absolute).transpose()?,
            asks_user,
            extra_tools: ExtraTools::default(),
            sub_agents: sub_agents.to_vec(),
            mcp: args.mcp.as_ref().map(absolute).transpose()?,
            mcp_directory: mcp_directory.map(canonical).transpose()?,
        })
    }

    /// Reads what [`Self::new`] or version 0.1.0 has kept.
    pub(crate) fn read(mut kept: Value) -> serde_json::Result<Self> {
        if let Some(kept) = kept.as_object_mut()
            && let Some(model) = kept.remove("model")
        {
            upgrade(kept, &model)?;
        }
        serde_json::from_value(kept)
    }

    /// Whether the run's model calls were answered by a recording.
    pub(crate) fn is_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// Returns the configuration of the resumed run: as it was, except for what flags change.
    ///
    /// # Errors
    /// If a flag can't be changed for this run or is invalid, or if there is no key any more.
    pub(crate) fn config(&self, args: &RunArgs) -> anyhow::Result<RunConfig> {
        let flags = &args.settings.flags;
        let mut saved = self.settings.clone();
        if flags.contains_key("provider") || flags.contains_key("base_url") {
            saved.remove("api");
        }
        let backend = saved.get("backend").and_then(Value::as_str);
        let backend = backend.unwrap_or("local");
        if flags.get("backend").is_some_and(|flag| flag != backend) {
            bail!(
                "the run's commands ran with --backend {backend}, where its files are; a run can't be resumed \
                 with another backend"
            );
        }
        let mut directory = Layer::new();
        if self.is_directory_endpoint {
            for name in ["provider", "base_url"] {
                directory.extend(saved.remove_entry(name));
            }
        }
        let changes_policy = [
            "policy",
            "allow_host",
            "deny_host",
            "read",
            "limit",
            "best_effort",
        ]
        .iter()
        .any(|name| flags.contains_key(*name));
        let policy = if changes_policy {
            policy::resolve(&Layers::with_files(&args.settings)?)?
        } else {
            self.policy.clone()
        };
        let layers = Layers::new([
            (Origin::Flag, flags.clone()),
            (Origin::SavedRun, saved),
            (Origin::UntrustedDirectory, directory),
        ]);
        let replay = self.replay.as_ref();
        let replay = replay.map(|saved| args.replay.as_ref().unwrap_or(saved));
        RunConfig::with_policy(layers, policy, replay.map(PathBuf::as_path))
    }
}

/// Converts the settings that version 0.1.0 kept, whose model is an object.
fn upgrade(kept: &mut Map<String, Value>, model: &Value) -> serde_json::Result<()> {
    let served = |path: &str| {
        let value = model.pointer(&format!("/served{path}"));
        value.cloned().unwrap_or_default()
    };
    let mut settings = json!({
        "model": served("/slug"),
        "max_tokens": served("/max_tokens"),
        "context_window": served("/context_window"),
        "no_stream": served("/stream") == false,
        "system_prompt": kept.remove("system_prompt"),
        "max_turns": kept.remove("max_turns"),
        "timeout": kept.remove("timeout_s"),
        "backend": kept.remove("backend"),
    });
    for group in [served("/choice"), served("/serving")] {
        if let (Some(settings), Value::Object(group)) = (settings.as_object_mut(), group) {
            settings.extend(group);
        }
    }
    // Drops what is not set.
    let settings: Settings = serde_json::from_value(settings)?;
    kept.insert("settings".to_owned(), layer_of(&settings)?.into());
    let by_directory = served("/choice/by_directory") == true;
    kept.insert("is_directory_endpoint".to_owned(), by_directory.into());
    kept.insert(
        "replay".to_owned(),
        model.get("recording").cloned().unwrap_or_default(),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_settings_kept_by_version_0_1_0() {
        let kept = json!({
            "model": {"served": {
                "slug": "m",
                "choice": {
                    "provider": null, "api": "responses", "base_url": "http://models.example.com/v1",
                    "by_directory": true,
                },
                "max_tokens": 500,
                "context_window": null,
                "stream": false,
                "serving": {"server": "vllm", "rpm": 60},
            }},
            "system_prompt": "@ is no file",
            "max_turns": 30,
            "timeout_s": 300.0,
            "backend": "docker:python:3.12",
            "policy": {},
            "schema": null,
            "approve": "ask",
            "output_dir": "/out",
            "asks_user": true,
            "offers": {"calculator": true, "view_image": false},
        });
        let saved = SavedSettings::read(kept).unwrap();
        let expected = json!({
            "model": "m",
            "api": "responses",
            "base_url": "http://models.example.com/v1",
            "max_tokens": 500,
            "no_stream": true,
            "server": "vllm",
            "rpm": 60,
            "system_prompt": "@ is no file",
            "max_turns": 30,
            "timeout": 300.0,
            "backend": "docker:python:3.12",
        });
        assert_eq!(Value::Object(saved.settings.clone()), expected);
        assert!(saved.is_directory_endpoint && saved.asks_user && saved.extra_tools.calculator);
        let written = serde_json::to_value(&saved).unwrap();
        let read = SavedSettings::read(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);

        let recording = json!({
            "model": {"recording": "/turns.jsonl"}, "max_turns": 5, "timeout_s": 1.5, "policy": {}, "asks_user": false,
        });
        let saved = SavedSettings::read(recording).unwrap();
        assert_eq!(saved.replay, Some("/turns.jsonl".into()));
        let expected = json!({"max_turns": 5, "no_stream": false, "timeout": 1.5});
        assert_eq!(Value::Object(saved.settings), expected);
    }
}
