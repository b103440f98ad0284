//! Metadata that tools report, summed over calls.
//!
//! Metadata is a JSON object. In a sum, numbers are added, lists are concatenated, objects are merged,
//! and other values are replaced by the later one. A tool reports, for example,
//! `{"num_uses": 1, "pages": ["…"]}` per call.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// Metadata of one tool call, or the sum of many.
///
/// ```
/// use cantle_core::metadata::Metadata;
/// use serde_json::json;
///
/// let mut sum = Metadata::uses(1).with("pages", json!(["a"]));
/// sum.add(Metadata::uses(2).with("pages", json!(["b"])));
/// assert_eq!(serde_json::to_value(&sum)?, json!({"num_uses": 3, "pages": ["a", "b"]}));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(Map<String, Value>);

impl Metadata {
    /// Creates metadata with a number of uses, under Stirrup's key `num_uses`.
    pub fn uses(count: u64) -> Self {
        Self::default().with("num_uses", count)
    }

    /// Sets a value.
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// Returns the value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the metadata of another call.
    pub fn add(&mut self, other: Self) {
        merge(&mut self.0, other.0);
    }
}

fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match into.get_mut(&key) {
            None => {
                into.insert(key, value);
            }
            Some(existing) => match (existing, value) {
                (Value::Object(a), Value::Object(b)) => merge(a, b),
                (Value::Array(a), Value::Array(b)) => a.extend(b),
                (Value::Number(a), Value::Number(b)) => *a = sum(a, b),
                (existing, value) => *existing = value,
            },
        }
    }
}

fn sum(a: &Number, b: Number) -> Number {
    if let (Some(a), Some(b)) = (a.as_i128(), b.as_i128())
        && let Some(sum) = Number::from_i128(a + b)
    {
        return sum;
    }
    let float = a
        .as_f64()
        .zip(b.as_f64())
        .and_then(|(a, b)| Number::from_f64(a + b));
    float.unwrap_or(b)
}

#[cfg(test)]
mod tests;
