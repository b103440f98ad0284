//! The configuration of a run and of a sandbox, from layers of settings.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use cantle::core::escape::for_display;
use cantle::core::policy::Policy;

use crate::backend::BackendArg;
use crate::endpoint::{Endpoint, MissingKey};
use crate::environment::variable;
use crate::exit::{Failure, FailureExt as _};
use crate::policy;
use crate::provider::Provider;
use crate::settings::layers::{Given, Layers, Origin};
use crate::settings::{SandboxSettings, Settings};

/// The configuration of a run, apart from its task and files.
#[derive(Debug)]
pub(crate) struct RunConfig {
    /// The settings in effect; a system prompt is its text.
    pub(crate) settings: Settings,
    pub(crate) model: ModelSource,
    pub(crate) policy: Policy,
    /// The settings by their origins.
    pub(crate) layers: Layers,
}

/// The source of the model's answers.
#[derive(Debug)]
pub(crate) enum ModelSource {
    /// A model of this name behind an endpoint.
    Endpoint(String, Endpoint),
    /// A recording in this file.
    Recording(PathBuf),
}

impl ModelSource {
    /// Returns advice for the case that the provider refuses the key.
    pub(crate) fn key_advice(&self) -> Option<String> {
        let Self::Endpoint(_, endpoint) = self else {
            return None;
        };
        Some(match &endpoint.key {
            Some(key) => format!("The key was read from {}.", key.variable),
            None => {
                let variables = endpoint.key_variables.join(" or ");
                format!("Set {variables} in the environment.")
            }
        })
    }

    /// Returns a warning that a key is not sent.
    pub(crate) fn withheld_key_remark(&self) -> Option<String> {
        let Self::Endpoint(_, endpoint) = self else {
            return None;
        };
        let variable = endpoint.withheld?;
        let base_url = &endpoint.base_url;
        Some(format!(
            "{variable} is not sent to {base_url}, because only the cantle.toml of this directory names that \
             address. If it is meant to get the key, pass --base-url or set CANTLE_BASE_URL"
        ))
    }
}

impl RunConfig {
    /// Returns the configuration of a new run.
    ///
    /// # Errors
    /// If a setting is invalid or missing.
    pub(crate) fn resolve(given: &Given<Settings>, replay: Option<&Path>) -> Result<Self, Failure> {
        let layers = Layers::with_files(given).usage()?;
        report_ignored(&layers);
        let policy = policy::resolve(&layers).usage()?;
        Self::with_policy(layers, policy, replay).usage()
    }

    /// Returns the configuration from settings whose policy is resolved.
    pub(crate) fn with_policy(
        layers: Layers,
        policy: Policy,
        replay: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let mut settings: Settings = layers.typed()?;
        set_build_digest(&mut settings.sandbox, &layers);
        // The others are the text itself, which may begin with an `@` that has no meaning.
        let may_name_file = !matches!(
            layers.origin("system_prompt"),
            Some(Origin::SavedRun | Origin::Directory | Origin::SubAgent)
        );
        if let Some(prompt) = &mut settings.system_prompt
            && may_name_file
            && let Some(path) = prompt.strip_prefix('@')
        {
            *prompt = std::fs::read_to_string(path)
                .with_context(|| format!("failed to read the system prompt {path}"))?;
        }
        let model = match replay {
            Some(recording) => ModelSource::Recording(recording.to_owned()),
            None => {
                let named_by = layers.origin("base_url");
                let endpoint = Endpoint::resolve(&settings.model, named_by, variable);
                match (&settings.model.model, endpoint) {
                    (Some(model), Ok(endpoint)) => ModelSource::Endpoint(model.clone(), endpoint),
                    (model, endpoint) => {
                        let missing = endpoint.err();
                        return Err(missing_model_or_key(model.as_deref(), missing.as_ref()));
                    }
                }
            }
        };
        Ok(Self {
            settings,
            model,
            policy,
            layers,
        })
    }
}

/// Returns the backend and the policy of commands, for subcommands without a model.
///
/// # Errors
/// If a setting is invalid.
pub(crate) fn resolve_sandbox(
    given: &Given<SandboxSettings>,
) -> Result<(BackendArg, Policy), Failure> {
    sandbox_of(&Layers::with_files(given).usage()?)
}

/// Returns the backend and the policy of these settings.
///
/// # Errors
/// If a setting is invalid.
pub(crate) fn sandbox_of(layers: &Layers) -> Result<(BackendArg, Policy), Failure> {
    report_ignored(layers);
    let policy = policy::resolve(layers).usage()?;
    let mut settings: SandboxSettings = layers.typed().usage()?;
    set_build_digest(&mut settings, layers);
    Ok((settings.backend.unwrap_or_default(), policy))
}

/// Returns the policy of these settings, for a local backend or another one, whichever they name.
///
/// # Errors
/// If a setting is invalid.
pub(crate) fn policy_of(layers: &Layers, is_local: bool) -> Result<Policy, Failure> {
    report_ignored(layers);
    policy::resolve_for(layers, is_local).usage()
}

/// Binds a Dockerfile of the current directory, also of a saved run, to the content that the user trusts.
fn set_build_digest(settings: &mut SandboxSettings, layers: &Layers) {
    if let Some(BackendArg::Dockerfile { digest, .. }) = &mut settings.backend
        && let Some(Origin::Directory | Origin::SavedRun) = layers.origin("backend")
    {
        digest.clone_from(&layers.build_digest);
    }
}

/// Reports settings of the current directory that are ignored.
fn report_ignored(layers: &Layers) {
    if let Some(ignored) = &layers.ignored {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "cantle: {}", for_display(ignored));
    }
}

/// Returns an error that says which settings are missing for a model call.
fn missing_model_or_key(model: Option<&str>, key: Option<&MissingKey>) -> anyhow::Error {
    let missing = match (model, &key) {
        (None, Some(_)) => "neither a model nor a key is set",
        (None, None) => "no model is set",
        (Some(_), _) => "no key is set",
    };
    let mut text = format!("{missing}\n");
    if model.is_none() {
        text.push_str("\n  model   --model NAME, or CANTLE_MODEL, or `model` in cantle.toml");
    }
    if let Some(missing) = key {
        let variables = missing.variables.join(" or ");
        let url = &missing.base_url;
        let _ = write!(
            text,
            "\n  key     {variables} in the environment, for {url}"
        );
        if let Some((provider, variable)) = missing.other {
            let _ = write!(
                text,
                "\n          ({variable} is set: add --provider {provider}?)"
            );
        }
    }
    let name = model.unwrap_or("NAME");
    let provider = key.map_or(Provider::Openai, |missing| missing.provider);
    let variable = key.and_then(|missing| missing.variables.first());
    let variable = variable.unwrap_or(&"OPENAI_API_KEY");
    let _ = write!(
        text,
        "\n\n\
         With a hosted model:       export {variable}=…   then   \
         cantle run --provider {provider} --model {name} 'TASK'\n\
         With a server of your own: cantle run --base-url http://127.0.0.1:8080/v1 --model {name} 'TASK'\n\
         Without any model:         cantle demo"
    );
    anyhow!(text)
}
