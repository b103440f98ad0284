//! The system prompt: general instructions, then those of the agent. It is the same for all runs of an agent.

use std::fmt::Write as _;

use crate::definition::Definition;

/// Returns the system prompt.
pub(crate) fn system_prompt(agent: &Definition, skills: Option<&str>, asks_user: bool) -> String {
    let finish: Vec<_> = agent.finish_tools.iter().map(|tool| tool.name()).collect();
    let finish = finish.join("` or `");
    let mut prompt = format!(
        "You are an agent that completes the user's task with the tools you are given.\n\
         - Look before you act: read the files and data that matter instead of guessing what they contain.\n\
         - If a call fails, read the error and change your approach. Do not repeat the same call.\n\
         - Before you finish, check the result against the task: run the code, read the files that you wrote, \
         recompute important numbers. Report what you could not check.\n\
         - Only a call of `{finish}` ends the task. Make it alone in its turn, when the task is done or can't be \
         done. The user sees nothing else of your work.\n"
    );
    prompt.push_str(if asks_user && agent.user.is_available() {
        "- If something important is unclear, ask the user."
    } else {
        "- You can't ask the user: where something is unclear, decide yourself and state the assumption when you \
         finish."
    });
    if let Some(skills) = skills {
        let _ = write!(prompt, "\n\n{skills}");
    }
    if let Some(instructions) = &agent.system_prompt {
        let _ = write!(prompt, "\n\nInstructions from the user:\n{instructions}");
    }
    prompt
}
