//! Finish tools: what they take, and when they refuse.

use cantle_core::ids::RunId;
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::SandboxExt as _;
use cantle_core::tool::{DynTool, ToolContext, ToolErrorKind, ToolOutput};
use cantle_tools::{Finish, FinishWith, finish_schema};
use serde_json::json;

use crate::session::{Session, call, provider};

fn without_sandbox() -> ToolContext {
    ToolContext::new(RunId::new(), "call-1")
}

fn used(output: ToolOutput) -> ToolOutput {
    output.with_metadata(Metadata::uses(1))
}

#[test]
fn spec_of_finish() {
    let tool = DynTool::new(Finish);
    let spec = tool.spec();
    let parameters = serde_json::to_string_pretty(spec.parameters()).expect("JSON");
    insta::assert_snapshot!(
        "finish_spec",
        format!("{}\n\n{}\n\n{parameters}", spec.name(), spec.description())
    );
    assert!(!tool.properties().concurrency_safe);
}

#[tokio::test]
async fn existing_files_are_accepted() {
    let session = Session::open(provider()).await;
    session
        .run(
            "mkdir -p out/deep .cantle; echo x > out/report.md; ln -s out/report.md link; echo y > out/deep/b; \
             echo z > .cantle/own; echo b > '[b].md'",
        )
        .await;
    let root = session.sandbox().info().working_directory.to_string();
    let paths = json!([
        "out/report.md",
        "./link",
        format!("{root}/out/report.md"),
        "out",
        "./out/",
        ".",
        "**/*.md",
        "[b].md",
        format!("{root}/out/deep"),
    ]);
    let arguments = json!({"reason": "Done.", "paths": paths});
    let output = call(&Finish.into(), arguments, session.context()).await;
    assert_eq!(output.expect("it works"), used(ToolOutput::text("Done.")));
    let files = async |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let matched = session.sandbox().matching_files(&names).await;
        matched.expect("it lists").files
    };
    let below_out = ["out/deep/b", "out/report.md"];
    assert_eq!(files(&["out"]).await, below_out);
    assert_eq!(files(&["**/*.md"]).await, ["[b].md", "out/report.md"]);
    assert_eq!(files(&["out/*"]).await, ["out/report.md"]);
    assert_eq!(files(&["[b].md"]).await, ["[b].md"]);
    assert_eq!(
        files(&["."]).await,
        ["[b].md", "out/deep/b", "out/report.md"]
    );
    assert_eq!(files(&[".cantle"]).await, [""; 0]);
    session.close().await;
}

#[tokio::test]
async fn files_of_reserved_names_in_a_directory_are_named() {
    let session = Session::open(provider()).await;
    session
        .run("mkdir -p site/.git; echo x > site/.git/config; echo y > site/a")
        .await;
    let arguments = json!({"reason": "Done.", "paths": ["site"]});
    let output = call(&Finish.into(), arguments, session.context()).await;
    let output = output.expect("it works");
    assert!(!output.success);
    let text = output.content.text();
    assert!(
        text.contains("`site/.git/config`") && !text.contains("site/a"),
        "{text}"
    );
    session.close().await;
}

#[tokio::test]
async fn files_with_names_that_are_not_utf8_are_named() {
    let session = Session::open(provider()).await;
    session
        .run("mkdir odd; echo x > odd/a; echo y > \"odd/b$(printf '\\377')\"")
        .await;
    for path in ["odd", "odd/*"] {
        let arguments = json!({"reason": "Done.", "paths": [path]});
        let output = call(&Finish.into(), arguments, session.context()).await;
        let output = output.expect("it works");
        let text = output.content.text();
        let refused = "`odd/b\u{fffd}` (its name is not UTF-8: rename it).";
        assert!(!output.success && text.contains(refused), "{text}");
    }
    let matched = session.sandbox().matching_files(&["odd".to_owned()]).await;
    assert_eq!(matched.expect("it lists").files, ["odd/a"]);
    session.close().await;
}

#[tokio::test]
async fn missing_files_are_named() {
    let session = Session::open(provider()).await;
    session
        .run("mkdir empty; echo x > there; mkfifo pipe; ln -s /etc/passwd escape")
        .await;
    let paths = [
        "missing", "there", "empty", "pipe", "escape", "../x", "a\0b", "*.md", "[",
    ];
    let arguments = json!({"reason": "Done.", "paths": paths});
    let output = call(&Finish.into(), arguments, session.context())
        .await
        .expect("it works");
    assert!(!output.success);
    assert_eq!(output.metadata, Some(Metadata::uses(1)));
    insta::assert_snapshot!(
        "finish_refused",
        output.content.text().replace('\0', "[NUL]")
    );
    session.close().await;
}

#[tokio::test]
async fn paths_are_not_checked_without_a_sandbox() {
    for arguments in [
        json!({"reason": "Done."}),
        json!({"reason": "Done.", "paths": ["missing"]}),
    ] {
        let output = call(&Finish.into(), arguments, without_sandbox()).await;
        assert_eq!(output.expect("it works"), used(ToolOutput::text("Done.")));
    }
}

#[tokio::test]
async fn arguments_are_validated() {
    let error = call(&Finish.into(), json!({"paths": ["a"]}), without_sandbox())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ToolErrorKind::InvalidArguments);
    assert_eq!(
        error.to_string(),
        "missing argument `reason` (“Your final answer to the user, complete on its own: results, caveats, or why it could not be done.”) (arguments are: `paths`, `reason`)"
    );
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[expect(dead_code, reason = "only its shape matters")]
struct Answer {
    /// The number.
    number: u8,
    certain: Option<bool>,
}

#[tokio::test]
async fn results_can_have_a_rust_type() {
    let tool = DynTool::from(FinishWith::<Answer>::new("answer", "Gives the answer."));
    assert_eq!(tool.name(), "answer");
    assert_eq!(tool.spec().description(), "Gives the answer.");
    let output = call(&tool, json!({"number": 7}), without_sandbox()).await;
    assert_eq!(
        output.expect("it works"),
        used(ToolOutput::text("Finished."))
    );
    for (arguments, message) in [
        (
            json!({"number": "seven"}),
            "Argument `number`: expected integer (“The number.”), got the string \"seven\"",
        ),
        (
            json!({"number": 700}),
            "Argument `number`: invalid value: integer `700`, expected an integer from 0 to 255",
        ),
        (
            json!({"number": 7, "sure": true}),
            "unknown argument `sure` (arguments are: `certain`, `number`)",
        ),
    ] {
        let error = call(&tool, arguments, without_sandbox()).await.unwrap_err();
        assert_eq!(error.kind(), ToolErrorKind::InvalidArguments);
        assert_eq!(error.to_string(), message);
    }
}

#[tokio::test]
async fn results_can_have_a_json_schema() {
    let schema = json!({
        "type": "object",
        "properties": {"grade": {"enum": ["good", "bad"]}},
        "required": ["grade"],
    });
    let tool = finish_schema("grade", "Gives the grade.", schema.clone());
    assert_eq!(tool.name(), "grade");
    assert_eq!(tool.spec().parameters(), &schema);
    let output = call(&tool, json!({"grade": "good"}), without_sandbox()).await;
    assert_eq!(
        output.expect("it works"),
        used(ToolOutput::text("Finished."))
    );
    let error = call(&tool, json!({"grade": "fair"}), without_sandbox())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Argument `grade`: expected one of \"good\", \"bad\", got the string \"fair\""
    );
}

#[tokio::test]
async fn paths_of_a_json_schema_are_checked() {
    let schema = json!({"type": "object", "properties": {"paths": {}}});
    let tool = finish_schema("report", "Delivers the report.", schema);
    let session = Session::open(provider()).await;
    session.run("echo x > there").await;
    let output = call(
        &tool,
        json!({"paths": ["there", "gone"]}),
        session.context(),
    )
    .await;
    let output = output.expect("it works");
    assert_eq!(
        (output.success, output.metadata.clone()),
        (false, Some(Metadata::uses(1)))
    );
    let text = output.content.text();
    let missing = "can't be delivered: `gone` (there is no such file in the working directory).";
    assert!(text.contains(missing), "{text}");
    // What names no files is not checked.
    for paths in [json!(["there"]), json!([1]), json!("gone"), json!(null)] {
        let output = call(&tool, json!({"paths": paths}), session.context()).await;
        let finished = used(ToolOutput::text("Finished."));
        assert_eq!(output.expect("it works"), finished);
    }
    session.close().await;
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[expect(dead_code, reason = "only its shape matters")]
struct Report {
    paths: Vec<String>,
}

#[tokio::test]
async fn paths_of_a_rust_type_are_checked() {
    let tool = DynTool::from(FinishWith::<Report>::new("report", "Delivers the report."));
    let session = Session::open(provider()).await;
    session.run("echo x > there").await;
    let output = call(&tool, json!({"paths": ["gone"]}), session.context()).await;
    let output = output.expect("it works");
    assert!(!output.success);
    let text = output.content.text();
    assert!(text.contains("can't be delivered: `gone` ("), "{text}");
    let output = call(&tool, json!({"paths": ["there"]}), session.context()).await;
    let finished = used(ToolOutput::text("Finished."));
    assert_eq!(output.expect("it works"), finished);
    session.close().await;
}
