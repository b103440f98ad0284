//! What a run is to be like: flags over environment over files, and the key.
//!
//! Files are `cantle.toml` in the current directory and the one of the user, in that order. They
//! hold no key, and what they don't know is an error. The environment comes with the flags, see
//! [`crate::args`].

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use cantle::clients::chat::Server;
use cantle::core::policy::{HostPattern, Policy, Preset};
use serde::{Deserialize, Deserializer};

use crate::args::{ModelArgs, PlaceArgs, PolicyArgs, RunArgs, parse_duration};
use crate::exit::{Failure, FailureExt as _};
use crate::place::Place;
use crate::policy::{self, Limit};
use crate::provider::{Api, Endpoint, EndpointChoice, MissingKey, Provider};
use crate::serving::{self, ServingArgs};

const FILE_NAME: &str = "cantle.toml";

/// What a run is to be like, apart from its task and files.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) model: Model,
    pub(crate) rules: Rules,
}

/// What holds for whatever plays the model.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) system_prompt: Option<String>,
    pub(crate) max_turns: u32,
    /// The longest time that one command may take.
    pub(crate) timeout: Duration,
    /// Where commands run.
    pub(crate) place: Place,
    /// What commands may do.
    pub(crate) policy: Policy,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            system_prompt: None,
            max_turns: 30,
            timeout: Duration::from_secs(300),
            place: Place::Local,
            policy: Policy::workspace(),
        }
    }
}

/// What plays the model.
#[derive(Debug)]
pub(crate) enum Model {
    Served(Box<ServedModel>),
    Recording(PathBuf),
}

/// A model behind an endpoint.
#[derive(Debug)]
pub(crate) struct ServedModel {
    pub(crate) slug: String,
    /// What was said about where it is.
    pub(crate) choice: EndpointChoice,
    pub(crate) endpoint: Endpoint,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) context_window: Option<u64>,
    pub(crate) stream: bool,
    pub(crate) serving: ServingArgs,
    /// Where its calls are written down.
    pub(crate) record: Option<PathBuf>,
}

/// A `cantle.toml`.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    provider: Option<Provider>,
    api: Option<Api>,
    base_url: Option<String>,
    model: Option<String>,
    system_prompt: Option<String>,
    max_turns: Option<u32>,
    max_tokens: Option<u64>,
    context_window: Option<u64>,
    #[serde(deserialize_with = "duration")]
    timeout: Option<Duration>,
    no_stream: Option<bool>,
    #[serde(deserialize_with = "serving::server::deserialize")]
    server: Option<Server>,
    stateful: Option<bool>,
    fallback_model: Vec<String>,
    price_input: Option<f64>,
    price_output: Option<f64>,
    price_cache_read: Option<f64>,
    price_cache_write: Option<f64>,
    rpm: Option<u32>,
    tpm: Option<u64>,
    #[serde(deserialize_with = "preset")]
    policy: Option<Preset>,
    allow_host: Vec<HostPattern>,
    limit: Vec<Limit>,
    best_effort: Option<bool>,
    backend: Option<Place>,
}

/// The files that there are.
struct Files {
    /// The current directory's.
    directory: File,
    /// The user's, and where it would be.
    user: File,
    users: Option<PathBuf>,
}

/// Puts flags, environment and files together.
pub(crate) fn resolve(args: &RunArgs) -> Result<Settings, Failure> {
    let here = Path::new("");
    let files = Files::read()?;
    let policy = files.policy(&args.policy)?;
    let place = files.place(&args.place)?;
    let Files {
        directory,
        user,
        users,
    } = files;
    let max_turns = args.max_turns.or(directory.max_turns).or(user.max_turns);
    let timeout = args.timeout.or(directory.timeout).or(user.timeout);
    let given = args.system_prompt.as_deref();
    let system_prompt = given
        .map(|text| text_or_file(text, here))
        .or_else(|| directory.prompt(here))
        .or_else(|| user.prompt(users.as_deref()?))
        .transpose()
        .usage()?;
    let default = Rules::default();
    Ok(Settings {
        model: model(&args.model, &directory, &user)?,
        rules: Rules {
            system_prompt,
            max_turns: max_turns.unwrap_or(default.max_turns),
            timeout: timeout.unwrap_or(default.timeout),
            place,
            policy,
        },
    })
}

/// The same for what commands may do alone.
pub(crate) fn resolve_policy(args: &PolicyArgs) -> Result<Policy, Failure> {
    Files::read()?.policy(args)
}

/// The same for where they run.
pub(crate) fn resolve_place(args: &PlaceArgs) -> Result<Place, Failure> {
    Files::read()?.place(args)
}

impl Files {
    fn read() -> Result<Self, Failure> {
        let users = user_directory();
        let user = users.as_deref().map_or(Ok(File::default()), File::read);
        Ok(Self {
            directory: File::read(Path::new("")).usage()?,
            user: user.usage()?,
            users,
        })
    }

    fn policy(&self, said: &PolicyArgs) -> Result<Policy, Failure> {
        let limits = variable("CANTLE_LIMIT");
        let places = policy::Places {
            said,
            directory: &self.directory.policy_args(),
            user: &self.user.policy_args(),
        };
        policy::resolve(&places, limits.as_deref()).usage()
    }

    fn place(&self, said: &PlaceArgs) -> Result<Place, Failure> {
        let here = &self.directory.backend;
        if let (None, Some(place @ (Place::Container(_) | Place::Remote { .. }))) =
            (&said.backend, here)
        {
            return Err(anyhow!(
                "`backend = \"{place}\"` is not taken from the current directory's {FILE_NAME}, which may \
                 be somebody else's: say it with --backend, CANTLE_BACKEND or in your own {FILE_NAME}"
            ))
            .usage();
        }
        let places = [&said.backend, here, &self.user.backend];
        let place = places.into_iter().flatten().next();
        Ok(place.cloned().unwrap_or_default())
    }
}

/// The directory of the user's `cantle.toml`.
fn user_directory() -> Option<PathBuf> {
    let config = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
    config.map(|config| config.join("cantle"))
}

pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn model(args: &ModelArgs, directory: &File, user: &File) -> Result<Model, Failure> {
    if let Some(recording) = &args.replay {
        return Ok(Model::Recording(recording.clone()));
    }
    let choice = endpoint_choice(args, directory, user);
    let endpoint = choice.resolve(variable);
    let slug = [&args.model, &directory.model, &user.model];
    let slug = slug.into_iter().flatten().find(|slug| !slug.is_empty());
    let (slug, endpoint) = match (slug, endpoint) {
        (Some(slug), Ok(endpoint)) => (slug.clone(), endpoint),
        (slug, endpoint) => return Err(nothing_to_ask(slug, endpoint.err().as_ref())).usage(),
    };
    let max_tokens = args.max_tokens.or(directory.max_tokens).or(user.max_tokens);
    let context_window = args
        .context_window
        .or(directory.context_window)
        .or(user.context_window);
    let no_stream = args.no_stream.or(directory.no_stream).or(user.no_stream);
    Ok(Model::Served(Box::new(ServedModel {
        slug,
        choice,
        endpoint,
        max_tokens,
        context_window,
        stream: !no_stream.unwrap_or(false),
        serving: args
            .serving
            .clone()
            .or(&directory.serving_args())
            .or(&user.serving_args()),
        record: args.record.clone(),
    })))
}

/// Provider and base URL belong together: they come from the strongest place that names either.
fn endpoint_choice(args: &ModelArgs, directory: &File, user: &File) -> EndpointChoice {
    let api = args.api.or(directory.api).or(user.api);
    let choice = |provider: Option<Provider>, base_url: &Option<String>, by_directory| {
        let base_url = base_url.clone().filter(|url| !url.is_empty());
        EndpointChoice {
            provider,
            api,
            base_url,
            by_directory,
        }
    };
    [
        choice(args.provider, &args.base_url, false),
        choice(directory.provider, &directory.base_url, true),
        choice(user.provider, &user.base_url, false),
    ]
    .into_iter()
    .find(|choice| choice.provider.is_some() || choice.base_url.is_some())
    .unwrap_or(EndpointChoice {
        api,
        ..EndpointChoice::default()
    })
}

/// Says what to set so that there is a model to ask.
pub(crate) fn nothing_to_ask(model: Option<&String>, key: Option<&MissingKey>) -> anyhow::Error {
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
    let name = model.map_or("NAME", String::as_str);
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

impl File {
    fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(FILE_NAME);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("failed to read {}", path.display()));
            }
        };
        Self::parse(&text).with_context(|| format!("{} can't be used", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        // Before anything that might quote a value.
        if let Ok(table) = toml::from_str::<toml::Table>(text)
            && let Some(name) = table.keys().find(|name| is_for_a_key(name))
        {
            bail!(
                "`{name}`: a key does not belong in a file. Remove it (and replace the key, where others \
                 could read it), and put it into the environment: CANTLE_API_KEY, or the provider's own \
                 variable such as OPENAI_API_KEY"
            );
        }
        toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text
                .bytes()
                .take(start)
                .filter(|byte| *byte == b'\n')
                .count()
                + 1;
            anyhow!("line {line}: {}", error.message())
        })
    }

    fn serving_args(&self) -> ServingArgs {
        ServingArgs {
            server: self.server,
            stateful: self.stateful,
            fallback_model: self.fallback_model.clone(),
            price_input: self.price_input,
            price_output: self.price_output,
            price_cache_read: self.price_cache_read,
            price_cache_write: self.price_cache_write,
            rpm: self.rpm,
            tpm: self.tpm,
        }
    }

    fn policy_args(&self) -> PolicyArgs {
        PolicyArgs {
            policy: self.policy,
            allow_host: self.allow_host.clone(),
            limit: self.limit.clone(),
            best_effort: self.best_effort,
        }
    }

    fn prompt(&self, directory: &Path) -> Option<anyhow::Result<String>> {
        let text = self.system_prompt.as_deref()?;
        Some(text_or_file(text, directory))
    }
}

/// Whether a setting of this name would hold a secret.
fn is_for_a_key(name: &str) -> bool {
    let name = name.to_lowercase();
    let secret = ["key", "secret", "password", "token", "auth", "bearer"];
    name != "max_tokens" && secret.iter().any(|word| name.contains(word))
}

/// `TEXT`, or what is in the file of `@FILE`, relative to `directory`.
pub(crate) fn text_or_file(text: &str, directory: &Path) -> anyhow::Result<String> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text.to_owned());
    };
    let path = directory.join(path);
    std::fs::read_to_string(&path)
        .with_context(|| format!("the system prompt {} can't be read", path.display()))
}

/// A number of seconds, or text such as `5m`.
fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a time such as 300 or \"5m\"")]
    enum Time {
        Seconds(u64),
        Text(String),
    }
    let text = match Time::deserialize(from)? {
        Time::Seconds(seconds) => seconds.to_string(),
        Time::Text(text) => text,
    };
    parse_duration(&text)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

fn preset<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Preset>, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests;
