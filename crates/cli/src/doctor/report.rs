//! What was found, as data and as text.

use std::fmt::Write as _;

use cantle::core::sandbox::Enforcement;
use serde::Serialize;

use crate::display::{Paint, one_line, wrap};

/// Columns before what was found.
const INDENT: usize = 19;

/// Everything that was found. Scripts read its JSON: fields are added, not changed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) checks: Vec<Check>,
    pub(super) policies: Vec<Preset>,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) found: String,
    /// What follows from it, where something does.
    pub(super) consequence: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// There, and all of it.
    Ok,
    /// There, but less than it could be.
    Degraded,
    /// Not there.
    Missing,
}

/// A preset under which commands could be run, and how strictly.
#[derive(Debug, Serialize)]
pub(super) struct Preset {
    pub(super) policy: &'static str,
    /// All that it asks for is enforced.
    pub(super) works: bool,
    /// What enforces each field, where it works.
    pub(super) enforcement: Vec<Enforcement>,
    /// The fields that nothing enforces, where it doesn't.
    pub(super) unenforced: Vec<&'static str>,
    /// Why it doesn't work.
    pub(super) reason: Option<String>,
}

impl Check {
    pub(super) fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            consequence: None,
        }
    }

    pub(super) fn so(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = Some(consequence.into());
        self
    }
}

impl Report {
    /// Whether there is a policy under which commands can be run.
    pub(super) fn works(&self) -> bool {
        self.policies.iter().any(|preset| preset.works)
    }

    /// As a person reads it; broken into lines of so many columns, where that is said.
    pub(super) fn text(&self, paint: Paint, columns: Option<usize>) -> String {
        let mut text = String::new();
        for check in &self.checks {
            let row = (check.name, check.state, &*check.found);
            write(&mut text, row, check.consequence.as_deref(), paint, columns);
        }
        text.push_str("\nPolicies, with all they ask for:\n\n");
        for preset in &self.policies {
            let (state, found) = if preset.works {
                (State::Ok, preset.means().to_owned())
            } else {
                (State::Missing, "does not work here".to_owned())
            };
            let row = (preset.policy, state, &*found);
            write(&mut text, row, preset.reason.as_deref(), paint, columns);
        }
        let _ = writeln!(text, "\n{}", self.verdict());
        text
    }

    fn verdict(&self) -> String {
        let names = |works| -> Vec<&str> {
            let presets = self.policies.iter().filter(|preset| preset.works == works);
            presets.map(|preset| preset.policy).collect()
        };
        let (works, fails) = (names(true), names(false));
        if fails.is_empty() {
            "Every policy works here, strictly.".to_owned()
        } else if works.is_empty() {
            "No policy works here: commands can't be run in a local sandbox.".to_owned()
        } else {
            let mut verdict = format!(
                "Works here strictly: {}. Refused: {}",
                works.join(", "),
                fails.join(", ")
            );
            // Where it is for fields of the policy, and not for something that nothing works without.
            let mut refused = self.policies.iter().filter(|preset| !preset.works);
            if refused.all(|preset| !preset.unenforced.is_empty()) {
                verdict.push_str("; with --best-effort it runs without what can't be enforced");
            }
            verdict + "."
        }
    }
}

impl Preset {
    fn means(&self) -> &'static str {
        match self.policy {
            "workspace" => "the system to read, the working directory to write, no network",
            "network" => "the same, and the hosts of --allow-host",
            "read_only" => "nothing to write, no network",
            _ => "no boundary: commands can do what you can",
        }
    }
}

/// Adds a row, and below it what follows.
fn write(
    text: &mut String,
    (name, state, found): (&str, State, &str),
    consequence: Option<&str>,
    paint: Paint,
    columns: Option<usize>,
) {
    let lines = |text: &str| match columns {
        Some(columns) => wrap(&one_line(text), columns.saturating_sub(INDENT + 1)),
        None => vec![one_line(text)],
    };
    let mark = match state {
        State::Ok => paint.green("✓"),
        State::Degraded => paint.yellow("!"),
        State::Missing => paint.red("✗"),
    };
    let name = paint.bold(&format!("{name:14}"));
    let mut lead = format!("  {mark} {name} ");
    for line in lines(found) {
        let _ = writeln!(text, "{lead}{}", line.trim_end());
        lead = " ".repeat(INDENT);
    }
    for line in consequence.map(lines).unwrap_or_default() {
        let _ = writeln!(text, "{:INDENT$}{}", "", paint.dim(line.trim_end()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(policy: &'static str, works: bool) -> Preset {
        Preset {
            policy,
            works,
            enforcement: Vec::new(),
            unenforced: if works { Vec::new() } else { vec!["network"] },
            reason: (!works).then(|| "no new namespaces".to_owned()),
        }
    }

    fn report(works: [bool; 4]) -> Report {
        let names = ["workspace", "network", "read_only", "unconfined"];
        let presets = names.into_iter().zip(works);
        Report {
            version: 1,
            checks: vec![
                Check::new("Landlock", State::Ok, "version 7"),
                Check::new("namespaces", State::Missing, "no new namespaces: denied")
                    .so("commands see other processes; the policy network is refused"),
                Check::new("disk", State::Degraded, "12.0 MB free in /tmp"),
            ],
            policies: presets.map(|(name, works)| preset(name, works)).collect(),
        }
    }

    #[test]
    fn each_line_says_what_was_found_and_what_follows() {
        let plain = Paint { on: false };
        let report = report([true, false, true, true]);
        insta::assert_snapshot!("plain", report.text(plain, None));
        insta::assert_snapshot!("narrow", report.text(plain, Some(50)));
        insta::assert_snapshot!("json", serde_json::to_string_pretty(&report).unwrap());
    }

    #[test]
    fn the_verdict_is_about_all_policies() {
        let verdicts = [[true; 4], [false, false, false, true], [false; 4]];
        let verdicts = verdicts.map(|works| report(works).verdict());
        assert_eq!(
            verdicts,
            [
                "Every policy works here, strictly.",
                "Works here strictly: unconfined. Refused: workspace, network, read_only; with --best-effort it \
                 runs without what can't be enforced.",
                "No policy works here: commands can't be run in a local sandbox.",
            ]
        );
        assert!(!report([false; 4]).works());
    }
}
