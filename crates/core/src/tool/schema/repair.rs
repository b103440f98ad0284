//! Argument repair: unambiguous corrections of invalid values.
//!
//! A valid value is never changed. Text is only interpreted as JSON, and a value with two possible
//! corrections stays as it is.

use serde_json::{Number, Value};

use super::check::{Names, accepts, constants};
use super::path::Path;
use super::{Keywords, branches, names_in_branch};
use crate::tool::arguments::{Repair, RepairKind};

/// 2^53: integers up to here are exact as floats.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Maximum number of attempts to repair an invalid value of one call. Each alternative in a schema tries all
/// candidates of a value, so nested ones multiply, and a schema can be that of an MCP server.
const MAX_ATTEMPTS: u32 = 10_000;

/// Repair of the arguments of one call.
pub(super) struct ArgumentRepair<'r> {
    attempts_left: u32,
    repairs: &'r mut Vec<Repair>,
}

impl<'r> ArgumentRepair<'r> {
    /// Creates a repair that adds its corrections to `repairs`.
    pub(super) fn new(repairs: &'r mut Vec<Repair>) -> Self {
        Self {
            attempts_left: MAX_ATTEMPTS,
            repairs,
        }
    }

    /// Repairs a value as far as possible. Without an attempt left, it stays invalid.
    pub(super) fn repair(
        &mut self,
        schema: &Value,
        value: Value,
        path: Path<'_>,
        names: Names,
    ) -> Value {
        let Some(keywords) = schema.as_object() else {
            return value;
        };
        if accepts(schema, &value, names) {
            return value;
        }
        let Some(left) = self.attempts_left.checked_sub(1) else {
            return value;
        };
        self.attempts_left = left;
        let candidates = candidates(keywords, &value);
        let start = self.repairs.len();
        let value = self.repair_inside(keywords, value, path, names);
        if accepts(schema, &value, names) {
            return value;
        }
        let inside = self.repairs.split_off(start);
        for (kind, candidate) in candidates {
            self.repairs.push(Repair::new(path.to_string(), kind));
            let candidate = self.repair_inside(keywords, candidate, path, names);
            if accepts(schema, &candidate, names) {
                return candidate;
            }
            self.repairs.truncate(start);
        }
        self.repairs.extend(inside);
        value
    }

    /// Repairs the parts of a value, by its schema and the combined schemas.
    fn repair_inside(
        &mut self,
        schema: &Keywords,
        mut value: Value,
        path: Path<'_>,
        names: Names,
    ) -> Value {
        match &mut value {
            Value::Object(fields) => self.repair_fields(schema, fields, path),
            Value::Array(items) => {
                if let Some(each) = schema.get("items") {
                    let first = branches(schema, "prefixItems").len();
                    for (index, item) in items.iter_mut().enumerate().skip(first) {
                        let path = Path::Item(&path, index);
                        *item = self.repair(each, item.take(), path, Names::ListedIfAny);
                    }
                }
            }
            _ => {}
        }
        for branch in branches(schema, "allOf") {
            value = self.repair(branch, value, path, Names::Open);
        }
        for keyword in ["anyOf", "oneOf"] {
            let names = names_in_branch(schema, names);
            value = self.repair_as_one_of(branches(schema, keyword), value, path, names);
        }
        value
    }

    fn repair_fields(&mut self, schema: &Keywords, fields: &mut Keywords, path: Path<'_>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let listed = |name: &str| properties.and_then(|properties| properties.get(name));
        let required = branches(schema, "required");
        fields.retain(|name, value| {
            let may_be_dropped = value.is_null()
                && !required.iter().any(|required| required == name.as_str())
                && listed(name).is_some_and(|each| !accepts(each, value, Names::ListedIfAny));
            if may_be_dropped {
                let path = Path::Field(&path, name).to_string();
                self.repairs
                    .push(Repair::new(path, RepairKind::NullDropped));
            }
            !may_be_dropped
        });
        for (name, value) in fields.iter_mut() {
            if let Some(each) = listed(name).or_else(|| schema.get("additionalProperties")) {
                let path = Path::Field(&path, name);
                *value = self.repair(each, value.take(), path, Names::ListedIfAny);
            }
        }
    }

    /// Repairs a value to satisfy one of the branches, with the fewest repairs, if the result is
    /// unambiguous.
    fn repair_as_one_of(
        &mut self,
        branches: &[Value],
        value: Value,
        path: Path<'_>,
        names: Names,
    ) -> Value {
        if branches.iter().any(|branch| accepts(branch, &value, names)) {
            return value;
        }
        let start = self.repairs.len();
        let mut best: Option<(Value, Vec<Repair>)> = None;
        let mut is_ambiguous = false;
        for branch in branches {
            let repaired = self.repair(branch, value.clone(), path, names);
            let steps = self.repairs.split_off(start);
            if !accepts(branch, &repaired, names) {
                continue;
            }
            match &best {
                Some((_, fewest)) if fewest.len() < steps.len() => {}
                Some((other, fewest)) if fewest.len() == steps.len() => {
                    is_ambiguous |= *other != repaired;
                }
                _ => {
                    is_ambiguous = false;
                    best = Some((repaired, steps));
                }
            }
        }
        match best {
            Some((repaired, steps)) if !is_ambiguous => {
                self.repairs.extend(steps);
                repaired
            }
            _ => value,
        }
    }
}

/// Returns the possible corrections of an invalid value, likeliest first.
fn candidates(schema: &Keywords, value: &Value) -> Vec<(RepairKind, Value)> {
    let mut candidates = Vec::new();
    match value {
        Value::String(text) => {
            match serde_json::from_str(text.trim()) {
                Ok(parsed @ (Value::Object(_) | Value::Array(_))) => {
                    candidates.push((RepairKind::JsonInText, parsed));
                }
                Ok(Value::Number(number)) => {
                    let number = number_in(&number, text);
                    candidates.extend(number.map(|number| (RepairKind::NumberInText, number)));
                }
                Ok(parsed @ Value::Bool(_)) => candidates.push((RepairKind::BooleanInText, parsed)),
                _ => {}
            }
            candidates.extend(in_other_case(schema, text).map(|it| (RepairKind::OtherCase, it)));
        }
        // Not for floats, whose spelling is lost: `1.10` was parsed as `1.1`.
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            candidates.push((RepairKind::TextFromNumber, number.to_string().into()));
        }
        _ => {}
    }
    let is_empty_or_list = match value {
        Value::Null | Value::Array(_) => true,
        Value::String(text) => text.trim().is_empty(),
        _ => false,
    };
    if !is_empty_or_list {
        let list = Value::Array(vec![value.clone()]);
        candidates.push((RepairKind::ListOfOne, list));
    }
    candidates
}

/// Converts a number from text if no digit is lost; whole numbers become integers.
fn number_in(number: &Number, text: &str) -> Option<Value> {
    if number.is_i64() || number.is_u64() {
        return Some(number.clone().into());
    }
    let float = number.as_f64()?;
    if float.fract() != 0.0 {
        return Some(float.into());
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole, and within what both hold exactly"
    )]
    let whole = (float.abs() < MAX_EXACT_INTEGER).then_some(float as i64);
    let only_digits = text.trim().trim_start_matches('-').bytes();
    match whole {
        Some(whole) => Some(whole.into()),
        None if only_digits.into_iter().all(|byte| byte.is_ascii_digit()) => None,
        None => Some(float.into()),
    }
}

/// Returns the allowed value that differs from a text only in case, if there is exactly one.
fn in_other_case(schema: &Keywords, text: &str) -> Option<Value> {
    let mut same = constants(schema)?.iter().filter(|allowed| {
        let allowed = allowed.as_str();
        allowed.is_some_and(|allowed| allowed.to_lowercase() == text.to_lowercase())
    });
    let first = same.next()?;
    same.next().is_none().then(|| first.clone())
}

#[cfg(test)]
mod tests;
