//! Runs in the log format of Inspect, version 2 (<https://inspect.aisi.org.uk/eval-logs.html>): an evaluation whose
//! samples are the run and its sub-agents.

use std::collections::BTreeMap;

use cantle::agent::{KeptStatus, Trajectory};
use cantle::core::content::Media;
use cantle::core::event::RunStatus;
use cantle::core::message::{AssistantMessage, Message};
use cantle::core::usage::TokenUsage;
use serde_json::{Value, json};

use super::content::{
    answer, arguments, content, data_url, iso_time, object, plain_message, reasoning,
};
use super::status_name;
use crate::text::add_costs;

const VERSION: u32 = 2;

/// Returns a run as a log.
pub(super) fn log(trajectory: &Trajectory) -> Value {
    let run = &trajectory.run;
    let mut samples = Vec::new();
    add_samples(trajectory, None, &mut samples);
    let ids: Vec<_> = samples.iter().map(|sample| sample["id"].clone()).collect();
    let (status, error) = match run.status {
        KeptStatus::Running => ("started", None),
        KeptStatus::Ended(
            RunStatus::Finished | RunStatus::AnsweredInText | RunStatus::LimitReached,
        ) => ("success", None),
        KeptStatus::Interrupted | KeptStatus::Ended(RunStatus::Cancelled) => ("cancelled", None),
        _ => ("error", run.error.as_deref().map(error)),
    };
    object(json!({
        "version": VERSION,
        "status": status,
        "eval": {
            "eval_id": run.run,
            "run_id": run.run,
            "created": iso_time(run.begun),
            "task": run.agent,
            "task_id": run.run,
            "dataset": {"samples": ids.len(), "sample_ids": ids},
            "model": run.model,
            "config": {},
            "packages": {"cantle": env!("CARGO_PKG_VERSION")},
        },
        "plan": {},
        "stats": {
            "started_at": iso_time(run.begun),
            "completed_at": iso_time(run.latest),
            "model_usage": model_usage(trajectory, true),
        },
        "error": error,
        "samples": samples,
    }))
}

fn add_samples(trajectory: &Trajectory, parent: Option<&Trajectory>, samples: &mut Vec<Value>) {
    let run = &trajectory.run;
    let messages: Vec<_> = trajectory
        .messages()
        .map(|it| message(it, trajectory))
        .collect();
    let answers = trajectory.messages().filter_map(|message| match message {
        Message::Assistant(message) => Some(message),
        _ => None,
    });
    let last = answers.last().map(|last| {
        let stop = if last.tool_calls().next().is_some() {
            "tool_calls"
        } else {
            "stop"
        };
        let choice = json!({"message": assistant(last, trajectory), "stop_reason": stop});
        json!({"model": run.model, "choices": [choice]})
    });
    let limit = (run.status == KeptStatus::Ended(RunStatus::LimitReached))
        .then(|| object(json!({"type": "custom", "limit": run.turns, "reason": run.error})));
    let is_failed = matches!(
        run.status,
        KeptStatus::Ended(
            RunStatus::ModelFailed | RunStatus::SandboxFailed | RunStatus::InternalError
        )
    );
    let time = run.latest.duration_since(run.begun).unwrap_or_default();
    samples.push(object(json!({
        "id": run.run,
        "epoch": 1,
        "input": run.task,
        "target": "",
        "messages": messages,
        "output": last,
        "metadata": object(json!({
            "agent": run.agent,
            "status": status_name(run.status),
            "parent": parent.map(|parent| parent.run.run),
            "call_id": trajectory.call_id,
        })),
        "model_usage": model_usage(trajectory, false),
        "started_at": iso_time(run.begun),
        "completed_at": iso_time(run.latest),
        "total_time": time.as_secs_f64(),
        "uuid": run.run,
        "error": run.error.as_deref().filter(|_| is_failed).map(error),
        "limit": limit,
        "turn_count": run.turns,
    })));
    for sub_agent in &trajectory.sub_agents {
        add_samples(sub_agent, Some(trajectory), samples);
    }
}

fn error(message: &str) -> Value {
    json!({"message": message, "traceback": "", "traceback_ansi": ""})
}

/// Returns the usage of the answers, by model. `with_sub_agents`: of those of sub-agents, too.
fn model_usage(trajectory: &Trajectory, with_sub_agents: bool) -> Value {
    let mut models: BTreeMap<&str, (TokenUsage, Option<f64>)> = BTreeMap::new();
    let mut trajectories = vec![trajectory];
    while let Some(trajectory) = trajectories.pop() {
        if with_sub_agents {
            trajectories.extend(&trajectory.sub_agents);
        }
        for call in trajectory.model_calls.values() {
            let (usage, cost_usd) = models.entry(&call.model).or_default();
            *usage += call.usage;
            *cost_usd = add_costs(*cost_usd, call.cost_usd);
        }
    }
    let models = models.into_iter().map(|(model, (usage, cost_usd))| {
        let usage = object(json!({
            "input_tokens": usage.input,
            "output_tokens": usage.output_total(),
            "total_tokens": usage.total(),
            "input_tokens_cache_read": usage.cache_read,
            "input_tokens_cache_write": usage.cache_write,
            "reasoning_tokens": usage.reasoning,
            "total_cost": cost_usd,
        }));
        (model.to_owned(), usage)
    });
    Value::Object(models.collect())
}

fn message(message: &Message, trajectory: &Trajectory) -> Value {
    match message {
        Message::System(message) => plain_message("system", &message.content, image),
        Message::User(message) => plain_message("user", &message.content, image),
        Message::Assistant(message) => assistant(message, trajectory),
        Message::Tool(message) => {
            let text = message.content.text();
            let error = (!message.success).then(|| {
                let kind = if message.arguments_valid {
                    "unknown"
                } else {
                    "parsing"
                };
                json!({"type": kind, "message": text})
            });
            object(json!({
                "role": "tool",
                "content": content(&message.content, image),
                "tool_call_id": message.tool_call_id,
                "function": message.name,
                "error": error,
            }))
        }
    }
}

fn assistant(message: &AssistantMessage, trajectory: &Trajectory) -> Value {
    let mut shown = content(&answer(message), image);
    if let Some(reasoning) = reasoning(message) {
        let reasoning = json!({"type": "reasoning", "reasoning": reasoning});
        let rest = match shown {
            Value::Array(parts) => parts,
            Value::String(text) if text.is_empty() => Vec::new(),
            text => vec![json!({"type": "text", "text": text})],
        };
        shown = std::iter::once(reasoning).chain(rest).collect();
    }
    let calls: Vec<_> = message
        .tool_calls()
        .map(|call| {
            let (arguments, parse_error) = match arguments(&call.arguments) {
                Ok(arguments) => (arguments, None),
                Err(text) => (
                    Default::default(),
                    Some(format!("not a JSON object: {text}")),
                ),
            };
            object(json!({
                "id": call.id,
                "function": call.name,
                "arguments": arguments,
                "parse_error": parse_error,
                "type": "function",
            }))
        })
        .collect();
    let call = trajectory.model_calls.get(&message.id);
    object(json!({
        "id": message.id,
        "role": "assistant",
        "content": shown,
        "source": "generate",
        "tool_calls": Some(calls).filter(|calls| !calls.is_empty()),
        "model": call.map(|call| &call.model),
    }))
}

fn image(media: &Media) -> Value {
    json!({"type": "image", "image": data_url(media)})
}
