//! The report of `cantle doctor`, as data and as text.

use std::fmt::Write as _;

use cantle::core::policy::PolicyField;
use cantle::core::sandbox::Enforcement;
use serde::Serialize;

use crate::display::Paint;
use crate::text::{one_line, wrap};

/// Columns before a finding.
const INDENT: usize = 19;

/// The report. Scripts read its JSON: fields may be added but not changed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) checks: Vec<Check>,
    pub(super) policies: Vec<PolicyReport>,
}

/// One check and its result.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) finding: Finding,
}

/// The result of a check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) state: CheckState,
    pub(super) found: String,
    /// Consequence for runs on this machine.
    pub(super) consequence: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckState {
    Ok,
    /// Available in part.
    Degraded,
    Missing,
}

/// Whether a policy preset can be enforced.
#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: &'static str,
    /// Whether all its fields are enforced.
    pub(super) works: bool,
    /// The enforcement of each field, if it works.
    pub(super) enforcement: Vec<Enforcement>,
    /// The fields that can't be enforced.
    pub(super) unenforced: Vec<PolicyField>,
    /// The reason why it does not work.
    pub(super) reason: Option<String>,
}

impl Finding {
    pub(super) fn new(state: CheckState, found: impl Into<String>) -> Self {
        Self {
            state,
            found: found.into(),
            consequence: None,
        }
    }

    pub(super) fn ok(found: impl Into<String>) -> Self {
        Self::new(CheckState::Ok, found)
    }

    pub(super) fn degraded(found: impl Into<String>, consequence: &str) -> Self {
        Self::new(CheckState::Degraded, found).with_consequence(consequence)
    }

    pub(super) fn missing(found: impl Into<String>, consequence: &str) -> Self {
        Self::new(CheckState::Missing, found).with_consequence(consequence)
    }

    pub(super) fn with_consequence(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = Some(consequence.into());
        self
    }
}

impl Report {
    /// Returns whether commands can run under any policy.
    pub(super) fn has_working_policy(&self) -> bool {
        self.policies.iter().any(|preset| preset.works)
    }

    /// Formats the report for people, wrapped at `columns`.
    pub(super) fn text(&self, paint: Paint, columns: Option<usize>) -> String {
        let mut text = String::new();
        for check in &self.checks {
            write_row(&mut text, check.name, &check.finding, paint, columns);
        }
        text.push_str("\nPolicies, enforced in full:\n\n");
        for preset in &self.policies {
            let mut finding = match preset.works {
                true => Finding::ok(preset.description()),
                false => Finding::new(CheckState::Missing, "can't be enforced here"),
            };
            finding.consequence.clone_from(&preset.reason);
            write_row(&mut text, preset.policy, &finding, paint, columns);
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
            "Every policy can be enforced here.".to_owned()
        } else if works.is_empty() {
            "No policy works here: commands can't run in a local sandbox.".to_owned()
        } else {
            let mut verdict = format!(
                "Enforced here: {}. Refused: {}",
                works.join(", "),
                fails.join(", ")
            );
            // This helps only if fields of the policy are the reason.
            let mut refused = self.policies.iter().filter(|preset| !preset.works);
            if refused.all(|preset| !preset.unenforced.is_empty()) {
                verdict.push_str("; --best-effort runs without what can't be enforced");
            }
            verdict + "."
        }
    }
}

impl PolicyReport {
    fn description(&self) -> &'static str {
        match self.policy {
            "workspace" => "read the system, write the working directory, no network",
            "network" => "like workspace, plus the hosts of --allow-host",
            "read_only" => "write nothing, no network",
            _ => "no isolation: commands can do everything you may do",
        }
    }
}

/// Appends a row and its consequence.
fn write_row(
    text: &mut String,
    name: &str,
    finding: &Finding,
    paint: Paint,
    columns: Option<usize>,
) {
    let lines = |text: &str| match columns {
        Some(columns) => wrap(&one_line(text), columns.saturating_sub(INDENT + 1)),
        None => vec![one_line(text)],
    };
    let mark = match finding.state {
        CheckState::Ok => paint.green("✓"),
        CheckState::Degraded => paint.yellow("!"),
        CheckState::Missing => paint.red("✗"),
    };
    let name = paint.bold(&format!("{name:14}"));
    let mut lead = format!("  {mark} {name} ");
    for line in lines(&finding.found) {
        let _ = writeln!(text, "{lead}{}", line.trim_end());
        lead = " ".repeat(INDENT);
    }
    let consequence = finding.consequence.as_deref();
    for line in consequence.map(lines).unwrap_or_default() {
        let _ = writeln!(text, "{:INDENT$}{}", "", paint.dim(line.trim_end()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(policy: &'static str, works: bool) -> PolicyReport {
        PolicyReport {
            policy,
            works,
            enforcement: Vec::new(),
            unenforced: if works {
                Vec::new()
            } else {
                vec![PolicyField::Network]
            },
            reason: (!works).then(|| "no new namespaces".to_owned()),
        }
    }

    fn report(works: [bool; 4]) -> Report {
        let names = ["workspace", "network", "read_only", "unconfined"];
        let presets = names.into_iter().zip(works);
        let check = |name, finding| Check { name, finding };
        Report {
            version: 1,
            checks: vec![
                check("Landlock", Finding::ok("version 7")),
                check(
                    "namespaces",
                    Finding::missing(
                        "no new namespaces: denied",
                        "commands see other processes; the policy network is refused",
                    ),
                ),
                check(
                    "disk",
                    Finding::new(CheckState::Degraded, "12.0 MB free in /tmp"),
                ),
            ],
            policies: presets.map(|(name, works)| preset(name, works)).collect(),
        }
    }

    #[test]
    fn text_and_json() {
        let plain = Paint { on: false };
        let report = report([true, false, true, true]);
        insta::assert_snapshot!("plain", report.text(plain, None));
        insta::assert_snapshot!("narrow", report.text(plain, Some(50)));
        insta::assert_snapshot!("json", serde_json::to_string_pretty(&report).unwrap());
    }

    #[test]
    fn verdict_names_enforced_and_refused_policies() {
        let verdicts = [[true; 4], [false, false, false, true], [false; 4]];
        let verdicts = verdicts.map(|works| report(works).verdict());
        assert_eq!(
            verdicts,
            [
                "Every policy can be enforced here.",
                "Enforced here: unconfined. Refused: workspace, network, read_only; --best-effort runs \
                 without what can't be enforced.",
                "No policy works here: commands can't run in a local sandbox.",
            ]
        );
        assert!(!report([false; 4]).has_working_policy());
    }
}
