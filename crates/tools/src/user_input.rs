//! The tool `user_input`.

use cantle_core::metadata::Metadata;
use cantle_core::tool::{DynTool, Question, ToolContext, ToolError, ToolErrorKind, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum number of choices of a question.
const MAX_CHOICES: usize = 100;

/// Lets the model ask the user: `user_input {question, question_type, choices, default}`.
///
/// The question goes to the agent's [`AskUser`](cantle_core::tool::AskUser). The call waits for the answer
/// without a timeout, or until it is cancelled.
pub fn user_input() -> DynTool {
    let description = "Asks the user a question and returns the answer. Ask only what you can't find out or decide \
                       yourself: the user may take long to answer.";
    DynTool::from_fn("user_input", description, ask)
        .with_polls(true)
        // A question without an answer is asked again when the run is resumed.
        .with_repeatable(true)
        .with_timeout(None)
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The question, in words that need no other context.
    question: String,
    /// The kind of answer: `text` is any text, `choice` one of `choices`, `confirm` yes or no.
    #[serde(default)]
    question_type: QuestionType,
    /// The answers to choose from, for `choice`.
    choices: Option<Vec<String>>,
    /// The answer where the user gives none. One of the choices for `choice`, `yes` or `no` for
    /// `confirm`.
    default: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum QuestionType {
    #[default]
    Text,
    Choice,
    Confirm,
}

async fn ask(params: Params, cx: ToolContext) -> Result<ToolOutput, ToolError> {
    let question = match question(params, &cx) {
        Ok(question) => question,
        Err(advice) => return Ok(used(ToolOutput::failure(advice))),
    };
    let asking = cx.user.ask(question);
    match cx.cancellation.run_until_cancelled(asking).await {
        Some(Ok(answer)) => Ok(used(ToolOutput::text(answer.to_string()))),
        // The model continues without an answer.
        Some(Err(error)) if error.kind() == ToolErrorKind::Failed => {
            Ok(used(ToolOutput::failure(error.to_string())))
        }
        Some(Err(error)) => Err(error),
        None => Err(ToolError::cancelled()),
    }
}

fn used(output: ToolOutput) -> ToolOutput {
    output.with_metadata(Metadata::uses(1))
}

/// Builds the question, or returns advice for the model.
fn question(params: Params, cx: &ToolContext) -> Result<Question, String> {
    let text = params.question.trim();
    if text.is_empty() {
        return Err("`question` is empty. Say what you want to know.".to_owned());
    }
    let id = cx.question_id();
    let choices = params.choices.unwrap_or_default();
    let question = match params.question_type {
        QuestionType::Choice => {
            if choices.is_empty() || choices.iter().any(|choice| choice.trim().is_empty()) {
                return Err(
                    "A `choice` needs `choices`: a list of the answers, none of them empty. For any \
                     text as answer, use the `question_type` `text`."
                        .to_owned(),
                );
            }
            if choices.len() > MAX_CHOICES {
                return Err(format!(
                    "There are {} choices; the maximum is {MAX_CHOICES}.",
                    choices.len()
                ));
            }
            Question::choice(id, text, choices)
        }
        _ if !choices.is_empty() => {
            return Err("`choices` are for the `question_type` `choice` only.".to_owned());
        }
        QuestionType::Text => Question::new(id, text),
        QuestionType::Confirm => Question::confirm(id, text),
    };
    // Models write an empty text for no default.
    let Some(default) = params.default.filter(|default| !default.trim().is_empty()) else {
        return Ok(question);
    };
    match question.parse_answer(&default) {
        Ok(_) => Ok(question.with_default(default)),
        Err(error) => Err(format!("`default` is not a valid answer: {error}.")),
    }
}
