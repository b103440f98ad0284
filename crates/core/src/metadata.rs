//! Metadata: what tools report about their own work, added up over calls.
//!
//! A JSON object. Adding two: numbers add, lists join, objects merge, and of anything else the
//! later one stays. So a tool reports `{"num_uses": 1, "pages": ["…"]}` per call and the ledger
//! holds the sum without knowing what it means.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// What one call, or many added up, reported.
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
    /// Only how often a tool was used, under Stirrup's name for it.
    #[must_use]
    pub fn uses(count: u64) -> Self {
        Self::default().with("num_uses", count)
    }

    /// The same with `key` set.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// The value under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Whether nothing was reported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what another call reported.
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
