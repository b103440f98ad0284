//! Refusals of commands: texts for the model with the reason and advice.

use cantle_core::sandbox::render_refusal;

/// Returns the refusal of text that is not a valid command.
pub(super) fn invalid(details: &str, advice: &str) -> String {
    render_refusal("invalid_argument", details, advice)
}

/// Returns the refusal of a command that is not allowed.
pub(super) fn not_allowed(details: &str, advice: &str) -> String {
    render_refusal("command_not_allowed", details, advice)
}

/// Refuses text that cannot be executed even by a shell.
pub(super) fn check_text(cmd: &str) -> Result<(), String> {
    if cmd.trim().is_empty() {
        let advice = "Give a command, for example `ls -la`.";
        return Err(invalid("The command is empty.", advice));
    }
    if cmd.contains('\0') {
        let advice = "Leave it out, or write `printf '\\0'` for one.";
        return Err(invalid("The command contains a NUL character.", advice));
    }
    Ok(())
}
