//! server-everything, the MCP project's test server, which `cargo xtask test` installs.

use std::path::Path;
use std::sync::Arc;

use cantle_core::policy::{Policy, ReadRoots};
use cantle_core::tool::user_channel;
use cantle_mcp::McpServer;
use cantle_testkit::lane;
use serde_json::json;

use super::{call, call_with, context, open};

#[tokio::test(flavor = "multi_thread")]
async fn server_everything_works_in_a_sandbox() {
    let Ok(program) = std::env::var("CANTLE_TEST_MCP_EVERYTHING") else {
        lane::skip("the peer mcp is not available");
        return;
    };
    let root = Path::new(&program).ancestors().nth(3).unwrap().to_owned();
    let mut policy = Policy::workspace();
    policy.read_roots = Some(ReadRoots::system().with_paths([root]));
    let set = open(McpServer::command("every", ["node", &program]).with_policy(policy)).await;

    let output = call(&*set, "every__echo", json!({"message": "hello"})).await;
    assert!(
        output.content.text().ends_with("\nEcho: hello"),
        "{output:?}"
    );
    let output = call(&*set, "every__get-sum", json!({"a": 2, "b": 3})).await;
    assert!(
        output.content.text().ends_with("The sum of 2 and 3 is 5."),
        "{output:?}"
    );
    let output = call(&*set, "every__get-tiny-image", json!({})).await;
    let images: Vec<_> = output
        .content
        .media()
        .map(|image| image.mime_type())
        .collect();
    assert_eq!(images, ["image/png"]);
    let output = call(&*set, "every__get-resource-links", json!({"count": 2})).await;
    assert_eq!(
        output.content.text().matches("\nLink to ").count(),
        2,
        "{output:?}"
    );
    let output = call(
        &*set,
        "every__get-structured-content",
        json!({"location": "Chicago"}),
    )
    .await;
    assert!(
        output.content.text().contains("\"temperature\""),
        "{output:?}"
    );
    let operation = json!({"duration": 0.1, "steps": 2});
    let output = call(&*set, "every__trigger-long-running-operation", operation).await;
    assert!(output.content.text().contains("completed"), "{output:?}");

    let (user, mut questions) = user_channel();
    let mut cx = context();
    cx.user = Arc::new(user);
    let answers = questions.answers();
    let declining = async {
        let question = questions.next().await.unwrap();
        assert!(
            question.text.starts_with("The MCP server `every` asks:"),
            "{question:?}"
        );
        answers.answer(&question.id, "no").unwrap();
    };
    let asking = call_with(&*set, "every__trigger-elicitation-request", json!({}), cx);
    let (output, ()) = tokio::join!(asking, declining);
    assert!(output.content.text().contains("declined"), "{output:?}");
    set.close().await.unwrap();
}
