//! `code_exec`: what the model is told, and what it reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::ids::RunId;
use cantle_core::metadata::Metadata;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Background, SandboxErrorKind, SandboxExt as _, SandboxPath};
use cantle_core::tool::{OpenContext, ToolErrorKind, ToolOutput, ToolProvider as _, ToolSpec};
use serde_json::json;

use crate::session::{Session, Watcher, call, provider};

fn text(output: &ToolOutput) -> String {
    output.content.text()
}

fn shown(spec: &ToolSpec) -> String {
    let parameters = serde_json::to_string_pretty(spec.parameters()).expect("JSON");
    format!("{}\n\n{}\n\n{parameters}", spec.name(), spec.description())
}

#[tokio::test]
async fn the_provider_conforms() {
    cantle_testkit::conformance::tool_provider(&provider())
        .await
        .assert();
}

#[tokio::test]
async fn descriptions_explain_how_commands_run() {
    let session = Session::open(provider()).await;
    insta::assert_snapshot!("spec", shown(session.tool().spec()));
    assert!(!session.tool().properties().concurrency_safe);
    session.close().await;

    let other = provider()
        .timeout(Duration::from_millis(1500))
        .background(Background::Kill);
    let session = Session::open(other).await;
    insta::assert_snapshot!(
        "spec_without_background",
        session.tool().spec().description()
    );
    session.close().await;
}

#[test]
fn every_pattern_is_part_of_the_identity() {
    let identity = |last: &str| {
        let mut patterns: Vec<_> = (0..1000).map(|number| format!("tool{number}")).collect();
        patterns.push(last.to_owned());
        let provider = provider().allowed_commands(patterns);
        provider.expect("valid patterns").identity()
    };
    assert_eq!(identity("ls"), identity("ls"));
    assert_ne!(identity("ls"), identity("rm"));
}

#[tokio::test]
async fn name_description_and_order_can_be_set() {
    let other = provider().parallel(true);
    let session = Session::open(other.tool_name("shell").description("Runs it.")).await;
    let tool = session.tool();
    let spec = tool.spec();
    assert_eq!((spec.name(), spec.description()), ("shell", "Runs it."));
    assert!(tool.properties().concurrency_safe);
    session.close().await;
}

#[tokio::test]
async fn a_command_with_any_exit_code_is_a_success() {
    let session = Session::open(provider()).await;
    let cases = [
        ("success", "echo out; echo err >&2"),
        ("failure", "echo no >&2; exit 3"),
        ("signal", "echo so far; kill -KILL $$"),
    ];
    for (name, cmd) in cases {
        let output = session.run(cmd).await;
        assert!(output.success, "{name}");
        assert_eq!(output.metadata, Some(Metadata::uses(1)), "{name}");
        insta::assert_snapshot!(name, text(&output));
    }
    session.close().await;
}

#[tokio::test]
async fn a_timeout_keeps_partial_output() {
    let session = Session::open(provider().timeout(Duration::from_secs(6))).await;
    let started = Instant::now();
    let output = session.run("echo so far; sleep 600; echo never").await;
    assert!(started.elapsed() < Duration::from_secs(60));
    assert!(!output.success);
    assert_eq!(output.metadata, Some(Metadata::uses(1)));
    insta::assert_snapshot!("timeout", text(&output));
    session.close().await;
}

#[tokio::test]
async fn a_cancelled_command_keeps_partial_output() {
    let session = Session::open(provider()).await;
    let watcher = Arc::new(Watcher::default());
    let mut cx = session.context();
    cx.progress = Arc::clone(&watcher) as _;
    let cancellation = cx.cancellation.clone();
    let tool = session.tool();
    let arguments = json!({"cmd": "echo begun; sleep 600"});
    let call = call(&tool, arguments, cx);
    let cancel = async {
        watcher.wait_for("begun\n").await;
        cancellation.cancel();
    };
    let started = Instant::now();
    let (output, ()) = tokio::join!(call, cancel);
    assert!(started.elapsed() < Duration::from_secs(60));
    let output = output.expect("the tool works");
    assert!(!output.success);
    insta::assert_snapshot!("cancelled", text(&output));
    session.close().await;
}

#[tokio::test]
async fn long_output_is_truncated_and_spilled() {
    let session = Session::open(provider()).await;
    let whole: String = (1..=5_000).map(|number| format!("{number}\n")).collect();
    let output = text(&session.run("seq 1 5000; echo short >&2").await);

    let note = output
        .lines()
        .find(|line| line.starts_with('…'))
        .expect("a note");
    let (head, tail) = output.split_once(note).expect("the note divides");
    let (_, head) = head.split_once("<stdout>").expect("an element");
    let (tail, rest) = tail.split_once("</stdout>").expect("an element");
    // Half of the limit each, and the ends of the lines around the note.
    let head = head.strip_suffix('\n').expect("its own line");
    let tail = tail.strip_prefix('\n').expect("its own line");
    assert_eq!((head.len(), tail.len()), (10_000, 10_000));
    assert!(whole.starts_with(head) && whole.ends_with(tail));
    assert_eq!(rest, "\n<stderr>short\n</stderr>\n</shell_results>");

    let told = "… [the output has 23893 bytes; its middle is left out here; all of it is in ";
    let path = note
        .strip_prefix(told)
        .and_then(|rest| rest.strip_suffix("] …"));
    let path = path.unwrap_or_else(|| panic!("{note}"));
    let path = SandboxPath::new(path).expect("a path");
    let kept = session.sandbox().read_bytes(&path, 100_000).await;
    assert_eq!(kept.expect("the file is there"), whole);
    session.close().await;
}

#[tokio::test]
async fn short_output_is_not_spilled() {
    let session = Session::open(provider()).await;
    let output = text(&session.run("head -c 20000 /dev/zero | tr '\\0' x").await);
    assert!(!output.contains('…'), "{output}");
    let files = session
        .sandbox()
        .list(&SandboxPath::working_directory())
        .await;
    assert_eq!(files.expect("it lists"), []);
    session.close().await;
}

/// Whether some process that runs has `mark` in its command line. Process ids are the sandbox's own.
fn runs(mark: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("it is there");
    processes.flatten().any(|process| {
        // One that is dead has none, whether or not its parent has noticed.
        std::fs::read(process.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    })
}

#[tokio::test]
async fn background_processes_are_listed() {
    let session = Session::open(provider()).await;
    let mark = format!("600.{}", std::process::id());
    // A process that was just forked still looks like its shell.
    let forked = "until grep -q ^sleep /proc/$!/cmdline; do :; done";
    let line = format!("sleep {mark} & {forked}; echo $! > pid; echo started");
    let output = text(&session.run(&line).await);
    let pid = session
        .sandbox()
        .read_bytes(&SandboxPath::new("pid").expect("a path"), 100)
        .await
        .expect("the file is there");
    let pid = String::from_utf8_lossy(&pid).trim().to_owned();
    let told = output.replace(&format!("{pid} sleep {mark}"), "[pid] sleep 600");
    insta::assert_snapshot!("background", told);
    let alive = || runs(&mark);
    assert!(alive());
    session.close().await;
    assert!(!alive());
}

#[tokio::test]
async fn without_background_processes_are_killed() {
    let session = Session::open(provider().background(Background::Kill)).await;
    let output = text(&session.run("sleep 600 & echo started").await);
    assert!(
        output.contains("started") && !output.contains("<background>"),
        "{output}"
    );
    session.close().await;
}

#[tokio::test]
async fn files_persist_but_shell_state_does_not() {
    let session = Session::open(provider()).await;
    session
        .run("mkdir sub; cd sub; X=1; echo kept > file")
        .await;
    let output = text(&session.run("echo \"[$X]\"; cat sub/file").await);
    assert!(output.contains("<stdout>[]\nkept\n</stdout>"), "{output}");
    session.close().await;
}

#[tokio::test]
async fn stdin_is_empty() {
    let session = Session::open(provider()).await;
    let output = text(&session.run("cat; echo end").await);
    assert!(output.contains("<stdout>end\n</stdout>"), "{output}");
    session.close().await;
}

#[tokio::test]
async fn sessions_are_separate() {
    let provider = provider();
    let (first, second) = tokio::join!(Session::open(provider.clone()), Session::open(provider));
    first.run("echo mine > file").await;
    let output = text(&second.run("ls").await);
    assert!(output.contains("<stdout></stdout>"), "{output}");
    first.close().await;
    second.close().await;
}

#[tokio::test]
async fn output_is_streamed_to_observers() {
    let session = Session::open(provider()).await;
    let watcher = Arc::new(Watcher::default());
    let mut cx = session.context();
    cx.progress = Arc::clone(&watcher) as _;
    let tool = session.tool();
    // The command goes on only when its first words have been seen.
    let arguments = json!({"cmd": "printf 'begun ü\\xe2\\x82'; until [ -e go ]; do sleep 0.01; done; printf '\\xac'"});
    let call = call(&tool, arguments, cx);
    let go = async {
        watcher.wait_for("begun ü").await;
        assert_eq!(watcher.seen(), "begun ü");
        let go = SandboxPath::new("go").expect("a path");
        session
            .sandbox()
            .write_bytes(&go, "".into())
            .await
            .expect("it is written");
    };
    let (output, ()) = tokio::join!(call, go);
    assert!(output.expect("the tool works").success);
    assert_eq!(watcher.seen(), "begun ü€");
    session.close().await;
}

#[tokio::test]
async fn invalid_commands_are_refused() {
    let session = Session::open(provider()).await;
    for (name, cmd) in [("empty", ""), ("empty", " \n\t"), ("nul", "echo a\0b")] {
        let output = session.run(cmd).await;
        assert!(!output.success, "{cmd:?}");
        assert_eq!(output.metadata, Some(Metadata::uses(1)), "{cmd:?}");
        insta::allow_duplicates! {
            insta::assert_snapshot!(name, text(&output));
        }
    }

    let refused = call(&session.tool(), json!({"command": "ls"}), session.context()).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "2 problems with the arguments:\n\
         - missing argument `cmd` (“The command.”) (arguments are: `cmd`)\n\
         - unknown argument `command` (arguments are: `cmd`)"
    );
    session.close().await;
}

#[tokio::test]
async fn only_allowed_commands_run_and_without_a_shell() {
    let listed = provider().allowed_commands([r"echo\b", "seq [0-9]", "no-such-program"]);
    let session = Session::open(listed.expect("patterns")).await;
    let description = session.tool().spec().description().to_owned();
    insta::assert_snapshot!("spec_with_allowed_commands", description);

    let output = session.run("echo \"$HOME\" '$(id)' ';' *").await;
    assert!(output.success);
    let stdout = "<stdout>$HOME $(id) ; *\n</stdout>";
    assert!(text(&output).contains(stdout), "{}", text(&output));
    assert!(text(&session.run("seq 3").await).contains("<stdout>1\n2\n3\n</stdout>"));

    for (name, cmd) in [
        ("not_on_the_list", "touch made"),
        ("operator", "echo a > made"),
        ("unbalanced", "echo 'a"),
    ] {
        let output = session.run(cmd).await;
        assert!(!output.success, "{cmd}");
        assert_eq!(output.metadata, Some(Metadata::uses(1)), "{cmd}");
        insta::assert_snapshot!(name, text(&output));
    }
    let missing = call(
        &session.tool(),
        json!({"cmd": "no-such-program"}),
        session.context(),
    )
    .await;
    let error = missing.expect_err("it can't be started").to_string();
    assert!(error.contains("no-such-program"), "{error}");
    let files = session
        .sandbox()
        .list(&SandboxPath::working_directory())
        .await;
    assert_eq!(files.expect("it lists"), []);
    session.close().await;
}

#[tokio::test]
async fn a_lost_sandbox_has_its_own_error_kind() {
    // Where it has a view of its own, its directory can't be removed.
    let session = Session::open(provider().policy(Policy::unconfined())).await;
    session.run("rm -rf \"$PWD\"").await;
    let error = call(&session.tool(), json!({"cmd": "ls"}), session.context())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ToolErrorKind::SandboxGone, "{error}");
    session.close().await;
}

#[tokio::test]
async fn a_failed_sandbox_fails_the_session() {
    let mut policy = Policy::unconfined();
    policy.environment.insert("A=B".into(), "x".into());
    let opened = provider()
        .policy(policy)
        .open(OpenContext::new(RunId::new()))
        .await;
    let error = opened.err().expect("it does not open");
    let kind = error.sandbox_error().map(|error| error.kind());
    assert_eq!(kind, Some(SandboxErrorKind::InvalidInput));
}
