//! The settings of a run that are kept with it, so that it can be resumed. They hold no key.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::KeptRun;
use cantle::core::ids::RunId;
use cantle::core::policy::Policy;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::RunArgs;
use crate::backend::BackendArg;
use crate::config::{ModelSource, RunConfig};
use crate::delivery::StoreTarget;
use crate::extra_tools::ExtraTools;
use crate::in_place::InPlace;
use crate::policy;
use crate::settings::file::{Layer, layer_of};
use crate::settings::layers::{Layers, Origin};
use crate::settings::{PolicySettings, SandboxSettings};
use crate::sub_agents::SubAgentTable;
use crate::trust::canonical;
use crate::working_copy::WorkingCopy;

/// The settings that a run began with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedSettings {
    settings: Layer,
    /// The digest that the backend's Dockerfile must have with its context.
    #[serde(default)]
    build_digest: Option<String>,
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
    /// The run that the first one of the session continues.
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

/// Returns the copy of a directory that a kept run works on, if it does.
pub(crate) fn working_copy(run: &KeptRun) -> Option<WorkingCopy> {
    SavedSettings::read(run.note.clone()).ok()?.working_copy
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
        let mut settings = config.settings.clone();
        let mut build_digest = None;
        if let Some(backend) = &mut settings.sandbox.backend {
            if let BackendArg::Dockerfile { digest, .. } = backend {
                build_digest = digest.take();
            }
            *backend = backend.absolute()?;
        }
        for path in &mut settings.sandbox.policy.read {
            *path = absolute(path)?;
        }
        Ok(Self {
            settings: layer_of(&settings)?,
            build_digest,
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
            budget_usd: args.budget.budget_usd,
            budget_tokens: args.budget.budget_tokens,
            skills: args.skills.as_ref().map(absolute).transpose()?,
            asks_user,
            extra_tools: ExtraTools::default(),
            sub_agents: sub_agents.to_vec(),
            mcp: args.mcp.as_ref().map(absolute).transpose()?,
            mcp_directory: mcp_directory.map(canonical).transpose()?,
        })
    }

    /// Returns the settings as they are kept.
    ///
    /// # Errors
    /// If a path is not UTF-8, which JSON can't hold.
    pub(crate) fn to_value(&self) -> anyhow::Result<Value> {
        let named = [
            &self.output_dir,
            &self.skills,
            &self.replay,
            &self.mcp,
            &self.mcp_directory,
        ];
        let copied = self.working_copy.as_ref().map(|it| &it.origin);
        let changed = self.in_place.as_ref().map(|it| &it.directory);
        // Paths that were given relative to the first one are below it.
        let mut paths = [&self.started_in]
            .into_iter()
            .chain(named.into_iter().flatten())
            .chain(copied)
            .chain(changed);
        if let Some(path) = paths.find(|path| path.to_str().is_none()) {
            bail!(
                "this run can't be kept for resuming, because the path {} is not UTF-8; use --no-keep",
                path.display()
            );
        }
        serde_json::to_value(self).context("this run can't be kept for resuming; use --no-keep")
    }

    /// Reads what [`Self::new`] has kept, or version 0.1.0.
    pub(crate) fn read(mut kept: Value) -> serde_json::Result<Self> {
        if let Some(kept) = kept.as_object_mut() {
            upgrade(kept)?;
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
        let group = |layer: &Layer| serde_json::from_value(layer.clone().into());
        let (given, began): (SandboxSettings, SandboxSettings) = (group(flags)?, group(&saved)?);
        let backend = began.backend.unwrap_or_default();
        if let Some(flag) = given.backend
            && flag.absolute()? != backend
        {
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
        let mut layers = Layers::new([
            (Origin::Flag, flags.clone()),
            (Origin::SavedRun, saved),
            (Origin::UntrustedDirectory, directory),
        ]);
        layers.build_digest.clone_from(&self.build_digest);
        let policy = match given.policy == PolicySettings::default() {
            true => self.policy.clone(),
            false => {
                let preset = began.policy.policy.unwrap_or_default();
                policy::resolve_again(&layers, preset, &self.policy.limits)?
            }
        };
        let replay = self.replay.as_ref();
        let replay = replay.map(|saved| args.replay.as_ref().unwrap_or(saved));
        RunConfig::with_policy(layers, policy, replay.map(PathBuf::as_path))
    }
}

/// The model of a run of version 0.1.0.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum OldModel {
    Served(Layer),
    Recording(Value),
}

/// Converts what version 0.1.0 kept to the present form.
fn upgrade(kept: &mut Layer) -> serde_json::Result<()> {
    let Some(model) = kept.remove("model") else {
        return Ok(());
    };
    let mut settings = Layer::new();
    match serde_json::from_value(model)? {
        OldModel::Recording(path) => drop(kept.insert("replay".to_owned(), path)),
        OldModel::Served(mut served) => {
            for group in ["choice", "serving"] {
                if let Some(Value::Object(group)) = served.remove(group) {
                    settings.extend(group);
                }
            }
            let slug = served.remove("slug");
            settings.extend(slug.map(|slug| ("model".to_owned(), slug)));
            if served.remove("stream") == Some(Value::Bool(false)) {
                settings.insert("no_stream".to_owned(), Value::Bool(true));
            }
            settings.extend(served);
        }
    }
    for name in ["system_prompt", "max_turns", "timeout_s", "backend"] {
        let value = kept.remove(name);
        settings.extend(value.map(|value| (name.trim_end_matches("_s").to_owned(), value)));
    }
    let by_directory = settings.remove("by_directory");
    let is_directory_endpoint = by_directory.unwrap_or(Value::Bool(false));
    settings.retain(|_, value| !value.is_null());
    kept.insert("is_directory_endpoint".to_owned(), is_directory_endpoint);
    kept.insert("settings".to_owned(), Value::Object(settings));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::args::RunCli;
    use crate::settings::file::parse;

    /// Returns the configuration of a run with these settings and limits that is resumed with flags.
    fn resumed(kept: &Value, flags: &[&str]) -> anyhow::Result<RunConfig> {
        let line = ["run", "--resume", "x"].iter().chain(flags);
        SavedSettings::read(kept.clone())?.config(&RunCli::parse_from(line).args)
    }

    #[test]
    fn flags_change_a_part_of_the_policy() {
        let flags = parse("policy = 'read_only'\nlimit = ['processes=9']").unwrap();
        let layers = Layers::new([(Origin::Flag, flags)]);
        let mut policy = policy::resolve(&layers).unwrap();
        // Of a weaker layer.
        policy.limits.set("disk=5G").unwrap();
        let settings = json!({"policy": "read_only", "limit": ["processes=9"]});
        let kept = json!({
            "settings": settings, "is_directory_endpoint": false, "replay": "/r", "policy": policy, "schema": null,
            "approve": null, "output_dir": null, "asks_user": false,
        });
        assert_eq!(resumed(&kept, &[]).unwrap().policy, policy);
        let changed = resumed(&kept, &["--limit", "memory=2G"]).unwrap().policy;
        policy.limits.set("memory=2G").unwrap();
        assert_eq!(changed, policy);
        let changed = resumed(&kept, &["--best-effort", "--limit", "disk=none"]);
        let changed = changed.unwrap().policy;
        assert_eq!(changed.read_roots, policy.read_roots);
        assert_eq!(changed.limits.processes, Some(9));
        assert_eq!(changed.limits.disk_bytes, None);
        let changed = resumed(&kept, &["--policy", "unconfined"]).unwrap().policy;
        assert_eq!(changed.read_roots, None);
        assert_eq!(changed.limits.processes, Some(9));
    }

    #[test]
    fn dockerfile_of_a_trusted_directory_keeps_its_digest_and_place() {
        let kept = json!({
            "settings": {"backend": "dockerfile:/project"}, "build_digest": "abc", "is_directory_endpoint": false,
            "replay": "/r", "policy": {}, "schema": null, "approve": null, "output_dir": null, "asks_user": false,
        });
        let backend = |flags: &[&str]| resumed(&kept, flags).map(|it| it.settings.sandbox.backend);
        let dockerfile = |digest: Option<&str>| BackendArg::Dockerfile {
            path: "/project".into(),
            digest: digest.map(str::to_owned),
        };
        assert_eq!(backend(&[]).unwrap(), Some(dockerfile(Some("abc"))));
        // As in a new run, a flag names whatever is there.
        let named = backend(&["--backend", "dockerfile:/project"]).unwrap();
        assert_eq!(named, Some(dockerfile(None)));
        assert!(backend(&["--backend", "dockerfile:."]).is_err());
        assert!(backend(&["--backend", "local"]).is_err());
    }

    #[test]
    fn settings_are_read_as_they_were_kept() {
        let kept = json!({
            "settings": {"model": "m", "api": "responses", "timeout": 300.0}, "build_digest": null,
            "is_directory_endpoint": true, "replay": null, "policy": {}, "schema": null, "approve": "ask",
            "output_dir": "/out", "asks_user": true, "offers": {"calculator": true, "view_image": false},
        });
        let saved = SavedSettings::read(kept.clone()).unwrap();
        assert!(saved.is_directory_endpoint && saved.asks_user && saved.extra_tools.calculator);
        assert_eq!(Value::Object(saved.settings.clone()), kept["settings"]);
        let written = serde_json::to_value(&saved).unwrap();
        let read = SavedSettings::read(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
    }

    #[test]
    fn settings_of_version_0_1_0_are_read() {
        let kept = |model: Value| {
            json!({
                "model": model, "system_prompt": "@text", "max_turns": 5, "timeout_s": 60.0,
                "backend": "local", "policy": {"network": "off", "strictness": "strict"}, "schema": null,
                "approve": "ask", "output_dir": "/out", "asks_user": true,
                "offers": {"calculator": true, "view_image": false},
            })
        };
        let served = json!({"served": {
            "slug": "m", "max_tokens": 100, "context_window": null, "stream": false, "serving": {"rpm": 9},
            "choice": {
                "provider": null, "api": "chat", "base_url": "http://127.0.0.1:1/v1", "by_directory": true,
            },
        }});
        let saved = SavedSettings::read(kept(served)).unwrap();
        let settings = json!({
            "model": "m", "max_tokens": 100, "no_stream": true, "rpm": 9, "api": "chat",
            "base_url": "http://127.0.0.1:1/v1", "system_prompt": "@text", "max_turns": 5,
            "timeout": 60.0, "backend": "local",
        });
        assert_eq!(Value::Object(saved.settings.clone()), settings);
        assert!(saved.is_directory_endpoint && saved.asks_user && saved.extra_tools.calculator);
        assert_eq!(saved.output_dir, Some("/out".into()));

        let kept = kept(json!({"recording": "/r"}));
        assert!(SavedSettings::read(kept.clone()).unwrap().is_replay());
        let config = resumed(&kept, &["--max-turns", "7"]).unwrap();
        assert_eq!(config.settings.max_turns(), 7);
        assert_eq!(config.settings.timeout().as_secs(), 60);
        assert_eq!(config.settings.system_prompt.as_deref(), Some("@text"));
        assert_eq!(json!(config.policy), kept["policy"]);
    }
}
