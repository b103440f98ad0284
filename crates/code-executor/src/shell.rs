//! `run_shell`: a command in the session's sandbox that changes none of its files.

use std::iter::Peekable;
use std::str::Chars;
use std::time::Duration;

use cantle_core::ids::unique_id;
use cantle_core::policy::Network;
use cantle_core::sandbox::{
    ExitStatus, Sandbox, SandboxError, SandboxExt as _, SandboxPath, SpawnRequest,
};
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput};

use crate::output::{CallResult, time_limit};

const DESCRIPTION: &str = "Run a shell command in the sandbox of run_python. Only safe, read-only commands are allowed \
    (curl, wget, jq, wc, sort, etc.): files can be written only below $TMPDIR, which is removed afterwards.";

/// Time of a call, beyond the command's.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Programs that a command must not name. The kernel keeps the files as they are whether or not it does; the message is for
/// the model.
const BLOCKED: [&str; 32] = [
    "rm",
    "mkfs",
    "dd",
    "shutdown",
    "reboot",
    "kill",
    "chmod",
    "chown",
    "mount",
    "umount",
    "mkdir",
    "rmdir",
    "mv",
    "cp",
    "ln",
    "sudo",
    "su",
    "apt",
    "yum",
    "pip",
    "npm",
    "docker",
    "systemctl",
    "service",
    "iptables",
    "eval",
    "exec",
    "source",
    "nc",
    "ncat",
    "telnet",
    "ssh",
];

/// Words that precede a command.
const PRECEDING: [&str; 11] = [
    "env", "xargs", "nice", "nohup", "time", "timeout", "command", "then", "do", "else", "!",
];

/// The pattern of a redirection to an absolute path.
const REDIRECTION: &str = r">\s*/";

/// Absolute paths to which a redirection is harmless.
const HARMLESS: [&str; 4] = ["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"];

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Params {
    /// Shell command to execute.
    command: String,
    /// Max execution time in seconds (default 30, max 60)
    #[schemars(with = "Option<i64>")]
    timeout: Option<f64>,
}

pub(crate) fn run_shell(checks_patterns: bool) -> DynTool {
    DynTool::from_fn("run_shell", DESCRIPTION, move |params, cx| async move {
        run(params, &cx, checks_patterns).await
    })
    .with_timeout(Some(CALL_TIMEOUT))
}

async fn run(
    params: Params,
    cx: &ToolContext,
    checks_patterns: bool,
) -> Result<ToolOutput, ToolError> {
    let sandbox = &**cx.require_sandbox()?;
    if checks_patterns && let Some(pattern) = blocked(&params.command) {
        let refused = CallResult {
            stderr: format!("Blocked command pattern: {pattern}"),
            exit_code: -1,
            ..CallResult::default()
        };
        return Ok(refused.into_output());
    }
    let timeout = time_limit(params.timeout);
    let scratch = scratch(sandbox).await?;
    let directory = scratch.to_string();
    let request = SpawnRequest::argv(["/bin/sh", "-c", &params.command])
        .with_env("HOME", &*directory)
        .with_env("TMPDIR", &*directory)
        .read_only_except(scratch.clone())
        .with_timeout(Duration::from_secs(timeout))
        .with_cancellation(cx.cancellation.clone());
    let ran = sandbox.run(request).await;
    // It is removed with the sandbox at the latest.
    let _ = sandbox.remove(&scratch).await;
    let output = ran?;
    let mut result = CallResult::of(&output, timeout);
    // Also if a later command of a pipe has succeeded.
    let has_exited = matches!(output.exit.status, ExitStatus::Code(_));
    if has_exited && is_off(sandbox) && names_network(&output.stderr.text()) {
        result.add_to_stderr("The sandbox has no network: no host is allowed.");
    }
    Ok(result.into_output())
}

/// Creates a directory for what the command writes.
async fn scratch(sandbox: &dyn Sandbox) -> Result<SandboxPath, SandboxError> {
    // The name is not one that `run_python` stores files of.
    let name = format!(".shell-{}", unique_id());
    let path = sandbox.info().working_directory.join(name.as_bytes())?;
    sandbox.mkdir(&path).await?;
    Ok(path)
}

fn is_off(sandbox: &dyn Sandbox) -> bool {
    sandbox.info().network == Some(Network::Off)
}

/// Whether a message is about a host that can't be reached, as curl, wget and BusyBox's wget put it.
fn names_network(stderr: &str) -> bool {
    let parts = [
        "resolve host",
        "Failed to connect",
        "Could not connect",
        "unable to resolve",
        "Network is unreachable",
        "bad address '",
    ];
    parts.iter().any(|part| stderr.contains(part))
}

/// Returns the pattern of the first part of a command line that is not allowed: a program in the place of a command,
/// or a redirection to an absolute path. It knows quotes and separators, not the whole grammar of a shell.
fn blocked(line: &str) -> Option<String> {
    let (mut is_command, mut redirection) = (true, None);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.peek().copied() {
        match c {
            ' ' | '\t' => {
                rest.next();
            }
            '<' | '>' => {
                let mut is_output = false;
                while let Some(c) = rest.next_if(|c| matches!(c, '<' | '>' | '|' | '&')) {
                    is_output |= c == '>';
                }
                redirection = Some(is_output);
            }
            // The end of a command.
            c if is_operator(c) || c.is_whitespace() => {
                rest.next();
                (is_command, redirection) = (true, None);
            }
            _ => {
                let word = word(&mut rest);
                if let Some(is_output) = redirection.take() {
                    if is_output && word.starts_with('/') && !HARMLESS.contains(&&*word) {
                        return Some(REDIRECTION.to_owned());
                    }
                } else if is_command {
                    let program = word.rsplit('/').next().unwrap_or(&word);
                    let stem = match program {
                        // The pattern of the other word matches it, too.
                        "apt-get" => "apt",
                        _ => program.split('.').next().unwrap_or(program),
                    };
                    if BLOCKED.contains(&stem) {
                        return Some(format!(r"\b{stem}\b"));
                    }
                    // A variable precedes the command.
                    is_command = word.contains('=') || PRECEDING.contains(&program);
                }
            }
        }
    }
    None
}

fn word(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut word = String::new();
    while let Some(c) = rest.next_if(|c| !c.is_whitespace() && !is_operator(*c)) {
        match c {
            '\'' | '"' => word.extend(rest.by_ref().take_while(|next| *next != c)),
            '\\' => word.extend(rest.next()),
            '$' => {
                word.push(c);
                let mut ahead = rest.clone();
                // The name of a variable is no program; `${ rm x; }` has none.
                if ahead.next() == Some('{') && ahead.next().is_some_and(is_name_char) {
                    rest.next();
                    while let Some(c) = rest.next_if(|c| is_name_char(*c)) {
                        word.push(c);
                    }
                }
            }
            c => word.push(c),
        }
    }
    word
}

fn is_name_char(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

fn is_operator(c: char) -> bool {
    matches!(c, ';' | '&' | '|' | '(' | ')' | '{' | '}' | '`' | '<' | '>')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_blocked_by_word_and_place() {
        for (line, pattern) in [
            ("rm -rf data", r"\brm\b"),
            ("/bin/rm x", r"\brm\b"),
            ("mkfs.ext4 /dev/sda", r"\bmkfs\b"),
            ("ls; rm x", r"\brm\b"),
            ("ls && sudo ls", r"\bsudo\b"),
            ("echo $(kill 1)", r"\bkill\b"),
            ("r\\m f", r"\brm\b"),
            ("'r''m' f", r"\brm\b"),
            ("A=1 eval x", r"\beval\b"),
            ("env -i; cat x | xargs rm", r"\brm\b"),
            ("echo x > /etc/passwd", REDIRECTION),
            ("echo x >>/etc/passwd", REDIRECTION),
            ("echo x 2> /etc/passwd", REDIRECTION),
            ("echo x >| '/etc/passwd'", REDIRECTION),
            ("cat 3<> /etc/passwd", REDIRECTION),
            ("< file rm x", r"\brm\b"),
            ("sort <(kill 1)", r"\bkill\b"),
            ("{ rm x; }", r"\brm\b"),
            ("echo ${ rm x; }", r"\brm\b"),
            ("echo ${x:-$(rm x)}", r"\brm\b"),
            ("${IFS}rm x", r"\brm\b"),
            ("/usr/bin/apt-get install x", r"\bapt\b"),
        ] {
            assert_eq!(blocked(line).as_deref(), Some(pattern), "{line}");
        }
        for line in [
            "ls 2>/dev/null",
            "ls >/dev/null 2>&1",
            "curl https://example.com/docker/hub",
            "jq '.service' f",
            "echo ${service} > ${source}.txt",
            "grep -c 'pip' f",
            "echo kill-switch",
            "dd-log",
            "apt-cache search x",
            "git commit -m 'mv x'",
            "wc -l < data.csv | sort -n",
            "sort </data/service.csv | cat <<< rm",
            "echo rm > out.txt",
        ] {
            assert_eq!(blocked(line), None, "{line}");
        }
    }

    #[test]
    fn messages_about_hosts_that_are_not_reached_are_known() {
        for message in [
            "curl: (6) Could not resolve host: example.com",
            "wget: unable to resolve host address 'example.com'",
            "wget: bad address 'example.com'",
        ] {
            assert!(names_network(message), "{message}");
        }
        assert!(!names_network("cat: read error: Bad address"));
    }
}
