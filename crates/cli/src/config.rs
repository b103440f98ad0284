//! The configuration of a run and of a sandbox, from layers of settings.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use cantle::core::policy::Policy;

use crate::backend::BackendArg;
use crate::endpoint::{Endpoint, MissingKey};
use crate::exit::{Failure, FailureExt as _};
use crate::policy;
use crate::settings::layers::{FILE_NAME, Given, Layers, Origin};
use crate::settings::{PolicySettings, SandboxSettings, Settings, variable};

/// The configuration of a run, apart from its task and files.
#[derive(Debug)]
pub(crate) struct RunConfig {
    /// The settings in effect; a system prompt is its text.
    pub(crate) settings: Settings,
    pub(crate) model: ModelSource,
    pub(crate) policy: Policy,
}

/// The source of the model's answers.
#[derive(Debug)]
pub(crate) enum ModelSource {
    /// A model of this name behind an endpoint.
    Endpoint(String, Endpoint),
    /// A recording in this file.
    Recording(PathBuf),
}

impl RunConfig {
    /// Returns the configuration of a new run.
    ///
    /// # Errors
    /// If a setting is invalid or missing.
    pub(crate) fn resolve(given: &Given<Settings>, replay: Option<&Path>) -> Result<Self, Failure> {
        let layers = Layers::with_files(given).usage()?;
        let policy = policy::resolve(&layers).usage()?;
        check_backend(&layers).usage()?;
        Self::with_policy(&layers, policy, replay).usage()
    }

    /// Returns the configuration from settings whose policy is resolved.
    pub(crate) fn with_policy(
        layers: &Layers,
        policy: Policy,
        replay: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let mut settings: Settings = layers.typed()?;
        // The text of a saved one may begin with an `@` that has no meaning.
        if let Some(prompt) = &mut settings.system_prompt
            && layers.origin("system_prompt") != Some(Origin::SavedRun)
            && let Some(path) = prompt.strip_prefix('@')
        {
            *prompt = std::fs::read_to_string(path)
                .with_context(|| format!("failed to read the system prompt {path}"))?;
        }
        let model = match replay {
            Some(recording) => ModelSource::Recording(recording.to_owned()),
            None => {
                let from_directory = layers.origin("base_url") == Some(Origin::Directory);
                let endpoint = Endpoint::resolve(&settings.model, from_directory, variable);
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
    let layers = Layers::with_files(given).usage()?;
    let policy = policy::resolve(&layers).usage()?;
    check_backend(&layers).usage()?;
    let settings: SandboxSettings = layers.typed().usage()?;
    Ok((settings.backend.unwrap_or_default(), policy))
}

/// Returns the policy of commands, for subcommands with a backend of their own.
///
/// # Errors
/// If a setting is invalid.
pub(crate) fn resolve_policy(given: &Given<PolicySettings>) -> Result<Policy, Failure> {
    policy::resolve(&Layers::with_files(given).usage()?).usage()
}

/// Refuses an existing container or a remote service that the current directory's file names.
fn check_backend(layers: &Layers) -> anyhow::Result<()> {
    let settings: SandboxSettings = layers.typed()?;
    if let Some(backend @ (BackendArg::Container(_) | BackendArg::Remote { .. })) = settings.backend
        && layers.origin("backend") == Some(Origin::Directory)
    {
        bail!(
            "the {FILE_NAME} of this directory sets `backend = \"{backend}\"`. That file may not be yours, so it \
             can only name new containers. Use --backend, CANTLE_BACKEND or your own {FILE_NAME}"
        );
    }
    Ok(())
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
    let provider = key.map_or("openai", |missing| missing.provider);
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
