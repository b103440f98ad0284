//! Runs in the Agent Trajectory Interchange Format, version 1.8
//! (<https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md>).

use cantle::agent::Trajectory;
use cantle::core::content::{Content, Media};
use cantle::core::message::{AssistantMessage, Message, ToolMessage, UserKind};
use cantle::core::usage::TokenUsage;
use serde_json::{Value, json};

use super::content::{answer, arguments, content, data_url, iso_seconds, object, reasoning, tools};
use super::status_name;
use crate::text::add_costs;

const VERSION: &str = "ATIF-v1.8";

/// Returns a run as a document, with its sub-agents embedded.
pub(super) fn document(trajectory: &Trajectory) -> Value {
    let mut steps = Steps {
        trajectory,
        steps: Vec::new(),
        latest_answer: None,
        usage: TokenUsage::default(),
        cost_usd: None,
    };
    for (index, message) in trajectory.messages().enumerate() {
        // The task is the last message that the run began with; the instructions are its own as well.
        let is_copied = index + 1 < trajectory.given && !matches!(message, Message::System(_));
        steps.add(message, is_copied);
    }
    let run = &trajectory.run;
    let sub_agents: Vec<_> = trajectory.sub_agents.iter().map(document).collect();
    object(json!({
        "schema_version": VERSION,
        "session_id": run.run,
        "trajectory_id": run.run,
        "agent": {
            "name": "cantle",
            "version": env!("CARGO_PKG_VERSION"),
            "model_name": run.model,
            "tool_definitions": tools(&trajectory.tools),
            "extra": {"agent": run.agent},
        },
        "steps": steps.steps,
        "final_metrics": object(json!({
            "total_prompt_tokens": steps.usage.input_total(),
            "total_completion_tokens": steps.usage.output_total(),
            "total_cached_tokens": steps.usage.cache_read,
            "total_cost_usd": steps.cost_usd,
            "total_steps": steps.steps.len(),
        })),
        "extra": {
            "status": status_name(run.status),
            "error": run.error,
            "all_tokens": run.tokens,
            "all_cost_usd": run.cost_usd,
        },
        "subagent_trajectories": Some(sub_agents).filter(|them| !them.is_empty()),
    }))
}

struct Steps<'a> {
    trajectory: &'a Trajectory,
    steps: Vec<Value>,
    /// The latest answer of the model, and its step.
    latest_answer: Option<(usize, &'a AssistantMessage)>,
    usage: TokenUsage,
    cost_usd: Option<f64>,
}

impl<'a> Steps<'a> {
    fn add(&mut self, message: &'a Message, is_copied: bool) {
        let step = match message {
            Message::System(message) => step("system", &message.content),
            Message::User(message) if message.kind == UserKind::User => {
                step("user", &message.content)
            }
            Message::User(message) => step("system", &message.content),
            Message::Assistant(message) => {
                self.latest_answer = Some((self.steps.len(), message));
                self.answer(message, is_copied)
            }
            Message::Tool(message) => return self.result(message),
        };
        self.push(step, is_copied);
    }

    fn push(&mut self, mut step: Value, is_copied: bool) {
        if let Some(fields) = step.as_object_mut() {
            fields.insert("step_id".to_owned(), json!(self.steps.len() + 1));
            if is_copied {
                fields.insert("is_copied_context".to_owned(), json!(true));
            }
        }
        self.steps.push(step);
    }

    fn answer(&mut self, message: &AssistantMessage, is_copied: bool) -> Value {
        let call = self.trajectory.model_calls.get(&message.id);
        let usage = call.map_or(message.token_usage, |call| call.usage);
        let cost_usd = call.and_then(|call| call.cost_usd);
        if !is_copied {
            self.usage += usage;
            self.cost_usd = add_costs(self.cost_usd, cost_usd);
        }
        let calls: Vec<_> = message.tool_calls().map(|call| {
            let (arguments, extra) = match arguments(&call.arguments) {
                Ok(arguments) => (arguments, None),
                Err(text) => (Default::default(), Some(json!({"invalid_arguments": text}))),
            };
            object(json!({
                "tool_call_id": call.id, "function_name": call.name, "arguments": arguments, "extra": extra,
            }))
        }).collect();
        object(json!({
            "source": "agent",
            "timestamp": iso_seconds(message.request_start_time),
            "model_name": call.map(|call| call.served_by.as_ref().unwrap_or(&call.model)),
            "message": content(&answer(message), image),
            "reasoning_content": reasoning(message),
            "tool_calls": Some(calls).filter(|calls| !calls.is_empty()),
            "metrics": object(json!({
                "prompt_tokens": usage.input_total(),
                "completion_tokens": usage.output_total(),
                "cached_tokens": usage.cache_read,
                "cost_usd": cost_usd,
                "extra": object(json!({
                    "reasoning_tokens": usage.reasoning,
                    "cache_write_tokens": usage.cache_write,
                    "estimated": call.is_some_and(|call| call.estimated).then_some(true),
                })),
            })),
        }))
    }

    /// Adds a result to the step of its call, or as a step of its own if that is not the latest.
    fn result(&mut self, message: &'a ToolMessage) {
        let id = &message.tool_call_id;
        let sub_agents = self.trajectory.sub_agents.iter();
        let references: Vec<_> = sub_agents
            .filter(|sub_agent| sub_agent.call_id.as_ref() == Some(id))
            .map(|sub_agent| json!({"trajectory_id": sub_agent.run.run}))
            .collect();
        let mut result = object(json!({
            "source_call_id": id,
            "content": content(&message.content, image),
            "subagent_trajectory_ref": Some(references).filter(|them| !them.is_empty()),
            "extra": {"success": message.success, "arguments_valid": message.arguments_valid},
        }));
        let is_answered = |answer: &AssistantMessage| answer.tool_calls().any(|it| it.id == *id);
        let of_call = self.latest_answer.filter(|(_, it)| is_answered(it));
        let step = of_call.and_then(|(index, _)| self.steps.get_mut(index)?.as_object_mut());
        let Some(step) = step else {
            let observation = json!({"results": [result]});
            let step = json!({"source": "system", "message": "", "observation": observation});
            return self.push(step, false);
        };
        let observation = step.entry("observation").or_insert(json!({"results": []}));
        let results = observation.get_mut("results").and_then(Value::as_array_mut);
        results
            .into_iter()
            .for_each(|results| results.push(result.take()));
    }
}

fn step(source: &str, text: &Content) -> Value {
    json!({"source": source, "message": content(text, image)})
}

fn image(media: &Media) -> Value {
    let source = json!({"media_type": media.mime_type(), "path": data_url(media)});
    json!({"type": "image", "source": source})
}
