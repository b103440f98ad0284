use std::time::Duration;

use super::super::{EnforcedBy, Enforcement, Exit, SandboxPath};
use super::*;

fn strict() -> Policy {
    let mut policy = Policy::workspace();
    policy.subprocesses = Some(true);
    for limit in [
        "memory=1G",
        "processes=9",
        "file_size=1M",
        "disk=1G",
        "open_files=9",
        "cpu_time=9",
    ] {
        policy.limits.set(limit).expect("a limit");
    }
    policy
}

fn info(policy: &Policy, by: EnforcedBy) -> SandboxInfo {
    let directory: SandboxPath = "/workspace".parse().expect("a path");
    let mut info = SandboxInfo::new("test", "1", directory);
    info.enforcement = Enforcement::report(policy, |field| match field {
        PolicyField::Subprocesses => EnforcedBy::NotEnforced,
        _ => by,
    });
    info
}

fn output(status: ExitStatus, stdout: &str, stderr: &str) -> CommandOutput {
    let exit = Exit::new(status, Duration::ZERO);
    let [stdout, stderr] = [stdout, stderr].map(|text| Captured::complete(text.to_owned()));
    CommandOutput::new(exit, stdout, stderr)
}

fn notes(policy: &Policy, mut output: CommandOutput) -> Vec<String> {
    output.add_policy_notes(policy, &info(policy, EnforcedBy::Kernel));
    output.exit.notes
}

#[test]
fn error_messages_identify_the_policy_field() {
    let printed = [
        "touch: cannot touch '/usr/x': Read-only file system",
        "bash: /etc/x: Permission denied",
        "curl: (6) Could not resolve host: example.com",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "dd: error writing 'x': No space left on device",
        "dd: error writing 'x': File too large",
        "bash: fork: retry: Resource temporarily unavailable",
        "MemoryError",
        "OSError: [Errno 24] Too many open files: 'x'",
        "ls: cannot access 'x': No such file or directory",
    ];
    let policy = strict();
    let told = printed.map(|stderr| {
        let notes = notes(&policy, output(ExitStatus::Code(1), "", stderr));
        format!("{stderr}\n{}\n", notes.join("\n"))
    });
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn notes_follow_the_policy() {
    let failed = |words| output(ExitStatus::Code(1), "", words);
    let hosts = ["example.com", "*.example.org"].map(|host| host.parse().expect("a pattern"));
    let told = [
        notes(
            &Policy::network(hosts),
            failed("Could not resolve host: x.example.org"),
        ),
        notes(
            &Policy::read_only(),
            failed("touch: x: Read-only file system"),
        ),
    ];
    insta::assert_snapshot!(told.map(|notes| notes.join("\n")).join("\n\n"));
}

#[test]
fn unenforced_fields_get_no_note() {
    let denied = "x: Permission denied; Could not resolve host: y";
    // Not in the policy.
    assert!(
        notes(
            &Policy::unconfined(),
            output(ExitStatus::Code(1), "", denied)
        )
        .is_empty()
    );
    // In the policy, and not enforced.
    let policy = strict();
    let mut failed = output(ExitStatus::Code(1), "", denied);
    failed.add_policy_notes(&policy, &info(&policy, EnforcedBy::NotEnforced));
    assert!(failed.exit.notes.is_empty());
    // The output of a success may speak of anything.
    assert!(notes(&policy, output(ExitStatus::Code(0), denied, "")).is_empty());
    assert_eq!(
        notes(&policy, output(ExitStatus::Code(1), denied, "")).len(),
        2
    );
    // What the end of the command says already is not said again.
    let field = PolicyField::Memory;
    let status = ExitStatus::LimitReached { field, limit: 1 };
    assert!(notes(&policy, output(status, "", "MemoryError")).is_empty());
}
