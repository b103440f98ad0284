//! Running a command to its end, on top of what a sandbox offers.

use std::time::Duration;

use cantle_core::sandbox::{
    Captured, Channel, CommandOutput, Exit, ExitStatus, OutputChunk, Sandbox as _,
    SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest,
};

use crate::memory_sandbox::{MemorySandbox, chunk};

fn written() -> Vec<OutputChunk> {
    vec![
        chunk(Channel::Stdout, "one "),
        chunk(Channel::Stderr, "careful"),
        chunk(Channel::Stdout, "two"),
    ]
}

fn exit() -> Exit {
    Exit::new(ExitStatus::Code(3), Duration::from_secs(1))
}

fn sandbox() -> MemorySandbox {
    MemorySandbox::new().with_command(written().into_iter().map(Ok), exit())
}

fn request() -> SpawnRequest {
    SpawnRequest::shell("anything")
}

#[tokio::test]
async fn exec_streams_the_output() {
    let mut seen = Vec::new();
    let ended = sandbox()
        .exec(request(), &mut |chunk| seen.push(chunk))
        .await;
    assert_eq!(ended.expect("it ran"), exit());
    assert_eq!(seen, written());
}

#[tokio::test]
async fn observers_see_the_output_that_is_captured() {
    let expected = CommandOutput::new(
        exit(),
        Captured::complete("one two"),
        Captured::complete("careful"),
    );
    assert_eq!(sandbox().run(request()).await.expect("it ran"), expected);

    let mut seen = Vec::new();
    let output = sandbox()
        .run_with_observer(request(), &mut |chunk| seen.push(chunk.clone()))
        .await;
    assert_eq!(output.expect("it ran"), expected);
    assert_eq!(seen, written());
}

#[tokio::test]
async fn captured_output_is_bounded() {
    let pieces = (0..100_000).map(|_| chunk(Channel::Stdout, "0123456789"));
    let pieces = pieces.chain([chunk(Channel::Stderr, "careful")]).map(Ok);
    let sandbox = MemorySandbox::new().with_command(pieces, exit());
    let output = sandbox.run(request()).await.expect("it ran");
    let (head, tail) = (&output.stdout.head, &output.stdout.tail);
    assert_eq!((head.len(), tail.len()), (40_000, 40_000));
    assert_eq!(output.stdout.omitted_bytes, 920_000);
    // Each channel has its own limit.
    assert_eq!(output.stderr, Captured::complete("careful"));
    assert_eq!(sandbox.killed(), 0);
}

#[tokio::test]
async fn a_command_whose_output_breaks_is_killed() {
    let broken = written()
        .into_iter()
        .map(Ok)
        .chain([Err(SandboxErrorKind::Gone)]);
    let sandbox = MemorySandbox::new().with_command(broken, exit());
    let error = sandbox.run(request()).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
    assert_eq!(sandbox.killed(), 1);
}

/// Commands of the same user can stop them.
#[tokio::test]
async fn listing_commands_have_a_time_limit() {
    // The output is of neither known form, so both commands are tried.
    let sandbox = sandbox();
    let walked = sandbox.walk(&SandboxPath::working_directory(), 10).await;
    assert_eq!(walked.unwrap_err().kind(), SandboxErrorKind::Unsupported);
    let timeouts = sandbox.timeouts();
    assert_eq!(timeouts.len(), 2);
    assert!(timeouts.iter().all(Option::is_some), "{timeouts:?}");
}

#[tokio::test]
async fn a_listing_that_was_ended_is_not_taken_for_whole() {
    let base = SandboxPath::working_directory();
    let listing = |status| {
        let output = [
            chunk(Channel::Stdout, "f 1 1.0 1.0 5 a\0"),
            chunk(Channel::Stderr, "find: './c': Permission denied\n"),
        ];
        let exit = Exit::new(status, Duration::ZERO);
        MemorySandbox::new().with_command(output.into_iter().map(Ok), exit)
    };
    let walk = listing(ExitStatus::Code(1)).walk(&base, 10).await;
    let walk = walk.expect("only one directory can't be read");
    assert_eq!((walk.entries.len(), walk.refused.len()), (1, 1));

    let limit = Duration::from_secs(300);
    for status in [ExitStatus::Signal(9), ExitStatus::TimedOut { limit }] {
        let walked = listing(status).walk(&base, 10).await;
        assert_eq!(walked.unwrap_err().kind(), SandboxErrorKind::Unsupported);
    }
}
