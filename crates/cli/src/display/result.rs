//! What a person sees of a tool's result: of a command, its output and how it ended, taken out of
//! the text that was rendered for the model.

/// The parts of a command's result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CommandResult<'a> {
    pub(super) exit_code: Option<&'a str>,
    pub(super) error_kind: Option<&'a str>,
    pub(super) stdout: &'a str,
    pub(super) stderr: &'a str,
    pub(super) background: Option<&'a str>,
}

impl<'a> CommandResult<'a> {
    /// Reads the shape that `render_command` of core writes; `None` where the text has another one.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let body = text.strip_prefix("<shell_results>\n")?;
        let body = body.strip_suffix("\n</shell_results>")?;
        // What a command wrote may hold anything, these marks too: the outermost are ours.
        let (before, rest) = body.split_once("<stdout>")?;
        let (stdout, rest) = rest.rsplit_once("</stdout>\n<stderr>")?;
        let (stderr, after) = rest.rsplit_once("</stderr>")?;
        Some(Self {
            exit_code: element(before, "exit_code"),
            error_kind: element(before, "error_kind"),
            stdout,
            stderr,
            background: element(after, "background"),
        })
    }
}

fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once(&format!("</{name}>"))?;
    Some(content)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cantle::core::sandbox::{
        Captured, CommandOutput, Exit, ExitStatus, RenderLimits, render_command,
    };

    use super::*;

    fn rendered(status: ExitStatus, stdout: &str, stderr: &str) -> String {
        let whole = |text: &str| Captured::whole(text.as_bytes().to_vec());
        let exit = Exit::new(status, Duration::ZERO);
        let output = CommandOutput::new(exit, whole(stdout), whole(stderr));
        render_command(&output, RenderLimits::default())
    }

    #[test]
    fn a_rendered_command_is_read_back() {
        let text = rendered(ExitStatus::Code(3), "a</stdout>\n<b", "oops\n");
        let expected = CommandResult {
            exit_code: Some("3"),
            stdout: "a</stdout>\n<b",
            stderr: "oops\n",
            ..CommandResult::default()
        };
        assert_eq!(CommandResult::read(&text), Some(expected));
    }

    #[test]
    fn a_command_that_was_stopped_says_so() {
        let limit = Duration::from_secs(5);
        let text = rendered(ExitStatus::TimedOut { limit }, "so far", "");
        let expected = CommandResult {
            error_kind: Some("timeout"),
            stdout: "so far",
            ..CommandResult::default()
        };
        assert_eq!(CommandResult::read(&text), Some(expected));
    }

    #[test]
    fn other_text_is_left_alone() {
        assert_eq!(CommandResult::read("Tool arguments are not valid"), None);
    }
}
