//! `cantle.toml`: its text, checked setting by setting, as settings by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Settings;
use crate::environment::path_variable;
use crate::trust::read_regular;

pub(crate) const FILE_NAME: &str = "cantle.toml";

/// The id of the flag that names a profile, and the table of profiles in a file.
pub(super) const PROFILE: &str = "profile";

/// The settings of one origin by name, without those that are not set.
pub(crate) type Layer = Map<String, Value>;

/// The settings of a `cantle.toml`.
#[derive(Debug, Default)]
pub(crate) struct SettingsFile {
    pub(crate) settings: Layer,
    /// The tables `profile.NAME`, by name.
    pub(crate) profiles: BTreeMap<String, Layer>,
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

/// Returns the directory of the user's `cantle.toml`.
pub(super) fn user_directory() -> Option<PathBuf> {
    let config = path_variable("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| path_variable("HOME").map(|home| home.join(".config")));
    config.map(|config| config.join("cantle"))
}

/// Reads the user's `cantle.toml` in `directory`, if it exists.
pub(super) fn read_user(directory: &Path) -> anyhow::Result<SettingsFile> {
    let path = directory.join(FILE_NAME);
    let Some((text, _)) = read_regular(&path)? else {
        return Ok(SettingsFile::default());
    };
    let mut file = SettingsFile::parse_at(&path, &text)?;
    file.layers_mut()
        .for_each(|layer| resolve_paths(layer, directory));
    Ok(file)
}

/// Makes the paths in a file's settings relative to its directory: of `@FILE`, directories to read, and a Dockerfile.
fn resolve_paths(layer: &mut Layer, directory: &Path) {
    for (name, before) in [
        ("system_prompt", "@"),
        ("backend", "dockerfile:"),
        ("read", ""),
    ] {
        let value = layer.get_mut(name).into_iter();
        let texts = value.flat_map(|value| match value {
            Value::Array(items) => items.as_mut_slice(),
            single => std::slice::from_mut(single),
        });
        for text in texts {
            if let Value::String(text) = text
                && let Some(path) = text.strip_prefix(before)
            {
                *text = format!("{before}{}", directory.join(path).display());
            }
        }
    }
}

impl SettingsFile {
    /// Returns the settings, and those of each profile.
    pub(super) fn layers_mut(&mut self) -> impl Iterator<Item = &mut Layer> {
        [&mut self.settings]
            .into_iter()
            .chain(self.profiles.values_mut())
    }

    /// Parses the text of a `cantle.toml` at a path.
    pub(super) fn parse_at(path: &Path, text: &str) -> anyhow::Result<Self> {
        Self::parse(text).with_context(|| format!("invalid settings in {}", path.display()))
    }

    /// Parses the text of a `cantle.toml`.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
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
        for (name, value) in &entries {
            refuse_secret(name.get_ref(), value)?;
        }
        let mut file = Self::default();
        for (name, value) in entries {
            let line = line_of(name.span().start);
            match (&**name.get_ref(), value) {
                (PROFILE, toml::Value::Table(profiles)) => {
                    for (profile, settings) in profiles {
                        let settings = parse_profile(settings, line);
                        let settings = settings.with_context(|| format!("profile `{profile}`"))?;
                        file.profiles.insert(profile, settings);
                    }
                }
                (name, value) => file.settings.extend(parse_setting(name, value, line)?),
            }
        }
        Ok(file)
    }
}

/// Parses the settings of a text, for tests.
#[cfg(test)]
pub(crate) fn parse(text: &str) -> anyhow::Result<Layer> {
    SettingsFile::parse(text).map(|file| file.settings)
}

/// Refuses a setting that would hold a secret.
fn refuse_secret(name: &str, value: &toml::Value) -> anyhow::Result<()> {
    // A number is rather a limit whose name is misspelled, such as `max_token`.
    if is_secret(name) && !value.is_integer() {
        bail!(
            "`{name}`: keys do not belong in this file. Remove it, replace the key if others could read it, and \
             set it in the environment as CANTLE_API_KEY or the provider's own variable, such as \
             OPENAI_API_KEY"
        );
    }
    Ok(())
}

fn parse_profile(settings: toml::Value, line: usize) -> anyhow::Result<Layer> {
    let toml::Value::Table(settings) = settings else {
        bail!("line {line}: expected a table of settings");
    };
    let mut layer = Layer::new();
    for (name, value) in settings {
        refuse_secret(&name, &value)?;
        layer.extend(parse_setting(&name, value, line)?);
    }
    Ok(layer)
}

/// Parses one setting of a `cantle.toml`.
fn parse_setting(name: &str, value: toml::Value, line: usize) -> anyhow::Result<Layer> {
    let known = names();
    if !known.iter().any(|known| known == name) {
        let known = known.join(", ");
        bail!("line {line}: there is no setting `{name}`; the settings are {known}");
    }
    let settings: Settings = toml::Table::from_iter([(name.to_owned(), value)])
        .try_into()
        .map_err(|error: toml::de::Error| anyhow!("line {line}: `{name}`: {}", error.message()))?;
    Ok(layer_of(&settings)?)
}

/// Returns the names of all settings.
pub(crate) fn names() -> Vec<String> {
    names_of::<Settings>()
}

/// Returns the default of a setting as its help states it; `None` if it depends on others or there is none.
pub(crate) fn default_of(name: &str) -> Option<String> {
    let command = <Settings as clap::Args>::augment_args(clap::Command::new("cantle"));
    let arg = command.get_arguments().find(|arg| arg.get_id() == name)?;
    let help = arg.get_help()?.to_string();
    let (_, default) = help.rsplit_once("[default: ")?;
    Some(default.strip_suffix(']')?.to_owned())
}

/// Returns the names of the settings of a group.
pub(crate) fn names_of<G: clap::Args>() -> Vec<String> {
    let command = G::augment_args(clap::Command::new("cantle"));
    let names = command.get_arguments().map(|arg| arg.get_id().to_string());
    names.collect()
}

/// Returns whether a setting of this name would hold a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let secret = ["key", "secret", "password", "token", "auth", "bearer"];
    name != "max_tokens" && secret.iter().any(|word| name.contains(word))
}
