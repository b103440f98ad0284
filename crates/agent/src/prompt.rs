//! The system prompt: general instructions, then those of the agent.

use std::fmt::Write as _;

use crate::definition::Definition;

/// Maximum number of input files listed by name.
const MAX_LISTED_FILES: usize = 200;

/// Returns the system prompt.
pub(crate) fn system_prompt(
    agent: &Definition,
    input_files: &[String],
    skills: Option<&str>,
    asks_user: bool,
) -> String {
    let mut prompt = format!(
        "You are an agent that works on one task with the tools you are given. You have {} turns; \
         a turn is one answer of yours with its tool calls. When the task is done, or can't be \
         done, call a finish tool in a turn of its own, with everything it asks for.",
        agent.rules.max_turns
    );
    prompt.push_str(if asks_user && agent.user.is_available() {
        " Where something is unclear, you can ask the user."
    } else {
        " You can't ask the user anything during the task."
    });
    if !input_files.is_empty() {
        prompt.push_str("\n\nThe task comes with these files, in your working directory:");
        for file in input_files.iter().take(MAX_LISTED_FILES) {
            let _ = write!(prompt, "\n- {file}");
        }
        if let Some(more) = input_files
            .len()
            .checked_sub(MAX_LISTED_FILES)
            .filter(|n| *n > 0)
        {
            let _ = write!(
                prompt,
                "\n- and {more} more; list the directory to see them"
            );
        }
    }
    if let Some(skills) = skills {
        let _ = write!(prompt, "\n\n{skills}");
    }
    if let Some(instructions) = &agent.system_prompt {
        let _ = write!(prompt, "\n\nInstructions from the user:\n{instructions}");
    }
    prompt
}
