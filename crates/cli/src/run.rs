//! `cantle run`: one task with a model.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use cantle::agent::{Agent, AgentBuilder, SessionOptions};
use cantle::clients::chat::ChatClient;
use cantle::clients::replay::ReplayClient;
use cantle::core::message::history;
use cantle::core::policy::Network;
use tokio_util::sync::CancellationToken;

use crate::agent;
use crate::args::{DisplayArgs, RunArgs};
use crate::display::Display;
use crate::exit::{Failure, FailureExt as _};
use crate::record;
use crate::settings::{self, Model, ServedModel};
use crate::work::{self, Work};

/// A run that only needs to be begun.
#[derive(Debug)]
pub(crate) struct Run {
    agent: Agent,
    options: SessionOptions,
    work: Work,
    display: DisplayArgs,
    network: Option<Network>,
    remark: Option<String>,
}

/// Reads everything that a run needs, so that what is wrong is told before anything is begun.
pub(crate) fn prepare(args: &RunArgs) -> Result<Run, Failure> {
    if let Some(output_dir) = &args.output_dir {
        record::remove(output_dir)?;
    }
    let settings = settings::resolve(args)?;
    let about_key = about_key(&settings.model);
    let remark = remark(&settings.model);
    let task = task(args).usage()?;
    let schema = args.schema.as_deref().map(schema).transpose().usage()?;
    let mut options = SessionOptions::default();
    options.input_files.clone_from(&args.input);
    options.output_dir.clone_from(&args.output_dir);
    if let Some(path) = &args.history {
        options.history = read(path)
            .and_then(|json| history::from_json(&json).with_context(|| path.display().to_string()))
            .usage()?;
    }
    let result_as_json = schema.is_some();
    let agent = builder(&settings.model)?;
    let network = settings.rules.policy.network.clone();
    Ok(Run {
        agent: agent::complete(agent, settings.rules, schema).usage()?,
        options,
        work: Work {
            task,
            output_dir: args.output_dir.clone(),
            about_key,
            result_as_json,
        },
        display: args.display,
        network,
        remark,
    })
}

impl Run {
    /// Does the task, and returns the exit code.
    pub(crate) async fn perform(self, cancellation: CancellationToken) -> Result<u8, Failure> {
        let mut display = Display::new(self.display, self.network);
        if let Some(remark) = &self.remark {
            display.say(remark).await;
        }
        let session = work::open(&self.agent, self.options, &cancellation).await?;
        self.work
            .perform(session, &mut display, &cancellation)
            .await
    }
}

fn task(args: &RunArgs) -> anyhow::Result<String> {
    if !args.more.is_empty() {
        let words: Vec<_> = [&args.task].into_iter().chain(&args.more).collect();
        bail!(
            "the task is one argument, but there are {}: {}. Put the task in quotes; and where a pattern \
             was meant for --input, quote that too, so that cantle looks for the files: --input '*.csv'",
            words.len(),
            words
                .iter()
                .map(|word| format!("`{word}`"))
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    let task = match &*args.task {
        "-" => std::io::read_to_string(std::io::stdin().lock())
            .context("the task can't be read from standard input")?,
        task => task.to_owned(),
    };
    if task.trim().is_empty() {
        bail!("the task is empty");
    }
    Ok(task)
}

fn builder(model: &Model) -> Result<AgentBuilder, Failure> {
    match model {
        Model::Served(model) => Ok(Agent::builder(agent::NAME, client(model).usage()?)),
        Model::Recording(path) => {
            let recording = read(path).and_then(|json| {
                ReplayClient::from_jsonl(&json).with_context(|| path.display().to_string())
            });
            Ok(Agent::builder(agent::NAME, recording.usage()?))
        }
    }
}

fn client(model: &ServedModel) -> anyhow::Result<ChatClient> {
    let mut client = ChatClient::builder(&model.slug)
        .base_url(&model.endpoint.base_url)
        .stream(model.stream);
    if let Some(key) = &model.endpoint.key {
        client = client.api_key(key.text.clone());
    }
    if let Some(tokens) = model.max_tokens {
        client = client.max_output_tokens(tokens);
    }
    if let Some(tokens) = model.context_window {
        client = client.context_window(tokens);
    }
    client.build().map_err(|error| match error.advice() {
        Some(advice) => anyhow!("{error}. {advice}"),
        None => error.into(),
    })
}

/// What to say where the model's provider refuses the key.
fn about_key(model: &Model) -> Option<String> {
    let Model::Served(model) = model else {
        return None;
    };
    Some(match &model.endpoint.key {
        Some(key) => format!("The key came from {}.", key.variable),
        None => {
            let variables = model.endpoint.key_variables.join(" or ");
            format!("Put it into the environment as {variables}.")
        }
    })
}

/// What to know about the key before anything happens.
fn remark(model: &Model) -> Option<String> {
    let Model::Served(model) = model else {
        return None;
    };
    let variable = model.endpoint.withheld?;
    let base_url = &model.endpoint.base_url;
    Some(format!(
        "{variable} is not sent to {base_url}: only the cantle.toml of this directory names that address. \
         Where it is meant to get the key, say so yourself with --base-url or CANTLE_BASE_URL"
    ))
}

fn schema(path: &Path) -> anyhow::Result<serde_json::Value> {
    let schema: serde_json::Value = serde_json::from_slice(&read(path)?)
        .with_context(|| format!("{} is not JSON", path.display()))?;
    if schema.get("type").and_then(serde_json::Value::as_str) != Some("object") {
        bail!(
            "{} must be the JSON schema of an object: {{\"type\": \"object\", \"properties\": …}}",
            path.display()
        );
    }
    Ok(schema)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("{} can't be read", path.display()))
}
