use serde_json::json;

use super::*;

fn metadata(value: Value) -> Metadata {
    serde_json::from_value(value).expect("an object")
}

fn sum(values: impl IntoIterator<Item = Value>) -> Value {
    let mut sum = Metadata::default();
    for value in values {
        sum.add(metadata(value));
    }
    serde_json::to_value(sum).expect("serializes")
}

#[test]
fn sums_add_numbers_concatenate_lists_and_merge_objects() {
    assert_eq!(
        sum([
            json!({"n": 1, "list": ["a"], "in": {"n": 1, "x": true}, "s": "one", "null": null}),
            json!({"n": 2, "list": ["b", 1], "in": {"n": 5, "y": 0}, "s": "two", "null": 3}),
            json!({"n": 0.5, "new": 1, "in": {"n": 1}}),
        ]),
        json!({
            "n": 3.5,
            "list": ["a", "b", 1],
            "in": {"n": 7, "x": true, "y": 0},
            "s": "two",
            "null": 3,
            "new": 1,
        })
    );
}

#[test]
fn values_of_different_kinds_replace_each_other() {
    assert_eq!(
        sum([
            json!({"a": 1, "b": [1], "c": {"x": 1}}),
            json!({"a": [2], "b": {"x": 2}, "c": 3})
        ]),
        json!({"a": [2], "b": {"x": 2}, "c": 3})
    );
}

#[test]
fn sums_of_integers_stay_integers() {
    let cases = [
        (json!(1), json!(2), json!(3)),
        (json!(-5), json!(2), json!(-3)),
        (json!(u64::MAX - 1), json!(1), json!(u64::MAX)),
        (json!(i64::MIN + 1), json!(-1), json!(i64::MIN)),
        (json!(0.25), json!(1), json!(1.25)),
        (json!(u64::MAX), json!(-1), json!(u64::MAX - 1)),
    ];
    for (a, b, expected) in cases {
        assert_eq!(
            sum([json!({"n": a}), json!({"n": b})]),
            json!({"n": expected})
        );
    }
    // Past the largest integer, a float is nearest.
    assert_eq!(
        sum([json!({"n": u64::MAX}), json!({"n": u64::MAX})]),
        json!({"n": 2.0 * u64::MAX as f64})
    );
    assert_eq!(
        sum([json!({"n": f64::MAX}), json!({"n": f64::MAX})]),
        json!({"n": f64::MAX}),
        "a sum that JSON can't hold leaves the later number"
    );
}

#[test]
fn uses_are_counted_as_num_uses() {
    let mut uses = Metadata::uses(1);
    uses.add(Metadata::uses(2));
    assert_eq!(uses, metadata(json!({"num_uses": 3})));
    assert_eq!(uses.get("num_uses"), Some(&json!(3)));
    assert_eq!(uses.get("pages"), None);
}
