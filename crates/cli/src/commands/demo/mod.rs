//! `cantle demo`: a complete run without configuration.
//!
//! The model is a recording; the files, the commands and the report are real.

mod survey;
mod turns;

use std::sync::Arc;

use cantle::agent::{Agent, SessionOptions};
use cantle::backends::local::LocalBackend;
use cantle::clients::replay::ReplayClient;
use cantle::core::message::{AssistantBlock, AssistantMessage, ToolCall};
use cantle::core::sandbox::OutputOptions;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::survey::Survey;
use crate::agent::{self, FINISH};
use crate::args::DemoArgs;
use crate::config;
use crate::display::Display;
use crate::exit::{Failure, FailureExt as _, cancelled_early};
use crate::output_dir::OutputDir;
use crate::result_file;
use crate::settings::Settings;
use crate::settings::layers::Layers;
use crate::task::{self, Task};

const TASK: &str = "Survey the files here: what they are, what takes the space, what is there twice. \
                    Write report.md and draw chart.svg.";

const NOTICE: &str = "The model of this demo is a recording, everything else is real. With a real model: \
                      export OPENAI_API_KEY=…, then cantle run --model NAME --input PATH 'TASK' \
                      (cantle run --help has other providers).";

/// A demo that is ready to start.
#[derive(Debug)]
pub(crate) struct PreparedDemo {
    args: DemoArgs,
    survey: Survey,
    agent: Agent,
}

/// Surveys the directory, so that one that is too large is refused before anything starts.
pub(crate) fn prepare(args: DemoArgs) -> Result<PreparedDemo, Failure> {
    let survey = Survey::of(&args.path, &args.output_dir).usage()?;
    let model = ReplayClient::new("recording", recording());
    let agent = Agent::builder(agent::NAME, model);
    let layers = Layers::with_files(&args.policy).usage()?;
    // Its backend is the local one, whichever is set.
    let policy = config::policy_of(&layers, true)?;
    let backend = Arc::new(LocalBackend::new());
    let agent = agent::complete(agent, backend, policy, &Settings::default(), None).internal()?;
    Ok(PreparedDemo {
        args,
        survey,
        agent,
    })
}

impl PreparedDemo {
    /// Runs the demo, and returns the exit code.
    pub(crate) async fn perform(self, cancellation: CancellationToken) -> Result<u8, Failure> {
        let mut display = Display::new(self.args.display);
        if !self.args.display.quiet {
            display.message(NOTICE).await;
        }
        let earlier = result_file::earlier(&self.args.output_dir);
        let options = SessionOptions::default()
            .output_dir(&self.args.output_dir)
            .outputs(OutputOptions::default().with_earlier(earlier));
        result_file::put_aside(&self.args.output_dir)?;
        let open = |progress| self.agent.session(options.progress(progress));
        let session = task::open_session(open, &mut display, &cancellation).await?;
        let copied = cancellation.run_until_cancelled(self.survey.copy(&session));
        match copied.await.ok_or_else(cancelled_early).flatten() {
            Ok(summary) => display.note(&summary).await,
            Err(failure) => {
                // The first failure is the one to report.
                let _ = session.close().await;
                return Err(failure);
            }
        }
        let task = Task {
            content: TASK.into(),
            output_dir: Some(OutputDir::Given(self.args.output_dir)),
            store: None,
            workdir: None,
            in_place: None,
            key_advice: None,
            is_resumable: false,
            retention: None,
            result_as_json: false,
            replay: None,
            telemetry: None,
            verbose: false,
        };
        task.perform(session, &mut display, None, &cancellation)
            .await
    }
}

/// Returns the model's turns.
fn recording() -> Vec<AssistantMessage> {
    let finish = json!({"reason": turns::FINISH_REASON, "paths": turns::FINISH_PATHS});
    let working = turns::TURNS.iter().map(|turn| {
        let calls = turn
            .commands
            .iter()
            .map(|command| ("code_exec", json!({"cmd": command})));
        message(turn.text, calls.collect())
    });
    working
        .chain([message(turns::FINISH_TEXT, vec![(FINISH, finish)])])
        .collect()
}

fn message(text: &str, calls: Vec<(&str, Value)>) -> AssistantMessage {
    let calls = calls.into_iter().map(|(tool, arguments)| {
        AssistantBlock::ToolCall(ToolCall::new(None, tool, arguments.to_string()))
    });
    AssistantMessage::new(
        [AssistantBlock::text(text)]
            .into_iter()
            .chain(calls)
            .collect(),
    )
}
