//! Layers of settings: flags, environment, the current directory's `cantle.toml`, the user's.
//!
//! A stronger layer replaces single settings of a weaker one; settings that only make sense together
//! come from one layer. The file of the current directory is not trusted as far as the others: it may
//! have come with a cloned repository.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Limit, Settings};

pub(crate) const FILE_NAME: &str = "cantle.toml";

/// Settings that are taken from the strongest layer that has any of them.
const TOGETHER: [&[&str]; 2] = [
    // Otherwise a key could be sent to an address it is not meant for.
    &["provider", "base_url"],
    &[
        "price_input",
        "price_output",
        "price_cache_read",
        "price_cache_write",
    ],
];

/// Where a setting comes from, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Flag,
    Environment,
    /// The settings that a resumed run began with.
    SavedRun,
    /// `cantle.toml` in the current directory.
    Directory,
    /// `cantle.toml` in the user's configuration directory.
    User,
}

/// The settings of one origin by name, without those that are not set.
pub(crate) type Layer = Map<String, Value>;

/// Settings of the group `G` (see [`Settings`]) from the command line, by origin.
#[derive(Clone, Debug)]
pub(crate) struct Given<G> {
    pub(crate) flags: Layer,
    pub(crate) environment: Layer,
    group: PhantomData<G>,
}

impl<G: clap::Args + Serialize> clap::Args for Given<G> {
    fn augment_args(command: clap::Command) -> clap::Command {
        G::augment_args(command).mut_args(|arg| arg.hide_env_values(true))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
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
            group: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Layers of settings, the strongest first.
#[derive(Clone, Debug)]
pub(crate) struct Layers(Vec<(Origin, Layer)>);

impl Layers {
    /// Adds the settings in files to those of the command line.
    pub(crate) fn with_files<G>(given: &Given<G>) -> anyhow::Result<Self> {
        let mut environment = given.environment.clone();
        // A flag hides its variable, but limits of flags and environment add up.
        if let Some(limits) = variable("CANTLE_LIMIT") {
            let limits = limits.split(',').map(str::parse);
            let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
            environment.insert("limit".to_owned(), serde_json::to_value(limits)?);
        }
        let user = user_directory().map(|directory| read(&directory));
        Ok(Self(vec![
            (Origin::Flag, given.flags.clone()),
            (Origin::Environment, environment),
            (Origin::Directory, read(Path::new(""))?),
            (Origin::User, user.transpose()?.unwrap_or_default()),
        ]))
    }

    /// Layers from these pairs, the strongest first.
    pub(crate) fn new(layers: impl IntoIterator<Item = (Origin, Layer)>) -> Self {
        Self(layers.into_iter().collect())
    }

    /// Returns the strongest origin of a setting.
    pub(crate) fn origin(&self, name: &str) -> Option<Origin> {
        let together = TOGETHER.into_iter().find(|names| names.contains(&name));
        let sets_any = |layer: &Layer| match together {
            Some(names) => names.iter().any(|name| layer.contains_key(*name)),
            None => layer.contains_key(name),
        };
        let (origin, _) = self.0.iter().find(|(_, layer)| sets_any(layer))?;
        Some(*origin)
    }

    /// Returns the settings in effect.
    pub(crate) fn merged(&self) -> Layer {
        let mut merged = Layer::new();
        for (origin, layer) in &self.0 {
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
        let layers = self.0.iter().rev();
        let values = layers.filter_map(|(origin, layer)| {
            let value = layer.get(name)?.clone();
            Some(serde_json::from_value(value).map(|value| (*origin, value)))
        });
        Ok(values.collect::<Result<_, _>>()?)
    }
}

/// Returns the settings that are set.
pub(crate) fn layer_of(settings: &impl Serialize) -> serde_json::Result<Layer> {
    let Value::Object(mut layer) = serde_json::to_value(settings)? else {
        return Ok(Layer::new());
    };
    layer.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    });
    Ok(layer)
}

/// Returns the value of an environment variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the directory of the user's `cantle.toml`.
fn user_directory() -> Option<PathBuf> {
    let config = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
    config.map(|config| config.join("cantle"))
}

/// Reads `cantle.toml` in `directory`, if it exists.
fn read(directory: &Path) -> anyhow::Result<Layer> {
    let path = directory.join(FILE_NAME);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Layer::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("failed to read {}", path.display()));
        }
    };
    let mut layer =
        parse(&text).with_context(|| format!("invalid settings in {}", path.display()))?;
    // `@FILE` is relative to the file it is written in.
    if let Some(Value::String(prompt)) = layer.get_mut("system_prompt")
        && let Some(file) = prompt.strip_prefix('@')
    {
        *prompt = format!("@{}", directory.join(file).display());
    }
    Ok(layer)
}

/// Parses the text of a `cantle.toml`.
pub(crate) fn parse(text: &str) -> anyhow::Result<Layer> {
    let line_of = |offset: usize| {
        let before = text.bytes().take(offset);
        before.filter(|byte| *byte == b'\n').count() + 1
    };
    let entries: BTreeMap<toml::Spanned<String>, toml::Value> =
        toml::from_str(text).map_err(|error| {
            let line = line_of(error.span().map_or(0, |span| span.start));
            anyhow!("line {line}: {}", error.message())
        })?;
    // Checked before anything that might quote a value.
    if let Some(name) = entries.keys().find(|name| is_secret(name.get_ref())) {
        bail!(
            "`{}`: keys do not belong in this file. Remove it, replace the key if others could read it, and \
             set it in the environment as CANTLE_API_KEY or the provider's own variable, such as \
             OPENAI_API_KEY",
            name.get_ref()
        );
    }
    let known = names();
    let mut layer = Layer::new();
    for (name, value) in entries {
        let line = line_of(name.span().start);
        let name = name.into_inner();
        if !known.contains(&name) {
            let known = known.join(", ");
            bail!("line {line}: there is no setting `{name}`; the settings are {known}");
        }
        let settings: Settings = toml::Table::from_iter([(name.clone(), value)])
            .try_into()
            .map_err(|error: toml::de::Error| {
                anyhow!("line {line}: `{name}`: {}", error.message())
            })?;
        layer.extend(layer_of(&settings)?);
    }
    Ok(layer)
}

/// Returns the names of all settings.
pub(crate) fn names() -> Vec<String> {
    let command = <Settings as clap::Args>::augment_args(clap::Command::new("cantle"));
    let names = command.get_arguments().map(|arg| arg.get_id().to_string());
    names.collect()
}

/// Returns whether a setting of this name would hold a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let secret = ["key", "secret", "password", "token", "auth", "bearer"];
    name != "max_tokens" && secret.iter().any(|word| name.contains(word))
}
