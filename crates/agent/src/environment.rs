//! The facts that a model needs about its surroundings, for the head of the first user message.
//!
//! The sandbox is asked once per session, by one command. Its answer is untrusted like all its output:
//! it is bounded, and can't end the block that it stands in.

mod tree;

use std::fmt::Write as _;
use std::time::Duration;

use cantle_core::escape::join_up_to;
use cantle_core::policy::Network;
use cantle_core::sandbox::{Sandbox, SandboxExt as _, SpawnRequest};

/// Deadline of the command. It takes some 30 ms; a run begins without the facts if it takes longer.
const DEADLINE: Duration = Duration::from_secs(2);

/// Maximum characters of one fact.
const MAX_FACT_CHARS: usize = 300;

/// Maximum number of allowed hosts that are named.
const MAX_HOSTS: usize = 20;

/// Writes one line per fact, `name value`. Python takes longest, so the shell continues meanwhile. The Python code asks
/// the finders of `sys.meta_path`, because importing `importlib.util` would take half as long again.
const SCRIPT: &str = r#"
python3 -I -c '
import sys
known = "numpy pandas scipy matplotlib sklearn PIL requests bs4 lxml openpyxl docx pptx pypdf yaml"
found = (name for name in known.split() if any(it.find_spec(name, None) for it in sys.meta_path))
print("python", ".".join(map(str, sys.version_info[:3])))
print("packages", *found)
' 2>/dev/null &
. /etc/os-release 2>/dev/null
echo "system ${PRETTY_NAME:-$(uname -s)}, $(uname -m)"
echo "user $(id -un 2>/dev/null || id -u)"
found=
for program in git node npm uv pip gcc cargo go java curl jq ffmpeg pandoc pdftotext libreoffice; do
    command -v $program >/dev/null 2>&1 && found="$found $program"
done
echo "programs$found"
wait
"#;

/// The facts about a sandbox.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SandboxFacts {
    /// Operating system and processor architecture.
    system: Option<String>,
    user: Option<String>,
    programs: Vec<String>,
    /// The version of Python 3.
    python: Option<String>,
    /// Its common third-party packages.
    packages: Vec<String>,
}

impl SandboxFacts {
    /// Asks a sandbox. What it doesn't answer is unknown.
    pub(crate) async fn gather(sandbox: &dyn Sandbox) -> Self {
        let request = SpawnRequest::shell(SCRIPT).with_timeout(DEADLINE);
        let output = tokio::time::timeout(2 * DEADLINE, sandbox.run(request)).await;
        match output {
            Ok(Ok(output)) => Self::parse(&output.stdout.text()),
            _ => Self::default(),
        }
    }

    fn parse(output: &str) -> Self {
        let mut facts = Self::default();
        for line in output.lines() {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            let value: String = value
                .chars()
                .filter(is_plain)
                .take(MAX_FACT_CHARS)
                .collect();
            let words = || value.split_whitespace().map(str::to_owned).collect();
            let text = || Some(value.trim().to_owned()).filter(|text| !text.is_empty());
            match name {
                "system" => facts.system = text(),
                "user" => facts.user = text(),
                "programs" => facts.programs = words(),
                "python" => facts.python = text(),
                "packages" => facts.packages = words(),
                _ => {}
            }
        }
        facts
    }

    fn installed(&self) -> Option<String> {
        let python = self.python.as_ref().map(|version| match &*self.packages {
            [] => format!("python3 {version} (no packages such as numpy or pandas)"),
            packages => format!("python3 {version} (with {})", packages.join(", ")),
        });
        let programs = self.programs.iter().cloned();
        let installed: Vec<_> = python.into_iter().chain(programs).collect();
        (!installed.is_empty()).then(|| installed.join(", "))
    }
}

/// A directory of the user that runs work on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserDirectory {
    /// The working directory is a copy of it; the caller takes the changes from the sandbox
    /// ([`Session::sandbox`](crate::Session::sandbox)).
    Copied(String),
    /// Commands change it at its path, which the policy has to allow.
    InPlace(String),
}

/// Whether a character can't end the block or a line of it.
fn is_plain(c: &char) -> bool {
    !c.is_control() && !matches!(c, '<' | '>')
}

/// Returns the lines of the block. `inputs` are the files in the working directory when the run begins, and
/// `user_directory` is the one that it works on.
pub(crate) fn lines(
    turns: u32,
    sandbox: Option<(&dyn Sandbox, &SandboxFacts)>,
    inputs: &[String],
    user_directory: Option<&UserDirectory>,
) -> String {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d");
    let mut lines = format!(
        "Date: {date}\nTurns: {turns} (a turn is one answer of yours with its tool calls)\n"
    );
    if let Some((sandbox, facts)) = sandbox {
        let info = sandbox.info();
        let directory = &info.working_directory;
        let system = facts.system.iter().cloned();
        let user = facts.user.iter().map(|user| format!("user {user}"));
        let directory = format!("working directory {directory}");
        let parts: Vec<_> = system.chain(user).chain([directory]).collect();
        let _ = writeln!(lines, "Sandbox: {}", parts.join(", "));
        if let Some(installed) = facts.installed() {
            let _ = writeln!(lines, "Installed: {installed}");
        }
        let _ = writeln!(lines, "Network: {}", network(info.enforced_network()));
    }
    let plain = |directory: &str| -> String {
        let chars = directory.chars().filter(is_plain);
        chars.take(MAX_FACT_CHARS).collect()
    };
    let title = match user_directory {
        Some(UserDirectory::InPlace(directory)) => {
            let directory = plain(directory);
            let _ = writeln!(
                lines,
                "Result: your changes to the user's directory `{directory}`. Commands see it at that path, outside of the \
                 working directory, and change it at once: change to it first (`cd`). Version control and the settings \
                 of editors, shells and agents are read-only there. Change only what the task needs, and name files to \
                 finish only if the user asked for them besides."
            );
            "Input files"
        }
        Some(UserDirectory::Copied(directory)) => {
            let directory = plain(directory);
            let _ = writeln!(
                lines,
                "Result: your changes to the working directory, which is a copy of the user's directory `{directory}`. \
                 The user sees them as a diff and decides. Change only what the task needs, and name files to finish \
                 only if the user asked for them besides."
            );
            "Files"
        }
        None => "Input files",
    };
    if !inputs.is_empty() {
        let count = inputs.len();
        let _ = writeln!(lines, "{title} ({count}), in the working directory:");
        tree::write(inputs, &mut lines);
    }
    lines
}

fn network(network: Option<&Network>) -> String {
    match network {
        None => "not restricted".to_owned(),
        Some(Network::Hosts(hosts)) if !hosts.is_empty() => {
            let hosts = join_up_to(MAX_HOSTS, hosts);
            format!(
                "only HTTP and HTTPS to {hosts}, through the proxy in HTTP_PROXY and HTTPS_PROXY"
            )
        }
        Some(_) => "off; downloads and package installation fail, use what is installed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_facts_stay_in_their_lines() {
        let output = format!(
            "system Debian\u{1b}[2J, x86\n</environment>\nuser </environment>x\nprograms git {}\npython 3.11.2\n\
             packages\npackages numpy\nunknown fact\n",
            "a".repeat(1000)
        );
        let facts = SandboxFacts::parse(&output);
        let expected = SandboxFacts {
            system: Some("Debian[2J, x86".to_owned()),
            user: Some("/environmentx".to_owned()),
            programs: vec!["git".to_owned(), "a".repeat(296)],
            python: Some("3.11.2".to_owned()),
            packages: vec!["numpy".to_owned()],
        };
        assert_eq!(facts, expected);
        assert_eq!(SandboxFacts::parse(""), SandboxFacts::default());
    }

    #[test]
    fn the_script_answers_every_question() {
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-c", SCRIPT]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut names: Vec<_> = text
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["packages", "programs", "python", "system", "user"],
            "{text}"
        );
    }

    #[test]
    fn the_network_is_described_by_its_policy() {
        let hosts = |count: usize| {
            let hosts = (0..count).map(|number| format!("h{number}.example.org").parse());
            Network::Hosts(hosts.collect::<Result<_, _>>().unwrap())
        };
        assert!(network(Some(&Network::Off)).starts_with("off;"));
        assert!(network(Some(&hosts(0))).starts_with("off;"));
        assert!(network(Some(&hosts(2))).contains("to h0.example.org, h1.example.org, through"));
        assert!(network(Some(&hosts(25))).contains("h19.example.org and 5 more,"));
        assert_eq!(network(None), "not restricted");
    }
}
