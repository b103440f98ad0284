//! `cantle run`: one task with a model.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::{
    Agent, Approvals, Budget, Permission, ResumeOptions, RunStore, SessionOptions,
};
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::message::history;
use cantle::core::policy::Network;
use cantle::core::tool::ChannelUser;
use cantle::tools::user_input;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent;
use crate::args::{DisplayArgs, RunArgs};
use crate::ask::Person;
use crate::client::{self, Asked, Tape};
use crate::display::Display;
use crate::exit::{Failure, FailureExt as _};
use crate::money;
use crate::note::Note;
use crate::offers::Offers;
use crate::record;
use crate::settings::{self, Model, Settings};
use crate::state::State;
use crate::tape::RecordedUser;
use crate::work::{self, Work};

/// The tool that asks somebody.
const USER_INPUT: &str = "user_input";

/// A run that only needs to be begun, or gone on with.
#[derive(Debug)]
pub(crate) struct Run {
    agent: Agent,
    begin: Begin,
    work: Work,
    display: DisplayArgs,
    network: Option<Network>,
    remarks: Vec<String>,
    /// Whoever can be asked.
    person: Option<Person>,
}

#[derive(Debug)]
enum Begin {
    /// A new run.
    Task(SessionOptions),
    /// One that is kept.
    Resume {
        store: RunStore,
        run: RunId,
        options: ResumeOptions,
    },
}

impl Begin {
    /// Takes out the budget of time.
    fn without_time(&mut self) {
        match self {
            Self::Task(options) => options.budget.time = None,
            Self::Resume { options, .. } => options.budget.time = None,
        }
    }
}

/// Reads everything that a run needs, so that what is wrong is told before anything is begun.
pub(crate) fn prepare(args: &RunArgs) -> Result<Run, Failure> {
    match &args.resume {
        Some(name) => resume(args, name),
        None => begin(args),
    }
}

fn begin(args: &RunArgs) -> Result<Run, Failure> {
    let settings = settings::resolve(args)?;
    let task = task(args).usage()?;
    let schema = args.schema.as_deref().map(schema).transpose().usage()?;
    let mut options = SessionOptions::default().budget(budget(args));
    options.input_files.clone_from(&args.input);
    options.output_dir.clone_from(&args.output_dir);
    options.skills.clone_from(&args.skills);
    if let Some(path) = &args.history {
        options.history = read(path)
            .and_then(|json| history::from_json(&json).with_context(|| path.display().to_string()))
            .usage()?;
    }
    let (user, person) = Person::at_terminal().internal()?.unzip();
    let mut local = LocalBackend::new();
    let mut remarks = Vec::new();
    if !args.no_keep {
        match State::find().map(|state| (state.backend(), state)) {
            Ok((Err(error), state)) if !state.is_named() => {
                remarks.push(format!("The run is not kept for resuming: {error:#}"));
            }
            Ok((kept_backend, state)) => {
                let note = Note::new(&settings, args, schema.as_ref(), person.is_some()).usage()?;
                let note = serde_json::to_value(note).internal()?;
                local = kept_backend.usage()?;
                options = options.kept_in(state.runs(), note);
            }
            Err(error) => remarks.push(format!("The run is not kept for resuming: {error}")),
        }
    }
    let definition = Definition {
        settings,
        schema,
        approve: args.approve.as_deref(),
        local,
        asks_user: person.is_some(),
        offers: None,
        user,
        person,
    };
    definition.run(
        args,
        Begin::Task(options),
        task,
        args.output_dir.clone(),
        remarks,
    )
}

/// Reads what is kept of a run, and what flags say otherwise.
fn resume(args: &RunArgs, name: &str) -> Result<Run, Failure> {
    let state = State::find().usage()?;
    let kept = state.find_run(name).usage()?;
    let note: Note = serde_json::from_value(kept.note.clone())
        .with_context(|| format!("run {} was not begun by `cantle run`", kept.run))
        .usage()?;
    let output_dir = args.output_dir.clone().or_else(|| note.output_dir.clone());
    let mut options = ResumeOptions::default().budget(budget(args));
    options.output_dir.clone_from(&output_dir);
    options.fresh_sandbox = args.fresh_sandbox;
    let (user, person) = Person::at_terminal().internal()?.unzip();
    let definition = Definition {
        settings: note.settings(args).usage()?,
        schema: note.schema.clone(),
        approve: args.approve.as_deref().or(note.approve.as_deref()),
        local: state.backend().usage()?,
        asks_user: note.asks_user,
        offers: Some(note.offers),
        user,
        person,
    };
    let begin = Begin::Resume {
        store: state.runs(),
        run: kept.run,
        options,
    };
    definition.run(args, begin, kept.task, output_dir, Vec::new())
}

/// What makes the agent of a run.
struct Definition<'a> {
    settings: Settings,
    schema: Option<Value>,
    approve: Option<&'a str>,
    /// Sandboxes on this machine, where they are kept as the run is.
    local: LocalBackend,
    /// Whether the model can ask somebody; in a run that is resumed, whether it could.
    asks_user: bool,
    /// What else it is offered; in a run that is resumed, what it was.
    offers: Option<Offers>,
    user: Option<ChannelUser>,
    person: Option<Person>,
}

impl Definition<'_> {
    fn run(
        self,
        args: &RunArgs,
        mut begin: Begin,
        task: String,
        output_dir: Option<PathBuf>,
        mut remarks: Vec<String>,
    ) -> Result<Run, Failure> {
        let Settings { model, rules } = self.settings;
        remarks.extend(remark(&model));
        let result_as_json = self.schema.is_some();
        let kept = match &begin {
            Begin::Task(options) => options.store.is_some(),
            Begin::Resume { .. } => true,
        };
        let network = rules.policy.network.clone();
        let backend = rules.place.backend(self.local).usage()?;
        let Asked { client, tape } = asked(&model)?;
        if let Model::Served(model) = &model {
            money::check(args.budget_usd, model, client.model()).usage()?;
        }
        let offers = || Offers::of(&model, client.model());
        let mut offers = self.offers.unwrap_or_else(offers);
        let mut agent = Agent::builder(agent::NAME, client);
        let mut asks_user = self.asks_user;
        let mut person = self.person;
        let mut played = None;
        match tape {
            // Who was asked then is not asked again, and time passes in another way.
            Some(Tape::Playing(playing)) => {
                asks_user = playing.was_offered(USER_INPUT);
                offers = Offers::recorded(|tool| playing.was_offered(tool));
                if asks_user {
                    agent = agent.user(RecordedUser);
                }
                person = None;
                begin.without_time();
                agent = agent.hooks(playing.clone());
                played = Some(playing);
            }
            tape => {
                agent = agent.approvals(approvals(self.approve).usage()?);
                if let Some(user) = self.user {
                    agent = agent.user(user);
                }
                if let Some(Tape::Recording(recording)) = tape {
                    agent = agent.hooks(recording);
                }
            }
        }
        if asks_user {
            agent = agent.tool(user_input());
        }
        agent = offers.add_to(agent);
        if let Begin::Task(options) = &mut begin
            && let Some(note) = options.note.as_object_mut()
        {
            note.insert(
                "offers".to_owned(),
                serde_json::to_value(offers).internal()?,
            );
        }
        Ok(Run {
            agent: agent::complete(agent, backend, rules, self.schema).usage()?,
            begin,
            work: Work {
                task,
                output_dir,
                about_key: about_key(&model),
                kept,
                result_as_json,
                played,
                verbose: args.display.verbose,
            },
            display: args.display,
            network,
            remarks,
            person,
        })
    }
}

impl Run {
    /// Does the task, and returns the exit code.
    pub(crate) async fn perform(self, cancellation: CancellationToken) -> Result<u8, Failure> {
        let mut display = Display::new(self.display, self.network);
        for remark in &self.remarks {
            display.say(remark).await;
        }
        let session = match self.begin {
            Begin::Task(options) => {
                let begin = |progress| self.agent.session(options.progress(progress));
                work::open(begin, &mut display, &cancellation).await?
            }
            Begin::Resume {
                store,
                run,
                options,
            } => {
                let begin = |progress| self.agent.resume(&store, run, options.progress(progress));
                work::open(begin, &mut display, &cancellation).await?
            }
        };
        // Only now: what could not even begin takes nothing away.
        if let Some(output_dir) = &self.work.output_dir
            && let Err(failure) = record::remove(output_dir)
        {
            // The failure that matters is the first one.
            let _ = session.close().await;
            return Err(failure);
        }
        self.work
            .perform(session, &mut display, self.person, &cancellation)
            .await
    }
}

fn budget(args: &RunArgs) -> Budget {
    let mut budget = Budget::default();
    budget.cost_usd = args.budget_usd;
    budget.tokens = args.budget_tokens;
    budget.time = args.budget_time;
    budget.tool_calls = args.budget_calls;
    budget
}

/// What `--approve` says.
fn approvals(said: Option<&str>) -> anyhow::Result<Approvals> {
    match said {
        None | Some("never") => Ok(Approvals::allowing()),
        Some("ask") => Ok(Approvals::asking().rule(agent::FINISH, [], Permission::Allow)?),
        Some(path) => {
            let text = String::from_utf8(read(Path::new(path))?)
                .with_context(|| format!("{path} is no text"))?;
            toml::from_str(&text).with_context(|| format!("{path} has no rules for approvals"))
        }
    }
}

fn task(args: &RunArgs) -> anyhow::Result<String> {
    if !args.more.is_empty() {
        let words: Vec<_> = args.task.iter().chain(&args.more).collect();
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
    let task = match args.task.as_deref().unwrap_or_default() {
        "-" => std::io::read_to_string(std::io::stdin().lock())
            .context("the task can't be read from standard input")?,
        task => task.to_owned(),
    };
    if task.trim().is_empty() {
        bail!("the task is empty");
    }
    Ok(task)
}

fn asked(model: &Model) -> Result<Asked, Failure> {
    let asked = match model {
        Model::Served(model) => client::served(model),
        Model::Recording(path) => read(path).and_then(|json| {
            let recording = client::recorded(&json);
            recording.with_context(|| path.display().to_string())
        }),
    };
    asked.usage()
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

fn schema(path: &Path) -> anyhow::Result<Value> {
    let schema: Value = serde_json::from_slice(&read(path)?)
        .with_context(|| format!("{} is not JSON", path.display()))?;
    if schema.get("type").and_then(Value::as_str) != Some("object") {
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
