//! `cantle run`: one task with a model.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use cantle::agent::{
    Agent, AgentBuilder, ResumeOptions, RunOptions, RunStore, Session, SessionOptions,
    UserDirectory,
};
use cantle::backends::local::LocalBackend;
use cantle::core::content::Content;
use cantle::core::ids::RunId;
use cantle::core::message::history;
use cantle::core::sandbox::Backend;
use cantle::core::tool::ChannelUser;
use cantle::python::PackageSet;
use cantle::tools::user_input;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::agent;
use crate::agents_md;
use crate::approvals;
use crate::args::{DisplayArgs, RunArgs};
use crate::ask::TerminalUser;
use crate::backend::BackendArg;
use crate::client::RunClient;
use crate::config::RunConfig;
use crate::delivery::{self, RunStores, StoreTarget};
use crate::display::Display;
use crate::earlier_run::EarlierRun;
use crate::exit::{Code, Failure, FailureExt as _, cancelled_early};
use crate::extra_tools::ExtraTools;
use crate::images;
use crate::in_place::InPlace;
use crate::kept_sandbox;
use crate::output_dir::{OutputDir, occupied_names_remark, output_options};
use crate::packages;
use crate::replay::RecordedUser;
use crate::result_file;
use crate::run_servers::RunServers;
use crate::saved_settings::SavedSettings;
use crate::state_dir::StateDir;
use crate::sub_agents::{self, Caller, SubAgentTable};
use crate::task::{self, Task};
use crate::task_text;
use crate::telemetry::RunTelemetry;
use crate::undelivered;
use crate::working_copy::Workdir;

const USER_INPUT: &str = "user_input";

/// A run that is ready to start.
#[derive(Debug)]
pub(crate) struct PreparedRun {
    agent: Agent,
    start: Start,
    task: Task,
    display: DisplayArgs,
    /// Messages for the user.
    remarks: Vec<String>,
    user: Option<TerminalUser>,
    /// The delivered files of the earlier run, until they are in the sandbox.
    delivered: Option<TempDir>,
    stores: RunStores,
}

/// How a run starts.
#[derive(Debug)]
enum Start {
    New(Box<SessionOptions>),
    Resume {
        store: RunStore,
        run: RunId,
        options: Box<ResumeOptions>,
    },
}

impl Start {
    fn runs_mut(&mut self) -> &mut RunOptions {
        match self {
            Self::New(options) => &mut options.runs,
            Self::Resume { options, .. } => &mut options.runs,
        }
    }
}

/// Reads everything that a run needs, so that errors are reported before it starts.
pub(crate) async fn prepare(args: &RunArgs) -> Result<PreparedRun, Failure> {
    match (&args.resume, &args.earlier) {
        (Some(name), _) => prepare_resume(args, name).await,
        (None, Some(name)) => {
            let earlier = EarlierRun::find(name, args.fresh_sandbox).usage()?;
            prepare_after(args, earlier).await
        }
        (None, None) if args.fresh_sandbox => {
            let message =
                "--fresh-sandbox goes with --resume or --continue: other runs have a new sandbox";
            Err(anyhow::anyhow!(message)).usage()
        }
        (None, None) => prepare_new(args, None).await,
    }
}

/// Prepares a run that continues an earlier one.
pub(crate) async fn prepare_after(
    args: &RunArgs,
    earlier: EarlierRun,
) -> Result<PreparedRun, Failure> {
    prepare_new(&earlier.complete(args), Some(earlier)).await
}

/// Prepares a new run, which may continue an earlier one; `args` are complete then.
async fn prepare_new(args: &RunArgs, earlier: Option<EarlierRun>) -> Result<PreparedRun, Failure> {
    let saved = earlier.as_ref().map(|it| &it.saved);
    let mut config = match saved {
        Some(saved) => saved.config(args).usage()?,
        None => RunConfig::resolve(&args.settings, args.replay.as_deref())?,
    };
    let variables = saved.map_or(&[][..], |saved| &saved.variables);
    config.policy.environment = args.variables.resolve(variables).usage()?;
    let task = task_text::read(args.task.as_deref(), &args.more).await;
    let task = images::with_images(task.usage()?, &args.image).usage()?;
    let schema = args.schema.as_deref().map(task_text::read_schema);
    let schema = schema.transpose().usage()?;
    let schema = schema.or_else(|| saved?.schema.clone());
    let (mut options, output_dir, stores) = session_options(args).usage()?;
    let sub_agents = args.sub_agents.as_deref().map(sub_agents::read);
    let sub_agents = sub_agents.transpose().usage()?;
    let sub_agents = sub_agents.or_else(|| Some(saved?.sub_agents.clone()));
    let (channel, user) = TerminalUser::find().internal()?.unzip();
    let mut remarks: Vec<_> = occupied_names_remark(&options).into_iter().collect();
    let workdir = Workdir::new(&args.workdir, &mut options).usage()?;
    if let Some(earlier) = &earlier {
        remarks.extend(earlier.set_aside().usage()?);
    }
    let mut in_place = InPlace::find(&args.workdir, args.inputs.include_secrets).usage()?;
    if let Some(in_place) = &mut in_place {
        in_place.protect_results(output_dir.as_ref()).usage()?;
        let directory = in_place.directory.display().to_string();
        options.runs.user_directory = Some(UserDirectory::InPlace(directory));
        remarks.push(in_place.remark());
    }
    let continues = earlier.as_ref().map(EarlierRun::id);
    let directory = args.workdir.workdir.as_deref().unwrap_or(Path::new("."));
    let servers = RunServers::find(args, directory, saved, &mut remarks).usage()?;
    let mut delivered = None;
    if let Some(earlier) = earlier {
        let (remark, directory) = earlier.add_to(&mut options).internal()?;
        remarks.push(remark);
        delivered = directory;
    }
    if !args.inputs.no_agents_md && args.history.is_none() && continues.is_none() {
        let trust_directory = args.settings.trusts_directory();
        let instructions = &mut config.settings.system_prompt;
        let added = agents_md::add(
            directory,
            trust_directory,
            instructions,
            &mut options.history,
        );
        remarks.extend(added.usage()?);
    }
    let mut definition = Definition {
        args,
        task,
        output_dir,
        workdir,
        in_place,
        delivered,
        remarks,
        config,
        schema,
        approve: args.approve.as_deref(),
        local: LocalBackend::new(),
        asks_user: user.is_some(),
        extra_tools: None,
        sub_agents: sub_agents.unwrap_or_default(),
        servers,
        channel,
        user,
        stores,
    };
    if !args.no_keep {
        let remark = definition.keep(&mut options, continues)?;
        definition.remarks.extend(remark);
    }
    definition.prepare(Start::New(Box::new(options))).await
}

/// Returns the options of a new session, the output directory and the stores.
fn session_options(
    args: &RunArgs,
) -> anyhow::Result<(SessionOptions, Option<OutputDir>, RunStores)> {
    let mut options = SessionOptions::default().budget(args.budget.into());
    let (inputs, stored_inputs) = delivery::split_inputs(&args.inputs.input)?;
    options.input_files = inputs;
    options.inputs.exclude.clone_from(&args.inputs.exclude);
    options.inputs.include_ignored = args.inputs.no_ignore;
    options.inputs.include_secrets = args.inputs.include_secrets;
    let started_in = std::env::current_dir().unwrap_or_default();
    let output_dir = match args.workdir.workdir.is_some() && args.output_dir.is_none() {
        // The changes are the result.
        true => None,
        false => OutputDir::find(args.output_dir.clone(), &started_in)?,
    };
    if let Some(output_dir) = &output_dir {
        output_dir.set_in(&mut options.runs);
    }
    options.runs.outputs = output_options(args, args.output_dir.as_deref());
    options.skills.clone_from(&args.skills);
    if let Some(path) = &args.history {
        let json = std::fs::read(path);
        let json = json.with_context(|| format!("failed to read {}", path.display()))?;
        let history = history::from_json(&json);
        options.history = history.with_context(|| path.display().to_string())?;
    }
    let stores = RunStores {
        args: args.store.clone(),
        target: args.output_dir.as_deref().and_then(StoreTarget::of),
        inputs: stored_inputs,
    };
    Ok((options, output_dir, stores))
}

async fn prepare_resume(args: &RunArgs, name: &str) -> Result<PreparedRun, Failure> {
    let state = StateDir::find().usage()?;
    let kept = state.find_run(name).usage()?;
    let (all, _) = state.runs().list().usage()?;
    kept_sandbox::check_resumable(&all, &kept).usage()?;
    let saved = SavedSettings::read(kept.note.clone())
        .with_context(|| format!("run {} was not started by `cantle run`", kept.run))
        .usage()?;
    let given = args.output_dir.clone().or_else(|| saved.output_dir.clone());
    let target = given.as_deref().and_then(StoreTarget::of);
    let is_on_directory = saved.working_copy.is_some() || saved.in_place.is_some();
    let output_dir = match is_on_directory && given.is_none() {
        true => None,
        false => OutputDir::find(given, &saved.started_in).usage()?,
    };
    let copy = saved.working_copy.clone();
    let workdir = Workdir::resumed(&args.workdir, copy, args.fresh_sandbox);
    let workdir = workdir.usage()?;
    let mut options = ResumeOptions::default().budget(args.budget.into());
    let saved_in = output_dir.as_ref().map(|dir| dir.of(kept.run));
    options.runs.outputs = output_options(args, saved_in.as_deref());
    if let Some(output_dir) = &output_dir {
        output_dir.set_in(&mut options.runs);
    }
    options.fresh_sandbox = args.fresh_sandbox;
    // The run's own sandbox has them even if the directory is gone.
    options.skills = saved.skills.clone().filter(|directory| directory.is_dir());
    let in_place = saved.in_place.clone();
    if let Some(in_place) = &in_place {
        in_place.check_results(output_dir.as_ref()).usage()?;
        in_place.check_unmoved().usage()?;
    }
    let copied = workdir.as_ref().map(|it| it.copy.origin.display());
    let changed = in_place.as_ref().map(|it| it.directory.display());
    options.runs.user_directory = copied
        .map(|it| UserDirectory::Copied(it.to_string()))
        .or_else(|| Some(UserDirectory::InPlace(changed?.to_string())));
    let (channel, user) = TerminalUser::find().internal()?.unzip();
    let mut config = saved.config(args).usage()?;
    config.policy.environment = args.variables.resolve(&saved.variables).usage()?;
    let servers = RunServers::of_resumed(&saved, args).usage()?;
    let definition = Definition {
        args,
        task: kept.task.into(),
        output_dir,
        workdir,
        in_place,
        delivered: None,
        remarks: Vec::new(),
        config,
        schema: saved.schema.clone(),
        approve: args.approve.as_deref().or(saved.approve.as_deref()),
        local: state.backend().usage()?,
        asks_user: saved.asks_user,
        extra_tools: Some(saved.extra_tools),
        sub_agents: saved.sub_agents,
        servers,
        channel,
        user,
        stores: RunStores {
            args: args.store.clone(),
            target,
            inputs: Vec::new(),
        },
    };
    let start = Start::Resume {
        store: state.runs(),
        run: kept.run,
        options: Box::new(options),
    };
    definition.prepare(start).await
}

/// The parts of a run, before its agent is built from them.
struct Definition<'a> {
    args: &'a RunArgs,
    task: Content,
    output_dir: Option<OutputDir>,
    workdir: Option<Workdir>,
    in_place: Option<InPlace>,
    delivered: Option<TempDir>,
    remarks: Vec<String>,
    config: RunConfig,
    schema: Option<Value>,
    approve: Option<&'a str>,
    /// The local backend, which keeps sandboxes if the run is kept.
    local: LocalBackend,
    /// Whether the model has `user_input`.
    asks_user: bool,
    /// The extra tools of a resumed run.
    extra_tools: Option<ExtraTools>,
    sub_agents: Vec<SubAgentTable>,
    servers: RunServers,
    channel: Option<ChannelUser>,
    user: Option<TerminalUser>,
    stores: RunStores,
}

impl Definition<'_> {
    /// Has a new run kept, or returns a remark that it can't be.
    fn keep(
        &mut self,
        options: &mut SessionOptions,
        continues: Option<RunId>,
    ) -> Result<Option<String>, Failure> {
        let (backend, state) = match StateDir::find().map(|state| (state.backend(), state)) {
            Ok((Err(error), state)) if !state.is_explicit() => {
                return Ok(Some(format!("This run can't be resumed: {error:#}")));
            }
            Ok(found) => found,
            Err(error) => return Ok(Some(format!("This run can't be resumed: {error}"))),
        };
        let copy = self.workdir.as_ref().map(|it| &it.copy);
        let saved = SavedSettings::new(
            &self.config,
            self.args,
            self.schema.as_ref(),
            (copy, self.in_place.as_ref()),
            self.asks_user,
            &self.sub_agents,
            (continues, self.servers.directory.as_deref()),
        );
        options.note = saved.and_then(|saved| saved.to_value()).usage()?;
        self.local = backend.usage()?;
        options.store = Some(state.runs());
        Ok(None)
    }

    /// Builds the agent.
    async fn prepare(mut self, mut start: Start) -> Result<PreparedRun, Failure> {
        if let Some(in_place) = &self.in_place {
            let backend = self.config.settings.sandbox.backend.as_ref();
            in_place.add_to(&mut self.config.policy, backend).usage()?;
        }
        let config = &self.config;
        let (settings, policy) = (&config.settings, &config.policy);
        self.remarks.extend(config.model.withheld_key_remark());
        start.runs_mut().outputs.max_file_bytes = policy.limits.disk_bytes;
        let (backend, local) = (settings.sandbox.backend.clone(), self.local.clone());
        let backend = backend.unwrap_or_default();
        let opened = (&backend, backend.open(local).usage()?);
        let prepared = packages::prepare(&settings.packages, &config.layers, opened, policy, None);
        let (packages, backend) = prepared.await?;
        let mut client = RunClient::open(config, self.args).await.usage()?;
        images::check(&self.task, client.llm.model()).usage()?;
        let with = (&backend, packages.as_ref());
        let agent = self.agent(&mut client, with, &mut start).await?;
        let is_resumable = match &start {
            Start::New(options) => options.store.is_some(),
            Start::Resume { .. } => true,
        };
        let config = &self.config;
        let (settings, model, policy) = (&config.settings, &config.model, &config.policy);
        let result_as_json = self.schema.is_some();
        let is_local = matches!(settings.sandbox.backend, None | Some(BackendArg::Local));
        let replay = client.replay;
        // Of a run on a directory, the changes are the result; a recording has no answer to another task.
        let keeps_sandbox = is_resumable && is_local && self.workdir.is_none() && replay.is_none();
        let retention = keeps_sandbox.then(|| settings.keep.retention());
        let telemetry =
            RunTelemetry::new(self.args.otlp.as_deref(), model, &policy.environment).usage()?;
        Ok(PreparedRun {
            agent: agent::complete(agent, backend, policy.clone(), settings, self.schema)
                .usage()?,
            start,
            task: Task {
                content: self.task,
                output_dir: self.output_dir,
                workdir: self.workdir,
                in_place: self.in_place,
                key_advice: model.key_advice(),
                is_resumable,
                retention,
                result_as_json,
                replay,
                telemetry,
                verbose: self.args.display.verbose,
                store: None,
            },
            display: self.args.display,
            remarks: self.remarks,
            user: self.user,
            delivered: self.delivered,
            stores: self.stores,
        })
    }

    /// Returns the agent, without the tools and settings that every agent has.
    async fn agent(
        &mut self,
        client: &mut RunClient,
        (backend, packages): (&Arc<dyn Backend>, Option<&PackageSet>),
        start: &mut Start,
    ) -> Result<AgentBuilder, Failure> {
        let config = &self.config;
        let (settings, model, policy) = (&config.settings, &config.model, &config.policy);
        let for_model = || ExtraTools::for_model(model, client.llm.model(), settings);
        let mut extra_tools = self.extra_tools.unwrap_or_else(for_model);
        let mut agent = Agent::builder(agent::NAME, Arc::clone(&client.llm));
        if let Some(replay) = &client.replay {
            // The user's answers are in the recording, and its time has no meaning now.
            self.asks_user = replay.was_offered(USER_INPUT);
            extra_tools = ExtraTools::recorded(|tool| replay.was_offered(tool));
            if self.asks_user {
                agent = agent.user(RecordedUser);
            }
            self.user = None;
            start.runs_mut().budget.time = None;
            agent = agent.hooks(replay.clone());
        } else {
            let approvals = approvals::read(self.approve).usage()?;
            approvals::check_can_ask(&approvals, self.user.is_some()).usage()?;
            let caller = Caller {
                config,
                client: &client.llm,
                limiter: &client.limiter,
                backend,
                packages,
                approvals: &approvals,
                user: self.channel.as_ref(),
                budget_usd: self.args.budget.budget_usd,
                in_place: self.in_place.is_some(),
            };
            let mut web = extra_tools.web;
            for table in &self.sub_agents {
                let named = || format!("sub-agent `{}`", table.name);
                let built = Box::pin(table.build(&caller)).await.with_context(named);
                let (sub_agent, of_sub_agent) = built.usage()?;
                (agent, web) = (agent.sub_agent(sub_agent), web.max(of_sub_agent));
            }
            self.remarks.extend(web.notice().map(str::to_owned));
            agent = agent.approvals(approvals);
            if let Some(channel) = self.channel.take() {
                agent = agent.user(channel);
            }
            if let Some(record) = client.record.take() {
                agent = agent.hooks(record);
            }
        }
        if self.asks_user {
            agent = agent.tool(user_input());
        }
        let is_replay = client.replay.is_some();
        let (servers, source) = (mem::take(&mut self.servers), &settings.packages.source);
        let tools = servers.tools(source, &config.layers, self.in_place.as_ref(), is_replay);
        if let Some(tools) = tools.usage()? {
            agent = agent.provider(tools.images(extra_tools.view_image));
        }
        let has_python = extra_tools.python || !self.sub_agents.is_empty();
        packages::check_used(packages, has_python).usage()?;
        let with_tools = extra_tools.add_to(agent, backend, policy, packages, settings, is_replay);
        agent = with_tools.usage()?;
        if let Start::New(options) = start
            && let Some(saved) = options.note.as_object_mut()
        {
            let extra_tools = serde_json::to_value(extra_tools).internal()?;
            saved.insert("offers".to_owned(), extra_tools);
        }
        Ok(agent)
    }
}

/// A run whose session is open.
#[derive(Debug)]
pub(crate) struct OpenRun {
    pub(crate) session: Session,
    pub(crate) task: Task,
    pub(crate) user: Option<TerminalUser>,
}

impl PreparedRun {
    /// Runs the task, and returns the exit code.
    pub(crate) async fn perform(self, cancellation: CancellationToken) -> Result<u8, Failure> {
        let mut display = Display::new(self.display);
        let OpenRun {
            session,
            task,
            user,
        } = self.open(&mut display, &cancellation).await?;
        task.perform(session, &mut display, user, &cancellation)
            .await
    }

    /// Opens the session.
    ///
    /// # Errors
    /// If it can't be opened, or is cancelled; nothing remains of it then.
    pub(crate) async fn open(
        mut self,
        display: &mut Display,
        cancellation: &CancellationToken,
    ) -> Result<OpenRun, Failure> {
        let opened = cancellation.run_until_cancelled(self.open_store()).await;
        let fetched = opened.ok_or_else(cancelled_early)?.usage()?;
        if let Some(workdir) = &mut self.task.workdir {
            self.remarks.extend(workdir.take(cancellation).await?);
        }
        for remark in &self.remarks {
            display.message(remark).await;
        }
        let opened = match self.start {
            Start::New(options) => {
                let open = |progress| self.agent.session(options.progress(progress));
                task::open_session(open, display, cancellation).await
            }
            Start::Resume {
                store,
                run,
                options,
            } => {
                let open = |progress| self.agent.resume(&store, run, options.progress(progress));
                let opened = task::open_session(open, display, cancellation).await;
                if let (Ok(_), Some(OutputDir::Staged(_))) = (&opened, &self.task.output_dir) {
                    // All files are saved again.
                    undelivered::remove(&StateDir::find().usage()?, run).usage()?;
                }
                opened
            }
        };
        let discard = || self.task.workdir.iter().for_each(Workdir::discard);
        let session = opened.inspect_err(|_| discard())?;
        drop((self.delivered, fetched));
        if let Err(failure) = begin(&self.task, &session).await {
            // The first failure is the one to report.
            let _ = session.close().await;
            discard();
            return Err(failure);
        }
        Ok(OpenRun {
            session,
            task: self.task,
            user: self.user,
        })
    }

    /// Opens the store to deliver to, and copies the stored files that are inputs. They are needed until the session is
    /// open.
    async fn open_store(&mut self) -> anyhow::Result<Option<TempDir>> {
        let stores = &self.stores;
        if let Some(target) = &stores.target {
            self.task.store = Some(stores.args.open(target).await?);
        }
        match &mut self.start {
            Start::New(options) if !stores.inputs.is_empty() => {
                let (directory, paths) = stores.args.fetch(&stores.inputs).await?;
                options.input_files.extend(paths);
                Ok(Some(directory))
            }
            _ => Ok(None),
        }
    }
}

/// Checks the sandbox, notes what it holds, and puts the result of an earlier run aside.
async fn begin(task: &Task, session: &Session) -> Result<(), Failure> {
    let sandbox = session.sandbox().map(AsRef::as_ref);
    let failed = |error: anyhow::Error| Failure::new(Code::Sandbox, error);
    if let Some(in_place) = &task.in_place {
        in_place.check(sandbox).await.map_err(failed)?;
    }
    if let Some(workdir) = &task.workdir {
        workdir.note_before(sandbox).await.map_err(failed)?;
    }
    // Last: a run that fails to start must not remove an earlier result.
    match &task.output_dir {
        Some(OutputDir::Given(output_dir)) => result_file::put_aside(output_dir),
        _ => Ok(()),
    }
}
