//! The outcome of a test run: totals, the slowest tests, and the tests that were skipped or reduced.

use std::fmt::Write as _;
use std::time::Duration;

use crate::lane::Lane;

/// Tests listed by duration.
const SLOWEST: usize = 10;

/// The outcome of all programs so far.
#[derive(Default)]
pub struct Report {
    passed: usize,
    skipped: Vec<String>,
    reduced: Vec<String>,
    /// Programs that failed, with the tests that did.
    failures: Vec<String>,
    durations: Vec<(f64, String)>,
}

impl Report {
    /// Adds the output of a program and prints it.
    pub fn add(&mut self, title: &str, text: &str, is_success: bool, elapsed: Duration) {
        let known = self.failures.len();
        eprintln!("== {title}: {:.1} s", elapsed.as_secs_f32());
        print!("{}", self.read(title, text));
        if !is_success && self.failures.len() == known {
            // It ended before the results, or has no results.
            self.failures.push(title.to_owned());
        }
    }

    pub fn is_success(&self) -> bool {
        self.failures.is_empty()
    }

    /// Prints the summary; its last line has the totals.
    pub fn print(&mut self, lane: Lane) {
        print!("{}", self.summary(lane));
    }

    fn summary(&mut self, lane: Lane) -> String {
        let mut text = String::new();
        self.durations
            .sort_by(|one, other| other.0.total_cmp(&one.0));
        let slowest = self.durations.iter().take(SLOWEST);
        let slowest = slowest.map(|(seconds, name)| format!("{seconds:7.1} s  {name}"));
        list(&mut text, "The slowest tests", slowest);
        let reduced = "REDUCED, complete with `cargo xtask test --full`";
        list(&mut text, reduced, self.reduced.iter().cloned());
        list(&mut text, "SKIPPED", self.skipped.iter().cloned());
        list(&mut text, "FAILED", self.failures.iter().cloned());
        let skipped = self.skipped.len();
        let _ = writeln!(
            text,
            "\n{} lane: {} passed, {} failed, {skipped} skipped",
            lane.name(),
            self.passed.saturating_sub(skipped),
            self.failures.len(),
        );
        text
    }

    /// Reads what libtest prints with `--show-output`. Returns it without what tests that passed have printed.
    fn read(&mut self, title: &str, text: &str) -> String {
        // The captured output of tests that passed, then the list of them.
        let (before, after) = match text.split_once("\nsuccesses:\n") {
            Some((before, after)) => (before, after),
            None => (text, ""),
        };
        let (captured, rest) = after.split_once("\nsuccesses:\n").unwrap_or(("", after));
        let rest = rest
            .split_inclusive('\n')
            .skip_while(|line| line.starts_with("    "));
        let mut shown = before.to_owned();
        if !after.is_empty() {
            shown.push('\n');
            shown.extend(rest);
        }
        for line in before.lines() {
            self.read_result(title, line);
        }
        let mut test = title.to_owned();
        for line in captured.lines() {
            let header = line
                .strip_prefix("---- ")
                .and_then(|line| line.strip_suffix(" stdout ----"));
            match header {
                Some(name) => test = format!("{title} {name}:"),
                None => self.read_note(&test, line),
            }
        }
        shown
    }

    /// Reads `test NAME ... ok <0.001s>`, or a note that was not captured.
    fn read_result(&mut self, title: &str, line: &str) {
        let Some((name, result)) = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "))
        else {
            return self.read_note(title, line);
        };
        let name = format!("{title} {name}");
        let (word, rest) = result.split_once([' ', ',']).unwrap_or((result, ""));
        match word {
            "ok" => self.passed += 1,
            "FAILED" => self.failures.push(name.clone()),
            "ignored" => {
                self.passed += 1;
                self.skipped.push(format!("{name}: ignored,{rest}"));
            }
            _ => return,
        }
        let seconds = rest
            .strip_prefix('<')
            .and_then(|rest| rest.strip_suffix("s>"));
        if let Some(seconds) = seconds.and_then(|seconds| seconds.parse().ok()) {
            self.durations.push((seconds, name));
        }
    }

    /// Reads a line with which a test reports that it ran reduced or not at all.
    fn read_note(&mut self, test: &str, line: &str) {
        if let Some(reason) = line.strip_prefix("SKIPPED") {
            let reason = reason.trim_start_matches(':').trim();
            push_new(&mut self.skipped, format!("{test} {reason}"));
        } else if let Some(rest) = line.strip_prefix("REDUCED: ") {
            push_new(&mut self.reduced, format!("{test} {rest}"));
        }
    }
}

fn list(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.map(|line| format!("    {line}\n")).collect();
    if !lines.is_empty() {
        let _ = write!(text, "\n{title}:\n{}", lines.concat());
    }
}

/// A test may print a note more than once.
fn push_new(notes: &mut Vec<String>, note: String) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\nrunning 4 tests\n\
        test a ... ok <0.250s>\n\
        test b ... ok <1.000s>\n\
        test c ... FAILED <0.001s>\n\
        test d ... ignored, needs a printer\n\
        \nsuccesses:\n\
        \n---- a stdout ----\nSKIPPED: no engine\n\n---- b stdout ----\nREDUCED: one of three versions\nnoise\n\n\
        \nsuccesses:\n    a\n    b\n\
        \nfailures:\n\n---- c stdout ----\nit broke\n\n\nfailures:\n    c\n\
        \ntest result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.25s\n\n";

    #[test]
    fn what_passing_tests_print_is_not_shown() {
        let shown = Report::default().read("pkg lib", OUTPUT);
        assert!(
            !shown.contains("noise") && !shown.contains("successes"),
            "{shown}"
        );
        assert!(shown.contains("it broke"), "{shown}");
        assert!(shown.ends_with("finished in 1.25s\n\n"), "{shown}");
    }

    #[test]
    fn skipped_and_reduced_tests_are_named() {
        let mut report = Report::default();
        report.read("pkg lib", OUTPUT);
        assert_eq!(
            report.skipped,
            [
                "pkg lib d: ignored, needs a printer",
                "pkg lib a: no engine"
            ]
        );
        assert_eq!(report.reduced, ["pkg lib b: one of three versions"]);
        assert_eq!(report.failures, ["pkg lib c"]);
        assert_eq!(report.passed, 3);
        assert_eq!(report.durations.len(), 3);
    }

    #[test]
    fn the_last_line_has_the_totals() {
        let mut report = Report::default();
        report.add("pkg lib", OUTPUT, false, Duration::ZERO);
        report.add("pkg crashed", "\nrunning 1 test\n", false, Duration::ZERO);
        let summary = report.summary(Lane::Quick);
        assert!(summary.contains("1.0 s  pkg lib b\n"), "{summary}");
        assert!(summary.contains("FAILED:\n    pkg lib c\n    pkg crashed\n"));
        assert_eq!(
            summary.lines().last(),
            Some("quick lane: 1 passed, 2 failed, 2 skipped")
        );
    }
}
