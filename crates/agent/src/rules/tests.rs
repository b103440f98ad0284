//! Tests of the rules, one by one and all together; helpers that they share.

mod budgets;
mod ends;
mod images;
mod overflow;
mod properties;
mod repeats;
mod resume;
mod summaries;
mod text_answers;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use cantle_core::content::{Content, Media, Part};
use cantle_core::event::EventKind;
use cantle_core::ledger::{CallPurpose, Ledger, ModelCall};
use cantle_core::llm::{LlmError, LlmErrorKind, StopReason};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCall, ToolMessage, UserKind,
};
use cantle_core::usage::TokenUsage;
use indexmap::IndexMap;
use serde_json::{Value, json};

use super::*;
use crate::error::RunErrorKind;
use crate::resource::Resource;

/// The message after an answer in text.
const TEXT_REMINDER: &str = "You replied without a tool call. If you are done, call `finish` or `give_up` with your answer; \
                        otherwise call a tool.";

fn rules(max_turns: u32) -> Rules {
    Rules {
        max_turns,
        turn_warning_threshold: 0,
        text_only_tool_responses: true,
        block_successive_assistant_messages: true,
        recover_from_context_overflow: true,
        continue_cut_answers: false,
        text_answers: TextAnswers::default(),
        max_repeats: default_max_repeats(),
        summarize_at: None,
        context_window: None,
        max_output_tokens: None,
        images: ImageBounds {
            count: 4,
            bytes: 1024 * 1024,
        },
    }
}

fn tools() -> IndexMap<String, ToolTraits> {
    let traits = |finishes, concurrency_safe| ToolTraits {
        finishes,
        concurrency_safe,
        ..ToolTraits::default()
    };
    IndexMap::from([
        ("work".to_owned(), traits(false, false)),
        ("look".to_owned(), traits(false, true)),
        ("finish".to_owned(), traits(true, false)),
        ("give_up".to_owned(), traits(true, false)),
    ])
}

fn start(rules: Rules) -> Machine {
    let mut machine = Machine::new(
        rules,
        Arc::new(tools()),
        vec![Message::user("the task").into()],
    );
    assert_eq!(actions(&mut machine), ["ask 1"]);
    machine
}

/// Takes all actions, in short form.
fn actions(machine: &mut Machine) -> Vec<String> {
    let mut actions = Vec::new();
    while let Some(action) = machine.next() {
        actions.push(match action {
            Action::AskModel { turn } => format!("ask {turn}"),
            Action::StartCall { index, call, .. } => format!("start {index} {}", call.name),
            Action::Summarize { attempt } => format!("summarize {attempt:?}"),
            Action::Emit(event) => match *event {
                EventKind::HistorySummarized { replaced, .. } => format!("summarized {replaced}"),
                EventKind::ToolFinished {
                    call_id,
                    arguments: None,
                    ..
                } => format!("ended {call_id}"),
                EventKind::ToolFinished { call_id, .. } => format!("refused {call_id}"),
                EventKind::UserMessage { text } => format!("say {text}"),
                EventKind::TurnDropped { turn } => format!("dropped {turn}"),
                other => panic!("{other:?}"),
            },
            Action::AcceptText { finish } => format!("accept {}", finish.params),
            Action::End(Ok(None)) => "answered in text".to_owned(),
            Action::End(Ok(Some(finish))) => format!("finished {} {}", finish.tool, finish.params),
            Action::End(Err(error)) => format!("ended {:?}: {error}", error.kind()),
        });
    }
    actions
}

fn model_call(tokens: u64) -> ModelCall {
    let usage = TokenUsage {
        input: tokens,
        ..TokenUsage::default()
    };
    ModelCall::new("model", CallPurpose::Turn, usage, Duration::from_secs(1))
}

fn failed_call() -> ModelCall {
    let mut call = model_call(1);
    call.purpose = CallPurpose::Failed;
    call
}

fn answered(text: &str, calls: &[(&str, &str)], stop: StopReason) -> Fact {
    let mut blocks = Vec::new();
    if !text.is_empty() {
        blocks.push(AssistantBlock::text(text));
    }
    blocks.extend(calls.iter().map(|(name, id)| {
        AssistantBlock::ToolCall(ToolCall::new(Some((*id).to_owned()), *name, "{}"))
    }));
    let message = Box::new(AssistantMessage::new(blocks));
    Fact::ModelAnswered {
        message,
        stop,
        call: model_call(1),
    }
}

fn answer_with(machine: &mut Machine, text: &str, calls: &[(&str, &str)], stop: StopReason) {
    machine.apply(answered(text, calls, stop));
}

fn answer(machine: &mut Machine, text: &str, calls: &[(&str, &str)]) {
    answer_with(machine, text, calls, StopReason::EndTurn);
}

fn outcome(text: &str, success: bool) -> CallOutcome {
    let mut outcome = CallOutcome::failure(text, Duration::from_secs(2), 12.0);
    outcome.success = success;
    outcome.arguments = json!({"reason": text});
    outcome
}

fn finish_call(machine: &mut Machine, index: usize, text: &str) {
    machine.apply(Fact::CallStarted { index, time: 10.0 });
    machine.apply(Fact::CallFinished {
        index,
        outcome: Box::new(outcome(text, true)),
    });
}

fn overflowed() -> Fact {
    Fact::ModelFailed(ModelFailure {
        error: LlmError::new(LlmErrorKind::ContextOverflow, "too long").into(),
        call: failed_call(),
    })
}

fn overflow(machine: &mut Machine) {
    machine.apply(overflowed());
}

/// The conversation after the task, in short form.
fn story(machine: &Machine) -> Vec<String> {
    let line = |message: &SharedMessage| match &**message {
        Message::System(message) => format!("system {}", message.content.text()),
        Message::User(message) => format!("user {}", message.content.text()),
        Message::Assistant(message) => format!("assistant {}", message.text()),
        Message::Tool(message) => format!("{} {}", message.tool_call_id, message.content.text()),
    };
    machine.messages().iter().skip(1).map(line).collect()
}
