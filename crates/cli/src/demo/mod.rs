//! `cantle demo`: a whole run with nothing configured. The model is a recording; the files, the
//! commands and the report made from them are real.

mod copy;
mod turns;

use std::sync::Arc;

use cantle::agent::{Agent, SessionOptions};
use cantle::backends::local::LocalBackend;
use cantle::clients::replay::ReplayClient;
use cantle::core::message::{AssistantBlock, AssistantMessage, ToolCall};
use cantle::core::policy::Network;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::copy::Survey;
use crate::agent::{self, FINISH};
use crate::args::DemoArgs;
use crate::display::Display;
use crate::exit::{Failure, FailureExt as _};
use crate::record;
use crate::settings::{self, Rules};
use crate::work::{self, Work};

const TASK: &str = "Survey the files here: what they are, what takes the space, what is there twice. \
                    Write report.md and draw chart.svg.";

const NOTICE: &str = "The model of this demo is a recording, everything else is real. With a real model: \
                      export OPENAI_API_KEY=…, then cantle run --model NAME --input PATH 'TASK' \
                      (cantle run --help has other providers).";

/// A demo that only needs to be begun.
#[derive(Debug)]
pub(crate) struct Demo {
    args: DemoArgs,
    survey: Survey,
    agent: Agent,
    network: Option<Network>,
}

/// Looks at the directory, so that what is too large is told before anything is begun.
pub(crate) fn prepare(args: DemoArgs) -> Result<Demo, Failure> {
    record::remove(&args.output_dir)?;
    let survey = Survey::of(&args.path, &args.output_dir).usage()?;
    let model = ReplayClient::new("recording", recording());
    let agent = Agent::builder(agent::NAME, model);
    let policy = settings::resolve_policy(&args.policy)?;
    let network = policy.network.clone();
    let rules = Rules {
        policy,
        ..Rules::default()
    };
    let agent = agent::complete(agent, Arc::new(LocalBackend::new()), rules, None).internal()?;
    Ok(Demo {
        args,
        survey,
        agent,
        network,
    })
}

impl Demo {
    /// Makes the report, and returns the exit code.
    pub(crate) async fn perform(self, cancellation: CancellationToken) -> Result<u8, Failure> {
        let mut display = Display::new(self.args.display, self.network);
        if !self.args.display.quiet {
            display.say(NOTICE).await;
        }
        let options = SessionOptions::default().output_dir(&self.args.output_dir);
        let begin = |progress| self.agent.session(options.progress(progress));
        let session = work::open(begin, &mut display, &cancellation).await?;
        let copied = tokio::select! {
            copied = self.survey.copy(&session) => copied,
            () = cancellation.cancelled() => Err(work::cancelled_early()),
        };
        match copied {
            Ok(summary) => display.remark(&summary).await,
            Err(failure) => {
                // The failure that matters is the first one.
                let _ = session.close().await;
                return Err(failure);
            }
        }
        let work = Work {
            task: TASK.to_owned(),
            output_dir: Some(self.args.output_dir),
            about_key: None,
            kept: false,
            result_as_json: false,
            played: None,
            verbose: false,
        };
        work.perform(session, &mut display, None, &cancellation)
            .await
    }
}

/// The model's part.
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
