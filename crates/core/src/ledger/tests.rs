use serde_json::json;

use super::*;

fn usage(input: u64, answer: u64) -> TokenUsage {
    TokenUsage {
        input,
        answer,
        ..TokenUsage::default()
    }
}

fn call(input: u64, answer: u64) -> ModelCall {
    ModelCall::new(
        "model",
        CallPurpose::Turn,
        usage(input, answer),
        Duration::from_secs(1),
    )
}

fn ledger(calls: impl IntoIterator<Item = ModelCall>) -> Ledger {
    Ledger {
        model_calls: calls.into_iter().collect(),
        ..Ledger::default()
    }
}

/// A root that used two tools and ran one sub-agent twice, which ran another one.
fn tree() -> Ledger {
    let mut fetcher = ledger([call(5, 1)]);
    fetcher.record_tool(
        "fetch",
        true,
        Duration::from_secs(2),
        Some(Metadata::uses(1)),
    );

    let mut first = ledger([call(100, 10), call(200, 20)]);
    first.record_tool(
        "search",
        true,
        Duration::from_secs(1),
        Some(Metadata::uses(1).with("pages", json!(["a"]))),
    );
    first.sub_agents.insert("fetcher".to_owned(), vec![fetcher]);
    let mut second = ledger([call(1000, 100)]);
    second.record_tool(
        "search",
        false,
        Duration::from_secs(3),
        Some(Metadata::uses(1).with("pages", json!(["b"]))),
    );

    let mut root = ledger([call(1, 2)]);
    root.record_tool(
        "code_exec",
        true,
        Duration::from_secs(1),
        Some(Metadata::uses(1)),
    );
    root.record_tool(
        "code_exec",
        true,
        Duration::from_secs(2),
        Some(Metadata::uses(1)),
    );
    root.record_tool("finish", true, Duration::ZERO, None);
    // A sub-agent is called as a tool, so it has an account of both kinds.
    root.record_tool(
        "researcher",
        true,
        Duration::from_secs(9),
        Some(Metadata::uses(1)),
    );
    root.record_tool("researcher", false, Duration::from_secs(9), None);
    root.sub_agents
        .insert("researcher".to_owned(), vec![first, second]);
    root
}

#[test]
fn tool_totals_sum_their_calls() {
    let root = tree();
    let expected = ToolTotals {
        calls: 2,
        failures: 0,
        cancelled: 0,
        refused: 0,
        repairs: 0,
        duration: Duration::from_secs(3),
        metadata: Metadata::uses(2),
    };
    assert_eq!(root.tools["code_exec"], expected);
    let expected = ToolTotals {
        calls: 2,
        failures: 1,
        cancelled: 0,
        refused: 0,
        repairs: 0,
        duration: Duration::from_secs(18),
        metadata: Metadata::uses(1),
    };
    assert_eq!(root.tools["researcher"], expected);
    assert_eq!(
        root.tools.keys().collect::<Vec<_>>(),
        ["code_exec", "finish", "researcher"]
    );
}

#[test]
fn usage_includes_sub_agents() {
    assert_eq!(tree().reported_usage(), usage(1306, 133));
}

#[test]
fn estimates_are_kept_apart() {
    let mut estimated = call(50, 5);
    estimated.estimated = true;
    let mut root = tree();
    root.sub_agents["researcher"][1].model_calls.push(estimated);
    assert_eq!(root.reported_usage(), usage(1306, 133));
    assert_eq!(root.estimated_usage(), usage(50, 5));
}

#[test]
fn cost_is_unknown_until_a_call_reports_it() {
    let mut root = tree();
    assert_eq!(root.cost_usd(), None);
    root.model_calls[0].cost_usd = Some(0.25);
    root.sub_agents["researcher"][0].model_calls[1].cost_usd = Some(0.5);
    assert_eq!(root.cost_usd(), Some(0.75));
}

#[test]
fn costs_are_summed_by_how_they_are_known() {
    let priced = |cost_usd, list_price_date: Option<&str>, estimated| ModelCall {
        cost_usd,
        list_price_date: list_price_date.map(str::to_owned),
        estimated,
        ..call(10, 1)
    };
    let mut root = Ledger::default();
    assert_eq!(root.costs(), Costs::default());
    root.model_calls = vec![
        priced(Some(1.0), None, false),
        priced(Some(2.0), Some("2026-10-01"), false),
        priced(Some(4.0), Some("2026-09-01"), false),
        priced(Some(8.0), Some("2026-11-01"), true),
        priced(None, None, false),
    ];
    let below = Ledger {
        model_calls: vec![priced(Some(16.0), None, false)],
        ..Ledger::default()
    };
    root.sub_agents.insert("helper".to_owned(), vec![below]);
    let expected = Costs {
        reported_usd: Some(17.0),
        list_price_usd: Some(6.0),
        list_price_date: Some("2026-10-01"),
        estimated_usd: Some(8.0),
    };
    assert_eq!(root.costs(), expected);
    assert_eq!(root.cost_usd(), Some(31.0));
}

#[test]
fn calls_of_unknown_cost_are_counted_if_they_used_tokens() {
    let mut root = tree();
    let all = root.calls_of_unknown_cost();
    root.model_calls[0].cost_usd = Some(0.25);
    root.model_calls.push(call(0, 0));
    assert_eq!(root.calls_of_unknown_cost(), all - 1);
}

#[test]
fn refused_calls_are_counted_as_not_started() {
    let mut below = Ledger::default();
    below.record_tool("look", true, Duration::ZERO, None);
    below.record_refused("look");
    let mut root = Ledger::default();
    root.record_refused("work");
    root.record_tool("work", false, Duration::ZERO, None);
    root.sub_agents.insert("helper".to_owned(), vec![below]);
    let account = &root.tools["work"];
    assert_eq!(
        (account.calls, account.failures, account.refused),
        (2, 2, 1)
    );
    assert_eq!(root.started_tool_calls(), 2);
}

/// As `aggregate_metadata` of Stirrup 0.2 has it for the same runs.
#[test]
fn metadata_has_the_format_of_stirrup() {
    assert_eq!(
        serde_json::to_value(tree().stirrup_metadata()).expect("serializes"),
        json!({
            "token_usage": [{"input": 1306, "answer": 133, "reasoning": 0}],
            "code_exec": {"num_uses": 2},
            "researcher": {
                "search": {"num_uses": 2, "pages": ["a", "b"]},
                "token_usage": {"input": 1300, "answer": 130, "reasoning": 0},
            },
            "researcher.fetcher": {
                "fetch": {"num_uses": 1},
                "token_usage": {"input": 5, "answer": 1, "reasoning": 0},
            },
        })
    );
}

#[test]
fn idle_sub_agents_are_part_of_the_metadata() {
    let mut root = Ledger::default();
    root.sub_agents
        .insert("idle".to_owned(), vec![Ledger::default()]);
    assert_eq!(
        serde_json::to_value(root.stirrup_metadata()).expect("serializes"),
        json!({"idle": {}})
    );
}

#[test]
fn ledgers_round_trip_through_json() {
    let root = tree();
    let json = serde_json::to_string(&root).expect("serializes");
    assert_eq!(serde_json::from_str::<Ledger>(&json).expect("reads"), root);
}

#[test]
fn sums_of_a_forged_ledger_saturate() {
    let call = ModelCall::new("m", CallPurpose::Turn, usage(0, u64::MAX), Duration::MAX);
    let mut ledger = Ledger {
        model_calls: vec![call.clone(), call],
        ..Ledger::default()
    };
    ledger.record_tool("t", true, Duration::MAX, None);
    ledger.record_tool("t", true, Duration::MAX, None);
    assert_eq!(ledger.tools["t"].duration, Duration::MAX);
    assert_eq!(ledger.reported_usage().total(), u64::MAX);
    let speeds = ledger.output_tokens_per_second();
    assert!((speeds["m"] - 1.0).abs() < 1e-9, "{speeds:?}");
}
