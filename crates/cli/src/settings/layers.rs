//! Layers of settings: flags, environment, the current directory's `cantle.toml`, the user's.
//!
//! A stronger layer replaces single settings of a weaker one; settings that only make sense together
//! come from one layer. Unless the user trusts the current directory, only harmless settings of its file
//! count: it may have come with a cloned repository. A profile of a trusted directory replaces settings of its file.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use cantle::clients::anthropic::DEFAULT_MAX_TOKENS;
use cantle::core::escape::shorten;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::file::{
    FILE_NAME, Layer, PROFILE, SettingsFile, layer_of, names_of, read_user, user_directory,
};
use super::{Limit, Settings};
use crate::backend::BackendArg;
use crate::environment::variable;
use crate::trust::ProjectFiles;

/// The id of the flag that trusts the current directory.
const TRUST_DIRECTORY: &str = "trust_directory";

/// Maximum number of characters of the names of ignored settings, to which profiles of any name belong.
const MAX_NAMED_CHARS: usize = 500;

/// Settings that name an endpoint.
const ENDPOINT: &[&str] = &["provider", "base_url"];

/// Settings that describe an endpoint: those of a file that is weaker than the layer which names it are for another one.
const OF_AN_ENDPOINT: [&str; 3] = ["api", "server", "stateful"];

/// Settings that are taken from the strongest layer that has any of them.
const TOGETHER: [&[&str]; 3] = [
    // Otherwise a key could be sent to an address it is not meant for.
    ENDPOINT,
    &[
        "price_input",
        "price_output",
        "price_cache_read",
        "price_cache_write",
    ],
    &["retry_for", "no_retry"],
];

/// The origin of a setting, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Flag,
    Environment,
    /// The profile that the user named.
    Profile,
    /// The settings that a resumed run began with.
    SavedRun,
    /// The table of a sub-agent.
    SubAgent,
    /// `cantle.toml` in the current directory, which the user trusts.
    Directory,
    /// The harmless settings of `cantle.toml` in a current directory that the user does not trust.
    UntrustedDirectory,
    /// `cantle.toml` in the user's configuration directory.
    User,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::Profile => "the profile",
            Self::SavedRun => "the run",
            Self::SubAgent => "the sub-agent",
            Self::Directory => "cantle.toml in this directory",
            Self::UntrustedDirectory => "cantle.toml in this directory, not trusted",
            Self::User => "cantle.toml of the user",
        })
    }
}

/// Settings of the group `G` (see [`Settings`]) from the command line, by origin.
#[derive(Clone, Debug)]
pub(crate) struct Given<G> {
    pub(crate) flags: Layer,
    pub(crate) environment: Layer,
    /// Whether the current directory is trusted for this call.
    trust_directory: bool,
    profile: Option<String>,
    /// Whether a flag names the profile, and not the environment.
    is_profile_flag: bool,
    group: PhantomData<G>,
}

impl<G> Given<G> {
    /// Returns whether the current directory is trusted for this call.
    pub(crate) fn trusts_directory(&self) -> bool {
        self.trust_directory
    }

    /// Returns whether the flag of a setting, or `--profile`, was given.
    pub(crate) fn has_flag(&self, name: &str) -> bool {
        self.flags.contains_key(name) || (name == PROFILE && self.is_profile_flag)
    }
}

impl<G: clap::Args + Serialize> clap::Args for Given<G> {
    fn augment_args(command: clap::Command) -> clap::Command {
        let trust = clap::Arg::new(TRUST_DIRECTORY)
            .long("trust-directory")
            .help("Trust the files of the current directory for this call, like `cantle trust`")
            .action(clap::ArgAction::SetTrue)
            .help_heading("Settings");
        let profile = clap::Arg::new(PROFILE)
            .long("profile")
            .value_name("NAME")
            .help("Let the settings of [profile.NAME] in cantle.toml override the others")
            .help_heading("Settings");
        let profile = with_variable(profile);
        let others = command.get_arguments().map(|arg| arg.get_id().clone());
        let others: Vec<_> = others.collect();
        G::augment_args(command)
            .mut_args(|arg| match others.contains(arg.get_id()) {
                true => arg,
                false => with_variable(arg),
            })
            .args([profile, trust])
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Lets the variable of an argument give it. An empty one counts as not set.
pub(crate) fn with_variable(arg: clap::Arg) -> clap::Arg {
    let name = format!("CANTLE_{}", arg.get_id().as_str().to_uppercase());
    if std::env::var_os(&name).is_some_and(|value| value.is_empty()) {
        return arg;
    }
    // A definition has names that stay.
    arg.env(&*name.leak()).hide_env_values(true)
}

impl<G: FromArgMatches + Serialize> FromArgMatches for Given<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let sources: BTreeMap<String, ValueSource> = matches
            .ids()
            .filter_map(|id| Some((id.to_string(), matches.value_source(id.as_str())?)))
            .collect();
        let layer = layer_of(&G::from_arg_matches_mut(matches)?)
            .map_err(|error| clap::Error::raw(clap::error::ErrorKind::InvalidValue, error))?;
        let from = |source| {
            let mut layer = layer.clone();
            layer.retain(|name, _| sources.get(name) == Some(&source));
            layer
        };
        Ok(Self {
            flags: from(ValueSource::CommandLine),
            environment: from(ValueSource::EnvVariable),
            trust_directory: matches.get_flag(TRUST_DIRECTORY),
            profile: matches.get_one(PROFILE).cloned(),
            is_profile_flag: sources.get(PROFILE) == Some(&ValueSource::CommandLine),
            group: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Layers of settings, the strongest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    layers: Vec<(Origin, Layer)>,
    /// A message for the user if settings of the current directory are ignored.
    pub(crate) ignored: Option<String>,
    /// The digest that a Dockerfile of the current directory must have with its context.
    pub(crate) build_digest: Option<String>,
}

impl Layers {
    /// Adds the settings in files to those of the command line.
    pub(crate) fn with_files<G: clap::Args>(given: &Given<G>) -> anyhow::Result<Self> {
        let mut environment = given.environment.clone();
        let has_limits = || names_of::<G>().iter().any(|name| name == "limit");
        // A flag hides its variable, but limits of flags and environment add up.
        if let Some(limits) = variable("CANTLE_LIMIT").filter(|_| has_limits()) {
            let limits = limits.split(',').map(str::parse);
            let limits: Result<Vec<Limit>, _> = limits.collect();
            let limits = limits.context("CANTLE_LIMIT is invalid")?;
            environment.insert("limit".to_owned(), serde_json::to_value(limits)?);
        }
        let mut user = match user_directory() {
            Some(directory) => read_user(&directory)?,
            None => SettingsFile::default(),
        };
        let mut layers = Self::default();
        let profile = given.profile.as_ref();
        let profile = profile.and_then(|name| user.profiles.remove(name));
        // The user's own profile comes before one of the directory.
        let of_directory = given.profile.as_deref().filter(|_| profile.is_none());
        let mut known: Vec<String> = user.profiles.keys().cloned().collect();
        let trust = given.trust_directory;
        let (origin, directory, is_found) =
            layers.read_project(&user.settings, of_directory, trust, &mut known)?;
        if let Some(name) = of_directory.filter(|_| !is_found) {
            return Err(layers.no_profile(name, known));
        }
        layers.layers = vec![
            (Origin::Flag, given.flags.clone()),
            (Origin::Environment, environment),
            (Origin::Profile, profile.unwrap_or_default()),
            (origin, directory),
            (Origin::User, user.settings),
        ];
        Ok(layers)
    }

    /// Reads those settings of the current directory that count, and adds the names of its profiles to `known`.
    fn read_project(
        &mut self,
        user: &Layer,
        profile: Option<&str>,
        trust_directory: bool,
        known: &mut Vec<String>,
    ) -> anyhow::Result<(Origin, Layer, bool)> {
        let directory = Path::new(".");
        let mut project = Project::read(Path::new(""))?;
        if project.is_empty() {
            return Ok((Origin::Directory, Layer::new(), false));
        }
        let mut reason = project.files.distrust(directory, trust_directory);
        // The files that it names are not even opened before the file itself is trusted.
        if reason.is_none() {
            project.read_named()?;
            reason = project.files.distrust(directory, trust_directory);
        }
        let Some(reason) = reason else {
            known.extend(project.file.profiles.keys().cloned());
            let profile = profile.and_then(|name| project.file.profiles.remove(name));
            let has_profile = profile.is_some();
            let layer = preferring(project.file.settings, profile.unwrap_or_default());
            let backend = layer.get("backend").and_then(Value::as_str);
            self.build_digest = backend.and_then(|name| project.build_digests.remove(name));
            return Ok((Origin::Directory, layer, has_profile));
        };
        let settings = project.file.settings.into_iter();
        let (kept, ignored): (Layer, Layer) =
            settings.partition(|(name, value)| is_harmless(name, value, user));
        let ignored = ignored.into_iter().map(|(name, _)| name);
        let profiles = project.file.profiles.keys();
        let names: Vec<_> = ignored
            .chain(profiles.map(|name| format!("{PROFILE}.{name}")))
            .collect();
        if !names.is_empty() {
            self.ignored = Some(format!(
                "ignored settings of {FILE_NAME} in this directory: {}, because {reason}. Read that file and those \
                 it names; `cantle trust` makes them count",
                shorten(&names.join(", "), MAX_NAMED_CHARS)
            ));
        }
        Ok((Origin::UntrustedDirectory, kept, false))
    }

    /// Returns an error about a profile that there is not.
    fn no_profile(&self, name: &str, mut known: Vec<String>) -> anyhow::Error {
        let mut text = format!("there is no profile `{name}` in your {FILE_NAME}");
        if known.is_empty() {
            text += &format!(": write [profile.{name}] and its settings in it");
        } else {
            known.sort();
            known.dedup();
            text += &format!("; there are {}", known.join(", "));
        }
        if let Some(ignored) = &self.ignored {
            text += &format!("\n{ignored}");
        }
        anyhow!(text)
    }

    /// Layers from these pairs, the strongest first.
    pub(crate) fn new(layers: impl IntoIterator<Item = (Origin, Layer)>) -> Self {
        Self {
            layers: layers.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Returns these layers below another one, without some of their settings.
    pub(crate) fn below(&self, origin: Origin, layer: Layer, without: &[&str]) -> Self {
        let mut layers = self.clone();
        for (_, weaker) in &mut layers.layers {
            weaker.retain(|name, _| !without.contains(&name.as_str()));
        }
        layers.layers.insert(0, (origin, layer));
        layers
    }

    /// Returns the strongest origin of a setting.
    pub(crate) fn origin(&self, name: &str) -> Option<Origin> {
        let together = TOGETHER.into_iter().find(|names| names.contains(&name));
        let strongest = |names: &[&str]| {
            let mut layers = self.layers.iter();
            layers.position(|(_, layer)| sets_any(layer, names))
        };
        let position = match together {
            Some(names) => strongest(names),
            None => strongest(&[name]),
        }?;
        let (origin, _) = self.layers.get(position)?;
        let is_of_a_file = !matches!(origin, Origin::Environment | Origin::SavedRun);
        let is_of_another = OF_AN_ENDPOINT.contains(&name)
            && is_of_a_file
            && strongest(ENDPOINT).is_some_and(|endpoint| endpoint < position);
        (!is_of_another).then_some(*origin)
    }

    /// Returns the settings in effect.
    pub(crate) fn merged(&self) -> Layer {
        let mut merged = Layer::new();
        for (origin, layer) in &self.layers {
            let in_effect = layer
                .iter()
                .filter(|(name, _)| self.origin(name) == Some(*origin));
            merged.extend(in_effect.map(|(name, value)| (name.clone(), value.clone())));
        }
        merged
    }

    /// Returns the settings in effect as a group such as [`Settings`].
    pub(crate) fn typed<G: DeserializeOwned>(&self) -> anyhow::Result<G> {
        Ok(serde_json::from_value(Value::Object(self.merged()))?)
    }

    /// Returns each layer's value of one setting, the weakest first.
    pub(crate) fn each<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Vec<(Origin, T)>> {
        let layers = self.layers.iter().rev();
        let values = layers.filter_map(|(origin, layer)| {
            let value = layer.get(name)?.clone();
            Some(serde_json::from_value(value).map(|value| (*origin, value)))
        });
        Ok(values.collect::<Result<_, _>>()?)
    }
}

/// Returns settings with those of a profile in their place. What only makes sense together comes from one of them.
fn preferring(mut settings: Layer, profile: Layer) -> Layer {
    for names in TOGETHER {
        if sets_any(&profile, names) {
            settings.retain(|name, _| !names.contains(&name.as_str()));
        }
    }
    if sets_any(&profile, ENDPOINT) {
        settings.retain(|name, _| !OF_AN_ENDPOINT.contains(&name.as_str()));
    }
    settings.extend(profile);
    settings
}

fn sets_any(layer: &Layer, names: &[&str]) -> bool {
    names.iter().any(|name| layer.contains_key(*name))
}

/// The settings of a directory's `cantle.toml`, and the files that they were read from.
#[derive(Debug)]
pub(crate) struct Project {
    pub(crate) file: SettingsFile,
    pub(crate) files: ProjectFiles,
    /// The digests of Dockerfiles with their contexts, by the setting that names them.
    build_digests: BTreeMap<String, String>,
}

impl Project {
    /// Reads the `cantle.toml` in `directory`, if it exists, but not the files that it names.
    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(FILE_NAME);
        let mut files = ProjectFiles::default();
        let file = match files.read(&path)? {
            Some(text) => SettingsFile::parse_at(&path, &text)?,
            None => SettingsFile::default(),
        };
        Ok(Self {
            file,
            files,
            build_digests: BTreeMap::new(),
        })
    }

    /// Whether it sets nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.file.settings.is_empty() && self.file.profiles.is_empty()
    }

    /// Reads the files that settings and profiles name; a system prompt becomes its text.
    pub(crate) fn read_named(&mut self) -> anyhow::Result<()> {
        for settings in self.file.layers_mut() {
            if let Some(Value::String(prompt)) = settings.get_mut("system_prompt")
                && let Some(path) = prompt.strip_prefix('@').map(PathBuf::from)
            {
                let text = self.files.read(&path)?;
                *prompt = text.with_context(|| format!("there is no file {}", path.display()))?;
            }
            if let Some(backend) = settings.get("backend").and_then(Value::as_str)
                && let Some((dockerfile, digest)) = backend
                    .parse::<BackendArg>()?
                    .build_digest(|path, metadata| self.files.check(path, metadata))?
            {
                let metadata = dockerfile.metadata()?;
                self.files.add(&dockerfile, &digest, &metadata);
                self.build_digests.insert(backend.to_owned(), digest);
            }
        }
        Ok(())
    }
}

/// Returns whether a setting of an untrusted directory counts: it can only lower what the user allows, or
/// change how the model samples and reasons.
fn is_harmless(name: &str, value: &Value, user: &Layer) -> bool {
    let default = match name {
        // Limits are compared where they are merged.
        "limit" => return true,
        "effort" | "temperature" => return true,
        // The smallest that a client has: the others leave it to the server.
        "max_tokens" => f64::from(DEFAULT_MAX_TOKENS),
        "max_turns" => f64::from(Settings::default().max_turns()),
        "timeout" => Settings::default().timeout().as_secs_f64(),
        _ => return false,
    };
    let allowed = user.get(name).and_then(Value::as_f64);
    value.as_f64() <= Some(allowed.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_directories_only_lower_the_output_limit() {
        let counts = |tokens: u64, user: Option<u64>| {
            let user = user.map(|tokens| ("max_tokens".to_owned(), Value::from(tokens)));
            let user: Layer = user.into_iter().collect();
            is_harmless("max_tokens", &Value::from(tokens), &user)
        };
        assert!(counts(32_000, None));
        assert!(!counts(32_001, None));
        assert!(counts(50_000, Some(50_000)));
        assert!(!counts(101, Some(100)));
    }
}
