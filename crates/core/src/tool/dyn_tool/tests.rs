use std::error::Error as _;
use std::sync::mpsc;
use std::time::Duration;

use futures_util::FutureExt as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::ids::RunId;
use crate::metadata::Metadata;
use crate::sandbox::SandboxError;
use crate::tool::ToolErrorKind;

#[derive(Deserialize, JsonSchema)]
struct Repeat {
    text: String,
    #[serde(default)]
    times: u8,
}

struct Echo;

impl Tool for Echo {
    type Params = Repeat;

    fn name(&self) -> &str {
        "echo"
    }

    fn description(&self) -> &str {
        "Says it again."
    }

    fn properties(&self) -> ToolProperties {
        ToolProperties {
            concurrency_safe: true,
            ..ToolProperties::default()
        }
    }

    async fn call(&self, params: Repeat, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let text = params.text.repeat(params.times.into());
        Ok(ToolOutput::text(format!("{}: {text}", cx.call_id)).with_metadata(Metadata::uses(1)))
    }
}

fn cx() -> ToolContext {
    ToolContext::new(RunId::new(), "call-1")
}

fn bare<F>(call: F) -> DynTool
where
    F: Fn(Value) -> Result<ToolOutput, ToolError> + Send + Sync + 'static,
{
    let spec = ToolSpec::new(
        "bare",
        "A tool.",
        json!({"properties": {"a": {"type": "string"}}}),
    );
    DynTool::from_schema(spec, move |arguments, _| {
        let result = call(arguments);
        async move { result }
    })
}

fn blocking<F>(call: F) -> DynTool
where
    F: Fn(Repeat) -> Result<ToolOutput, ToolError> + Send + Sync + 'static,
{
    DynTool::blocking("blocking", "A tool.", move |params, _| call(params))
}

#[tokio::test]
async fn typed_tools_keep_descriptions_and_get_parameters() {
    let tool = DynTool::from(Echo);
    assert_eq!(tool.name(), "echo");
    assert_eq!(tool.spec().description(), "Says it again.");
    assert!(tool.properties().concurrency_safe);
    assert_eq!(format!("{tool:?}"), "DynTool(\"echo\")");

    let arguments = tool
        .parse(r#"{"text": "ab", "times": 2}"#)
        .expect("valid")
        .arguments;
    assert_eq!(
        tool.call(arguments, cx()).await.expect("it works"),
        ToolOutput::text("call-1: abab").with_metadata(Metadata::uses(1))
    );
}

#[tokio::test]
async fn unparsed_arguments_are_checked() {
    for tool in [DynTool::from(Echo), blocking(|_| Ok("done".into()))] {
        let error = tool.call(json!({"text": 1}), cx()).await.unwrap_err();
        assert_eq!(error.kind(), ToolErrorKind::InvalidArguments);
        assert_eq!(
            error.to_string(),
            "Argument `text`: invalid type: integer `1`, expected a string"
        );
    }
}

#[tokio::test]
async fn schema_tools_get_the_arguments_as_json() {
    let tool = bare(|arguments| Ok(ToolOutput::text(arguments.to_string())));
    assert_eq!(tool.spec().parameters()["type"], "object");
    assert!(tool.spec().has_parameters());
    assert!(!tool.properties().concurrency_safe);
    assert!(
        tool.clone()
            .with_concurrency_safe(true)
            .properties()
            .concurrency_safe
    );

    let arguments = tool.parse(r#"{"a": "x"}"#).expect("valid").arguments;
    assert_eq!(
        tool.call(arguments, cx()).await.expect("it works"),
        ToolOutput::text(r#"{"a":"x"}"#)
    );
    assert_eq!(
        tool.parse(r#"{"b": 1}"#).unwrap_err().to_string(),
        "unknown argument `b` (arguments are: `a`)"
    );
}

#[tokio::test]
async fn tool_errors_are_returned_unchanged() {
    let failing = || Err(SandboxError::gone("the sandbox is gone").into());
    for tool in [bare(move |_| failing()), blocking(move |_| failing())] {
        let error = tool.call(json!({"text": ""}), cx()).await.unwrap_err();
        assert_eq!(error.kind(), ToolErrorKind::SandboxGone);
        assert!(
            error
                .source()
                .is_some_and(|source| source.is::<SandboxError>())
        );
    }
}

/// On a runtime with one thread, a call that blocked it would wait for itself for ever.
#[tokio::test(flavor = "current_thread")]
async fn blocking_tools_do_not_block_the_runtime() {
    let (send, receive) = mpsc::sync_channel(0);
    let receive = std::sync::Mutex::new(receive);
    let tool = blocking(move |_| {
        let received = receive
            .lock()
            .expect("no panic")
            .recv_timeout(Duration::from_secs(30));
        Ok(ToolOutput::text(received.unwrap_or("never came")))
    });
    let waiting = tokio::spawn(async move { tool.call(json!({"text": ""}), cx()).await });
    tokio::task::yield_now().await;
    let sent = tokio::task::spawn_blocking(move || send.send("came")).await;
    sent.expect("no panic").expect("the tool waits");
    assert_eq!(
        waiting.await.expect("no panic").expect("it works"),
        ToolOutput::text("came")
    );
}

#[tokio::test]
async fn a_panic_of_a_blocking_tool_is_an_error_with_its_message() {
    let text = blocking(|_| panic!("out of luck"));
    let formatted = blocking(|params| panic!("out of {}", params.text));
    let other = blocking(|_| std::panic::panic_any(7));
    let cases = [
        (text, "out of luck"),
        (formatted, "out of luck"),
        (other, "unknown"),
    ];
    for (tool, message) in cases {
        let error = tool.call(json!({"text": "luck"}), cx()).await.unwrap_err();
        assert_eq!(error.kind(), ToolErrorKind::Panicked);
        assert_eq!(
            error.to_string(),
            format!("The tool failed with an internal error: {message}")
        );
    }
}

#[tokio::test]
async fn abandoned_blocking_calls_do_not_block_the_caller() {
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let (ended, end) = mpsc::channel();
    let tool = blocking(move |_| {
        let _ = released.lock().expect("no panic").recv();
        let _ = ended.send(());
        Ok("too late".into())
    });
    let call = tool.call(json!({"text": ""}), cx());
    assert!(call.now_or_never().is_none());
    drop(release);
    let end = tokio::task::spawn_blocking(move || end.recv_timeout(Duration::from_secs(30))).await;
    assert_eq!(end.expect("no panic"), Ok(()));
}
