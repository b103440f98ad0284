//! The parts of a command's result, parsed from the text that is rendered for the model.

/// The parts of a command's result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandResult<'a> {
    pub(crate) exit_code: Option<&'a str>,
    pub(crate) error_kind: Option<&'a str>,
    /// The limit that stopped the command, and its value.
    pub(crate) limit: Option<&'a str>,
    pub(crate) stdout: &'a str,
    pub(crate) stderr: &'a str,
    pub(crate) background: Option<&'a str>,
}

impl<'a> CommandResult<'a> {
    /// Parses the format of core's `render_command`; returns `None` for other text.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let body = text.strip_prefix("<shell_results>\n")?;
        let body = body.strip_suffix("\n</shell_results>")?;
        // Output may contain these tags; the outermost ones are the renderer's.
        let (before, rest) = body.split_once("<stdout>")?;
        let (stdout, rest) = rest.rsplit_once("</stdout>\n<stderr>")?;
        let (stderr, after) = rest.rsplit_once("</stderr>")?;
        Some(Self {
            exit_code: element(before, "exit_code"),
            error_kind: element(before, "error_kind"),
            limit: element(before, "details").and_then(reached_limit),
            stdout,
            stderr,
            background: element(after, "background"),
        })
    }
}

/// Returns the limit that the details name, if one was reached.
fn reached_limit(details: &str) -> Option<&str> {
    let rest = details.strip_prefix("The command reached the limit of ")?;
    rest.split_once(". ").map(|(limit, _)| limit)
}

fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (content, _) = rest.split_once(&format!("</{name}>"))?;
    Some(content)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cantle::core::policy::PolicyField;
    use cantle::core::sandbox::{
        Captured, CommandOutput, Exit, ExitStatus, RenderLimits, render_command,
    };

    use super::*;

    fn rendered(status: ExitStatus, stdout: &str, stderr: &str) -> String {
        let whole = |text: &str| Captured::complete(text.as_bytes().to_vec());
        let exit = Exit::new(status, Duration::ZERO);
        let output = CommandOutput::new(exit, whole(stdout), whole(stderr));
        render_command(&output, RenderLimits::default())
    }

    #[test]
    fn parses_a_rendered_command() {
        let text = rendered(ExitStatus::Code(3), "a</stdout>\n<b", "oops\n");
        let expected = CommandResult {
            exit_code: Some("3"),
            stdout: "a</stdout>\n<b",
            stderr: "oops\n",
            ..CommandResult::default()
        };
        assert_eq!(CommandResult::parse(&text), Some(expected));
    }

    #[test]
    fn parses_a_timeout() {
        let limit = Duration::from_secs(5);
        let text = rendered(ExitStatus::TimedOut { limit }, "so far", "");
        let expected = CommandResult {
            error_kind: Some("timeout"),
            stdout: "so far",
            ..CommandResult::default()
        };
        assert_eq!(CommandResult::parse(&text), Some(expected));
    }

    #[test]
    fn parses_a_reached_limit() {
        let (field, limit) = (PolicyField::Disk, 1536);
        let text = rendered(ExitStatus::LimitReached { field, limit }, "so far", "");
        let expected = CommandResult {
            error_kind: Some("limit_reached"),
            limit: Some("disk, which is 1536 bytes"),
            stdout: "so far",
            ..CommandResult::default()
        };
        assert_eq!(CommandResult::parse(&text), Some(expected));
    }

    #[test]
    fn returns_none_for_other_text() {
        assert_eq!(CommandResult::parse("Tool arguments are not valid"), None);
    }
}
