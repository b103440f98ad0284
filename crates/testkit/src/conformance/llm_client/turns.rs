//! Turns: blocks, stop reasons and usage.

use cantle_core::llm::StopReason;
use cantle_core::usage::TokenUsage;
use futures_util::future::try_join_all;

use super::prelude::*;

cases! { cases for ClientFactory:
    the_requested_model_is_sent,
    a_text_is_one_block,
    an_empty_turn_has_no_blocks,
    pieces_add_up_to_the_blocks,
    reasoning_comes_before_text_and_calls,
    a_tool_call_keeps_its_parts,
    parallel_tool_calls_stay_separate,
    a_tool_call_without_an_id_gets_one,
    malformed_arguments_are_passed_through,
    stop_reasons_are_distinguished,
    a_truncated_turn_has_its_usage,
    no_token_is_counted_twice,
    missing_usage_is_none,
    streaming_does_not_change_the_turn.optional(),
    server_quirks_do_not_change_the_turn,
    slow_delivery_does_not_change_the_turn,
    concurrent_calls_are_independent,
}

async fn the_requested_model_is_sent(factory: &ClientFactory<'_>) -> Checked {
    for stream in STREAM_MODES {
        let server = serve(Script::new().turn(Turn::text("Hello."))).await?;
        let client = factory.client(&server.url(), stream);
        equal("the model's slug", &*client.model().slug, MODEL)?;
        client.complete(request("Go.")).await?;
        let requested = server
            .requests()
            .first()
            .and_then(|it| it.body().get("model").cloned());
        equal("the model in the request", requested, Some(MODEL.into()))?;
    }
    Ok(())
}

/// Checks the blocks of a turn, streamed and not.
async fn must_have_blocks(
    factory: &ClientFactory<'_>,
    turn: &Turn,
    blocks: &[AssistantBlock],
) -> Checked {
    for completion in factory.complete_in_both_modes(turn).await? {
        equal("the blocks", completion.message.blocks, blocks)?;
    }
    Ok(())
}

fn call(id: &str, name: &str, arguments: &str) -> AssistantBlock {
    AssistantBlock::ToolCall(Call::new(Some(id.to_owned()), name, arguments))
}

async fn a_text_is_one_block(factory: &ClientFactory<'_>) -> Checked {
    let text = "Two words, \"quotes\", größer → 数\n\n\tend";
    must_have_blocks(factory, &Turn::text(text), &[AssistantBlock::text(text)]).await
}

async fn an_empty_turn_has_no_blocks(factory: &ClientFactory<'_>) -> Checked {
    must_have_blocks(factory, &Turn::text(""), &[]).await
}

async fn pieces_add_up_to_the_blocks(factory: &ClientFactory<'_>) -> Checked {
    let (text, thought) = ("größer → 数 and so on", "Hm, 数?");
    let turn = Turn::text(text)
        .reasoning(thought)
        .call(ToolCall::new("look", r#"{"at":"größe","n":1}"#))
        .call(ToolCall::new("see", r#"{"at":"数"}"#));
    let blocks = [
        factory.reasoning(thought),
        AssistantBlock::text(text),
        call("call_0_0", "look", r#"{"at":"größe","n":1}"#),
        call("call_0_1", "see", r#"{"at":"数"}"#),
    ];
    // `record_call` checks the sums of all calls; here, deltas have the extreme sizes.
    must_have_blocks(factory, &turn.clone().delta_chars(1), &blocks).await?;
    must_have_blocks(factory, &turn.delta_chars(1000), &blocks).await
}

async fn reasoning_comes_before_text_and_calls(factory: &ClientFactory<'_>) -> Checked {
    let turn = Turn::text("I look.")
        .reasoning("What is there?")
        .call(ToolCall::new("look", "{}"));
    let blocks = [
        factory.reasoning("What is there?"),
        AssistantBlock::text("I look."),
        call("call_0_0", "look", "{}"),
    ];
    must_have_blocks(factory, &turn, &blocks).await
}

async fn a_tool_call_keeps_its_parts(factory: &ClientFactory<'_>) -> Checked {
    let arguments = r#"{"path": "a b.csv", "lines": [1, 2.50, -3e2], "deep": {"x": null}}"#;
    let turn = Turn::tool(ToolCall::new("read_file-2", arguments).id("toolu_01 odd/id"));
    let expected = call("toolu_01 odd/id", "read_file-2", arguments);
    must_have_blocks(factory, &turn, &[expected]).await?;
    let completion = factory.complete(turn, true).await?;
    equal("the stop reason", completion.stop, StopReason::ToolCalls)
}

async fn parallel_tool_calls_stay_separate(factory: &ClientFactory<'_>) -> Checked {
    let turn = Turn::text("All three.")
        .call(ToolCall::new("look", r#"{"at":"one"}"#))
        .call(ToolCall::new("look", r#"{"at":"two"}"#))
        .call(ToolCall::new("see", r#"{"at":"three"}"#));
    let blocks = [
        AssistantBlock::text("All three."),
        call("call_0_0", "look", r#"{"at":"one"}"#),
        call("call_0_1", "look", r#"{"at":"two"}"#),
        call("call_0_2", "see", r#"{"at":"three"}"#),
    ];
    must_have_blocks(factory, &turn, &blocks).await
}

async fn a_tool_call_without_an_id_gets_one(factory: &ClientFactory<'_>) -> Checked {
    let turn = Turn::tool(ToolCall::new("look", "{}").without_id())
        .call(ToolCall::new("see", "{}").without_id());
    for completion in factory.complete_in_both_modes(&turn).await? {
        let calls: Vec<&Call> = completion.message.tool_calls().collect();
        let names: Vec<&str> = calls.iter().map(|call| &*call.name).collect();
        equal("the calls", names, vec!["look", "see"])?;
        let mut ids: Vec<&str> = calls.iter().map(|call| &*call.id).collect();
        ensure!(!ids.contains(&""), "a call has an empty id");
        ids.dedup();
        equal("different ids", ids.len(), 2)?;
        let marked = calls.iter().any(|call| call.has_provider_id);
        ensure!(!marked, "a generated id is marked as the provider's");
    }
    Ok(())
}

async fn malformed_arguments_are_passed_through(factory: &ClientFactory<'_>) -> Checked {
    for arguments in [
        "{\"a\": ",
        "not JSON",
        "",
        "[1]",
        "{'a': 1}",
        "{\"a\":\"\n\"} ",
    ] {
        let turn = Turn::tool(ToolCall::new("look", arguments));
        let expected = [call("call_0_0", "look", arguments)];
        // Whole messages of Anthropic hold an object; streams hold text, and the empty text means
        // `{}`.
        if factory.dialect != Dialect::Messages {
            must_have_blocks(factory, &turn, &expected).await?;
        } else if !arguments.is_empty() {
            let completion = factory.complete(turn, true).await?;
            equal("the blocks", &completion.message.blocks[..], &expected[..])?;
        }
    }
    Ok(())
}

async fn stop_reasons_are_distinguished(factory: &ClientFactory<'_>) -> Checked {
    let reasons = [
        ("stop", StopReason::EndTurn),
        ("tool_calls", StopReason::ToolCalls),
        ("length", StopReason::Length),
        ("content_filter", StopReason::ContentFilter),
        ("tired", StopReason::Other("tired".to_owned())),
    ];
    for (reason, expected) in reasons {
        // Responses have no such reason; it follows from the calls.
        if factory.dialect == Dialect::Responses && expected == StopReason::ToolCalls {
            continue;
        }
        let turn = Turn::text("Hello.").finish_reason(reason);
        for completion in factory.complete_in_both_modes(&turn).await? {
            let what = format!("the stop reason `{reason}`");
            equal(&what, completion.stop, expected.clone())?;
        }
    }
    Ok(())
}

async fn a_truncated_turn_has_its_usage(factory: &ClientFactory<'_>) -> Checked {
    let turn = Turn::text("and so on and").finish_reason("length");
    let turn = turn.usage(Usage::new(7, 4096));
    for completion in factory.complete_in_both_modes(&turn).await? {
        equal("the stop reason", completion.stop, StopReason::Length)?;
        let text = completion.message.text();
        equal("the text so far", text, "and so on and")?;
        let expected = TokenUsage {
            input: 7,
            answer: 4096,
            ..TokenUsage::default()
        };
        equal("the usage", completion.usage, Some(expected))?;
    }
    Ok(())
}

async fn no_token_is_counted_twice(factory: &ClientFactory<'_>) -> Checked {
    let usages = [
        (Usage::new(100, 50), (100, 0, 50, 0)),
        (Usage::new(100, 50).cached(40), (60, 40, 50, 0)),
        (Usage::new(100, 50).reasoning(20), (100, 0, 30, 20)),
        (
            Usage::new(100, 50).cached(100).reasoning(50),
            (0, 100, 0, 50),
        ),
    ];
    for (usage, (input, cache_read, answer, reasoning)) in usages {
        let expected = TokenUsage {
            input,
            cache_read,
            cache_write: 0,
            answer,
            reasoning,
        };
        let turn = Turn::text("Hello.").usage(usage);
        for completion in factory.complete_in_both_modes(&turn).await? {
            let what = format!("the counters of {usage:?}");
            equal(&what, completion.usage, Some(expected))?;
            let own = completion.message.token_usage;
            equal("the message's counters", own, expected)?;
        }
    }
    Ok(())
}

async fn missing_usage_is_none(factory: &ClientFactory<'_>) -> Checked {
    let turn = Turn::text("Hello.").without_usage();
    for completion in factory.complete_in_both_modes(&turn).await? {
        equal("the usage", completion.usage, None)?;
        equal("the text", completion.message.text(), "Hello.")?;
    }
    Ok(())
}

/// A turn with every kind of content.
fn rich_turn() -> Turn {
    Turn::text("größer → 数")
        .reasoning("Hm.")
        .call(ToolCall::new("look", r#"{"at":"größe"}"#))
        .call(ToolCall::new("see", "{}"))
        .usage(Usage::new(100, 50).cached(40).reasoning(20))
}

/// Returns the parts of a completion that don't differ between calls.
fn comparable(completion: Completion) -> (Vec<AssistantBlock>, StopReason, Option<TokenUsage>) {
    (completion.message.blocks, completion.stop, completion.usage)
}

async fn streaming_does_not_change_the_turn(factory: &ClientFactory<'_>) -> Checked {
    let mut turns = Vec::new();
    let mut modes = Vec::new();
    for stream in STREAM_MODES {
        let (record, server) = factory.ask(Script::new().turn(rich_turn()), stream).await?;
        turns.push(comparable(record.completion()?));
        modes.extend(server.requests().iter().map(asks_for_a_stream));
    }
    if modes != STREAM_MODES {
        return Err(Failure::skip("the client has only one mode"));
    }
    equal("the turn without streaming", turns.pop(), turns.pop())
}

async fn server_quirks_do_not_change_the_turn(factory: &ClientFactory<'_>) -> Checked {
    let plain = comparable(factory.complete(rich_turn(), true).await?);
    let quirks: [fn(Script) -> Script; 2] = [Script::comments, Script::usage_in_choice];
    for quirk in quirks {
        let script = quirk(Script::new().turn(rich_turn()));
        let (record, _server) = factory.ask(script, true).await?;
        equal("the turn", comparable(record.completion()?), plain.clone())?;
    }
    Ok(())
}

async fn slow_delivery_does_not_change_the_turn(factory: &ClientFactory<'_>) -> Checked {
    for stream in STREAM_MODES {
        let plain = comparable(factory.complete(rich_turn(), stream).await?);
        // Pieces end anywhere, also within characters.
        let slow = rich_turn().fault(Fault::Slow {
            bytes: 7,
            every: Duration::from_millis(1),
        });
        let slow = comparable(factory.complete(slow, stream).await?);
        equal("the slow turn", slow, plain)?;
    }
    Ok(())
}

async fn concurrent_calls_are_independent(factory: &ClientFactory<'_>) -> Checked {
    const CALLS: usize = 16;
    let echo = |request: &Request| {
        let raw = String::from_utf8_lossy(&request.raw).into_owned();
        let number = raw
            .split("number-")
            .nth(1)
            .and_then(|rest| rest.split('.').next());
        Turn::text(format!("This is {}.", number.unwrap_or("none")))
    };
    let server = serve(Script::new().then_with(echo)).await?;
    let client = factory.client(&server.url(), true);
    let calls = (0..CALLS).map(|number| client.complete(request(&format!("Say number-{number}."))));
    let texts: Vec<String> = try_join_all(calls)
        .await?
        .into_iter()
        .map(|completion| completion.message.text())
        .collect();
    let expected: Vec<String> = (0..CALLS)
        .map(|number| format!("This is {number}."))
        .collect();
    equal("the answers", texts, expected)
}
