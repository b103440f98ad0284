use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::sandbox::{BackgroundProcess, Exit, HeadTail, SandboxPath, SpillFile};

fn output(status: ExitStatus, stdout: &str, stderr: &str) -> CommandOutput {
    CommandOutput::new(
        Exit::new(status, Duration::from_secs(1)),
        Captured::complete(stdout.to_owned()),
        Captured::complete(stderr.to_owned()),
    )
}

fn captured(text: &str, limit: usize) -> Captured {
    let mut kept = HeadTail::new(limit / 2, limit / 2);
    kept.push(text.as_bytes());
    kept.finish()
}

fn limits(channel_chars: usize) -> RenderLimits {
    RenderLimits { channel_chars }
}

fn rendered(output: &CommandOutput) -> String {
    render_command(output, RenderLimits::default())
}

#[test]
fn an_exited_command_has_code_and_output() {
    insta::assert_snapshot!(rendered(&output(ExitStatus::Code(0), "a\nb\n", "")));
    insta::assert_snapshot!(rendered(&output(
        ExitStatus::Code(2),
        "",
        "ls: no such file\n"
    )));
}

#[test]
fn a_signal_is_named() {
    insta::assert_snapshot!(rendered(&output(ExitStatus::Signal(9), "so far\n", "")));
}

#[test]
fn a_timeout_keeps_the_output_and_gives_advice() {
    let limit = Duration::from_millis(1500);
    insta::assert_snapshot!(rendered(&output(
        ExitStatus::TimedOut { limit },
        "step 1\n",
        "warning\n"
    )));
}

#[test]
fn a_cancelled_command_keeps_the_output() {
    insta::assert_snapshot!(rendered(&output(ExitStatus::Cancelled, "step 1\n", "")));
}

#[test]
fn a_reached_limit_is_named_with_advice() {
    let memory = ExitStatus::LimitReached {
        field: PolicyField::Memory,
        limit: 512 << 20,
    };
    insta::assert_snapshot!(rendered(&output(memory, "step 1\n", "")));
    let fields = [
        (PolicyField::CpuTime, 30),
        (PolicyField::Processes, 64),
        (PolicyField::FileSize, 1_000_000),
        (PolicyField::Disk, 1 << 30),
        (PolicyField::Inodes, 10_000),
        (PolicyField::Output, 64 << 10),
    ];
    let texts = fields.map(|(field, limit)| {
        let status = ExitStatus::LimitReached { field, limit };
        assert_eq!(status.shell_code(), 137);
        let advice = limit_advice(field);
        assert!(advice.contains(field.as_str()), "{advice}");
        format!("{status}\n{advice}")
    });
    insta::assert_snapshot!("limits", texts.join("\n"));
}

#[test]
fn notes_are_deduplicated_and_bounded() {
    let mut failed = output(ExitStatus::Code(1), "", "curl: (56)\n");
    let note = "network: `example.com:443` is not an allowed host; allowed are example.org";
    failed.exit.notes = vec![
        note.into(),
        String::new(),
        format!(" {note}\n"),
        note.into(),
    ];
    insta::assert_snapshot!("notes", rendered(&failed));

    let limit = Duration::from_secs(1);
    let mut many = output(ExitStatus::TimedOut { limit }, "", "");
    many.exit.notes = (0..100)
        .map(|n| format!("{n} {}", "x".repeat(1000)))
        .collect();
    let text = rendered(&many);
    assert!(
        text.contains("\n… and 92 more such notes.</advice>"),
        "{text}"
    );
    assert!(text.len() < 4_500, "{}", text.len());
}

#[test]
fn a_refusal_has_its_kind_and_advice() {
    insta::assert_snapshot!(render_refusal(
        "command_not_allowed",
        "`rm` is not an allowed command.",
        "Use one of: ls, cat."
    ));
}

#[test]
fn an_exit_round_trips_through_json() {
    let limit = Duration::from_millis(1500);
    let mut exit = Exit::new(ExitStatus::TimedOut { limit }, limit);
    exit.notes = vec!["network: …".to_owned()];
    let json = serde_json::to_value(&exit).expect("serializes");
    let expected = serde_json::json!({
        "status": {"timed_out": {"limit_s": 1.5}},
        "duration_s": 1.5,
        "stdout": {"total_bytes": 0, "spilled": null},
        "stderr": {"total_bytes": 0, "spilled": null},
        "notes": ["network: …"],
    });
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_value::<Exit>(json).expect("reads"), exit);
    let field = PolicyField::Memory;
    let status = ExitStatus::LimitReached { field, limit: 1 };
    let json = serde_json::to_value(status).expect("serializes");
    assert_eq!(
        json,
        serde_json::json!({"limit_reached": {"field": "memory", "limit": 1}})
    );
}

#[test]
fn background_processes_are_listed() {
    let mut output = output(ExitStatus::Code(0), "started\n", "");
    output.exit.background = vec![
        BackgroundProcess::new(41, "python -m http.server"),
        BackgroundProcess::new(42, "sleep 600"),
    ];
    insta::assert_snapshot!(rendered(&output));
}

#[test]
fn long_output_is_truncated_in_the_middle() {
    let numbers: String = (0..100).map(|n| format!("{n}\n")).collect();
    let path: SandboxPath = ".cantle/output/1.stdout".parse().expect("a path");
    let mut output = output(ExitStatus::Code(0), &numbers, "");
    insta::assert_snapshot!("cut_without_file", render_command(&output, limits(20)));
    output.exit.stdout = ChannelReport::new(290, Some(SpillFile::new(path.clone(), 290)));
    insta::assert_snapshot!("cut_with_file", render_command(&output, limits(20)));

    // The same where the middle was not even captured, and the file stops at its cap.
    output.stdout = captured(&numbers, 40);
    output.exit.stdout = ChannelReport::new(290, Some(SpillFile::new(path, 200)));
    insta::assert_snapshot!("cut_with_capped_file", render_command(&output, limits(20)));
}

#[test]
fn each_channel_has_the_whole_limit() {
    let text = "x".repeat(20);
    let both = rendered_with(&text, &text, 20);
    assert!(!both.contains("left out"), "{both}");
    let cut = rendered_with(&text, &"y".repeat(21), 20);
    assert!(
        cut.contains(&text) && cut.contains("the output has 21 bytes"),
        "{cut}"
    );
}

fn rendered_with(stdout: &str, stderr: &str, channel_chars: usize) -> String {
    let output = output(ExitStatus::Code(0), stdout, stderr);
    render_command(&output, limits(channel_chars))
}

#[test]
fn invalid_utf8_is_replaced() {
    let mut output = output(ExitStatus::Code(0), "", "");
    output.stdout = Captured::complete(b"a\xff\xfeb".as_slice());
    assert!(rendered(&output).contains("<stdout>a\u{fffd}\u{fffd}b</stdout>"));
}

proptest! {
    #[test]
    fn truncated_channels_stay_within_the_limit(
        text in ".{0,60}",
        capture in 0..80_usize,
        channel_chars in 0..40_usize,
    ) {
        let captured = captured(&text, capture);
        let shown = render_channel(&captured, None, limits(channel_chars));
        if captured.omitted_bytes == 0 && text.chars().count() <= channel_chars {
            prop_assert_eq!(shown, text);
        } else {
            let note = shown.lines().find(|line| line.starts_with("… [the output has "));
            let note = note.expect("a note").chars().count();
            prop_assert!(shown.chars().count() <= channel_chars + note + 2, "{}", shown);
        }
    }
}
