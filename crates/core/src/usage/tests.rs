use proptest::prelude::*;
use serde_json::json;

use super::*;

fn usage(counters: [u32; 5]) -> TokenUsage {
    let [input, cache_read, cache_write, answer, reasoning] = counters.map(u64::from);
    TokenUsage {
        input,
        cache_read,
        cache_write,
        answer,
        reasoning,
    }
}

#[test]
fn in_json_input_includes_the_cache() {
    assert_eq!(
        serde_json::to_value(usage([1, 20, 300, 4, 5])).expect("serializes"),
        json!({"input": 321, "answer": 4, "reasoning": 5, "cache_read": 20, "cache_write": 300})
    );
}

#[test]
fn without_a_cache_json_is_what_stirrup_writes() {
    assert_eq!(
        serde_json::to_value(usage([1, 0, 0, 4, 5])).expect("serializes"),
        json!({"input": 1, "answer": 4, "reasoning": 5})
    );
}

#[test]
fn every_historic_format_is_read() {
    let cases = [
        (json!({}), usage([0; 5])),
        (json!({"input": 7, "output": 8}), usage([7, 0, 0, 8, 0])),
        (
            json!({"input": 7, "output": 9, "answer": 8}),
            usage([7, 0, 0, 8, 0]),
        ),
        (
            json!({"input": 7, "answer": 8, "unknown": 1}),
            usage([7, 0, 0, 8, 0]),
        ),
        // More from the cache than there was: the cache's own count is what stays.
        (json!({"input": 5, "cache_read": 9}), usage([0, 9, 0, 0, 0])),
        (
            json!({"input": 5, "cache_read": u64::MAX, "cache_write": u64::MAX}),
            TokenUsage {
                cache_read: u64::MAX,
                cache_write: u64::MAX,
                ..TokenUsage::default()
            },
        ),
    ];
    for (json, expected) in cases {
        let read: TokenUsage = serde_json::from_value(json.clone()).expect("reads");
        assert_eq!(read, expected, "{json}");
    }
}

proptest! {
    #[test]
    fn usage_round_trips_through_json(counters: [u32; 5]) {
        let usage = usage(counters);
        let json = serde_json::to_string(&usage).expect("serializes");
        prop_assert_eq!(serde_json::from_str::<TokenUsage>(&json).expect("reads"), usage);
    }

    #[test]
    fn totals_count_every_token_once(counters: [u32; 5], others: [u32; 5]) {
        let (a, b) = (usage(counters), usage(others));
        let sum = a + b;
        prop_assert_eq!(sum.total(), a.total() + b.total());
        prop_assert_eq!(sum.total(), sum.input_total() + sum.output_total());
        prop_assert_eq!(sum.total(), counters.iter().chain(&others).map(|c| u64::from(*c)).sum::<u64>());
        prop_assert_eq!([a, b].into_iter().sum::<TokenUsage>(), b + a);
    }
}
