//! Servers that misbehave.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::tool::user_channel;
use serde_json::json;

use super::{call, call_with, context, open, refused, script};

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_handshake_ends_at_its_limit() {
    let server = script("echo thinking >&2; cat").with_connect_timeout(Duration::from_secs(4));
    let error = refused(server).await;
    assert!(
        error.starts_with("the MCP server `s` did not answer within 4 s (`connect_timeout_s`)."),
        "{error}"
    );
    assert!(error.ends_with("thinking"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_list_ends_at_its_limit() {
    let server = script("greet; next tools/list; echo counting >&2; cat");
    let error = refused(server.with_connect_timeout(Duration::from_secs(4))).await;
    assert!(
        error.starts_with(
            "the MCP server `s` did not list its tools within 4 s (`connect_timeout_s`)."
        ),
        "{error}"
    );
    assert!(error.ends_with("counting"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_call_ends_at_its_limit_and_its_outcome_is_unknown() {
    let server = script("greet; offer; sleep 1000").with_call_timeout(Duration::from_millis(300));
    let set = open(server).await;
    let output = call(&*set, "s__work", json!({})).await;
    let text = output.content.text();
    assert!(!output.success);
    assert!(
        text.starts_with("The outcome of this call is unknown: "),
        "{text}"
    );
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_question_leaves_the_next_call_its_limit() {
    // One of two questions at the same time is declined, so the other one is open.
    let server = script(
        r#"
        greet; offer; next tools/call
        for question in 71 72; do
            printf '{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":"Well?","requestedSchema":{"type":"object","properties":{}}}}\n' "$question"
        done
        while read -r line; do case $line in *decline*) break ;; esac; done
        reply '{"content":[{"type":"text","text":"never mind"}]}'
        sleep 1000
    "#,
    );
    let set = open(server.with_call_timeout(Duration::from_secs(4))).await;
    let (user, _questions) = user_channel();
    let mut cx = context();
    cx.user = Arc::new(user);
    let output = call_with(&*set, "s__work", json!({}), cx).await;
    let text = output.content.text();
    assert!(text.ends_with("\nnever mind"), "{text}");
    let calling = call(&*set, "s__work", json!({}));
    let output = tokio::time::timeout(Duration::from_secs(60), calling).await;
    let text = output.expect("the call ends").content.text();
    assert!(text.contains("did not answer within 4 s"), "{text}");
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_line_ends_the_connection() {
    let set = open(script("greet; offer; next tools/call; yes | tr -d '\\n'")).await;
    let output = call(&*set, "s__work", json!({})).await;
    let text = output.content.text();
    assert!(
        text.contains("It sent a message that is larger than 16 MiB."),
        "{text}"
    );
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_invalid_text_and_forged_answers_are_skipped() {
    let noise = r#"
        printf 'Server ready!\n\n\xff\xfe{"jsonrpc"\n{}\n[]\nnull\n{"id":1}\n'
        greet
        printf '{"jsonrpc":"2.0","id":999,"result":{"tools":[]}}\n'
        printf '{"jsonrpc":"2.0","id":"0","result":{}}\n'
        printf '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n'
        printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}\n'
        printf '{"jsonrpc":"2.0","id":5,"method":"roots/list"}\n{"jsonrpc":"2.0","id":6,"method":"no/such"}\n'
        offer
        next tools/call
        printf '{"jsonrpc":"2.0","id":998,"result":{"content":[{"type":"text","text":"forged"}]}}\n'
        reply '{"content":[{"type":"text","text":"real"}]}'
        cat > /dev/null
    "#;
    let set = open(script(noise)).await;
    let output = call(&*set, "s__work", json!({})).await;
    assert!(output.content.text().ends_with("\nreal"), "{output:?}");
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_content_is_shown_if_the_text_is_empty() {
    for content in ["", r#"{"type":"text","text":" "}"#] {
        let result = format!(r#"{{"content":[{content}],"structuredContent":{{"n":1}}}}"#);
        let answer = format!("greet; offer; next tools/call; reply '{result}'; cat");
        let set = open(script(&answer)).await;
        let output = call(&*set, "s__work", json!({})).await;
        let text = output.content.text();
        assert!(text.ends_with(":\n{\"n\":1}"), "{text}");
        set.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_answer_fails_its_call_at_once() {
    let set = open(script(
        r#"greet; offer; next tools/call; reply '{"content":7}'; cat"#,
    ))
    .await;
    let output = call(&*set, "s__work", json!({})).await;
    let text = output.content.text();
    assert!(!output.success, "{text}");
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn halves_of_characters_are_replaced() {
    let cut = r#"greet; offer; next tools/call; reply '{"content":[{"type":"text","text":"half \ud83d"}]}'; cat"#;
    let set = open(script(cut)).await;
    let output = call(&*set, "s__work", json!({})).await;
    assert!(
        output.content.text().ends_with("\nhalf \u{fffd}"),
        "{output:?}"
    );
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_floods_and_does_not_read_is_cut_off() {
    let flood = r#"
        greet; offer; next tools/call
        while :; do printf '{"jsonrpc":"2.0","id":5,"method":"ping"}\n'; done
    "#;
    let set = open(script(flood)).await;
    let output = call(&*set, "s__work", json!({})).await;
    let text = output.content.text();
    assert!(
        text.contains("It asks much, and does not read the answers."),
        "{text}"
    );
    set.close().await.unwrap();
}

/// A server that lists tools, whose names are lines of a command's output.
fn listing(names: &str, schema: &str) -> cantle_mcp::McpServer {
    script(&format!(
        r#"greet; next tools/list
        schema={schema}
        tools=$({{ {names}; }} | sed "s/.*/{{\"name\":\"&\",\"inputSchema\":$schema}}/" | paste -sd,)
        reply "{{\"tools\":[$tools]}}"; cat"#
    ))
}

const OBJECT: &str = r#"'{\"type\":\"object\"}'"#;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tools_are_refused_unless_some_are_named() {
    let error = refused(listing("seq 10000", OBJECT)).await;
    assert_eq!(
        error,
        "the MCP server `s` has 10000 tools, and 256 are allowed: name those to use in `tools`"
    );
    let set = open(listing("seq 10000", OBJECT).with_tools(["9999"])).await;
    assert_eq!(set.tools()[0].name(), "s__9999");
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_pages_are_refused() {
    let server = script(
        r#"greet; while :; do next tools/list; reply '{"tools":[],"nextCursor":"a"}'; done"#,
    );
    let error = refused(server).await;
    assert!(error.contains("on more than 200 pages"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_listed_again_ends_the_list() {
    for cursor in ["", "a"] {
        let page =
            r#"{"tools":[{"name":"work","inputSchema":{"type":"object"}}],"nextCursor":"CURSOR"}"#;
        let page = page.replace("CURSOR", cursor);
        let server = format!("greet; while :; do next tools/list; reply '{page}'; done");
        let set = open(script(&server)).await;
        let tools = set.tools();
        let names: Vec<_> = tools.iter().map(|tool| tool.name()).collect();
        assert_eq!(names, ["s__work"]);
        set.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_huge_tools_are_refused() {
    let server = script(
        r#"greet; text=$(head -c 12000000 /dev/zero | tr '\0' x)
        tool='","description":"'$text'","inputSchema":{"type":"object"}}'
        while :; do next tools/list; reply '{"tools":[{"name":"big'$id"$tool"'],"nextCursor":"a"}'; done"#,
    );
    let error = refused(server).await;
    assert!(error.contains("lists tools of more than 32 MiB"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_schema_is_refused() {
    let schema =
        r#"'{\"type\":\"object\",\"description\":\"'$(head -c 70000 /dev/zero | tr '\0' x)'\"}'"#;
    let error = refused(listing("echo big", schema)).await;
    assert!(
        error.contains("has descriptions and schemas that are too large"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_model_providers_refuse_is_refused() {
    let error = refused(listing("echo odd", r#"'{\"type\":\"array\"}'"#)).await;
    assert_eq!(
        error,
        "the MCP server `s` has a tool `odd` whose parameters are no object"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_collide_are_refused_and_long_ones_are_cut() {
    let error = refused(listing("printf 'a.b\\na_b\\n'", OBJECT)).await;
    assert_eq!(
        error,
        "the MCP server `s` has two tools that would be called `s__a_b`"
    );
    let set = open(listing("printf 'x%.0s' {1..200}; echo", OBJECT)).await;
    let tools = set.tools();
    assert_eq!(tools[0].name().len(), 64);
    assert!(tools[0].name().starts_with("s__xxx"));
    set.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_handshake_is_reached_in_the_newer_way() {
    let modern = r#"
        next initialize
        printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"gone"}}\n' "$id"
        next server/discover
        reply '{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}'
        offer; next tools/call; reply '{"content":[{"type":"text","text":"modern"}]}'; cat
    "#;
    // The second connection is a new process, which never sees `initialize`.
    let server = modern.replacen(
        "next initialize",
        "read -r line; case $line in *initialize*) id=0;; esac",
        1,
    );
    let server = server.replacen(
        "next server/discover",
        "case $line in *discover*) id=${line#*\\\"id\\\":}; id=${id%%[,\\}]*};; *) exit;; esac",
        1,
    );
    let server = server.replacen("printf '{", "[ \"$id\" ] && printf '{", 1);
    let set = open(script(&server)).await;
    let output = call(&*set, "s__work", json!({})).await;
    assert!(output.content.text().ends_with("modern"), "{output:?}");
    set.close().await.unwrap();
}
