//! Near-misses: values that a schema does not accept, but that can mean only one that it does.
//!
//! A value that is accepted is never touched, and nothing is guessed: text is read as JSON or not at
//! all, and where a value could be mended to two different ones it stays as it is.

use serde_json::{Number, Value};

use super::check::{Names, accepts, constants};
use super::path::Path;
use super::{Keywords, branches, within};
use crate::tool::arguments::{Repair, RepairKind};

/// Whole numbers up to here are exact as floats.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Mends a value as far as that can be done; what was done is added to `repairs`.
pub(super) fn repair(
    schema: &Value,
    value: Value,
    path: Path<'_>,
    names: Names,
    repairs: &mut Vec<Repair>,
) -> Value {
    let Some(keywords) = schema.as_object() else {
        return value;
    };
    if accepts(schema, &value, names) {
        return value;
    }
    let meanings = meanings(keywords, &value);
    let mut inside = Vec::new();
    let value = repair_inside(keywords, value, path, names, &mut inside);
    if !accepts(schema, &value, names) {
        for (kind, meaning) in meanings {
            let mut steps = vec![Repair::new(path.to_string(), kind)];
            let meaning = repair_inside(keywords, meaning, path, names, &mut steps);
            if accepts(schema, &meaning, names) {
                repairs.append(&mut steps);
                return meaning;
            }
        }
    }
    repairs.append(&mut inside);
    value
}

/// Mends the parts of a value, and what is an alternative or a part of its schema.
fn repair_inside(
    schema: &Keywords,
    mut value: Value,
    path: Path<'_>,
    names: Names,
    repairs: &mut Vec<Repair>,
) -> Value {
    match &mut value {
        Value::Object(fields) => repair_fields(schema, fields, path, repairs),
        Value::Array(items) => {
            if let Some(each) = schema.get("items") {
                let first = branches(schema, "prefixItems").len();
                for (index, item) in items.iter_mut().enumerate().skip(first) {
                    let path = Path::Item(&path, index);
                    *item = repair(each, item.take(), path, Names::ListedIfAny, repairs);
                }
            }
        }
        _ => {}
    }
    for branch in branches(schema, "allOf") {
        value = repair(branch, value, path, Names::Open, repairs);
    }
    for keyword in ["anyOf", "oneOf"] {
        let names = within(schema, names);
        value = repair_as_one_of(branches(schema, keyword), value, path, names, repairs);
    }
    value
}

fn repair_fields(
    schema: &Keywords,
    fields: &mut Keywords,
    path: Path<'_>,
    repairs: &mut Vec<Repair>,
) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let listed = |name: &str| properties.and_then(|properties| properties.get(name));
    let required = branches(schema, "required");
    fields.retain(|name, value| {
        let may_be_dropped = value.is_null()
            && !required.iter().any(|required| required == name.as_str())
            && listed(name).is_some_and(|each| !accepts(each, value, Names::ListedIfAny));
        if may_be_dropped {
            let path = Path::Field(&path, name).to_string();
            repairs.push(Repair::new(path, RepairKind::NullDropped));
        }
        !may_be_dropped
    });
    for (name, value) in fields.iter_mut() {
        if let Some(each) = listed(name).or_else(|| schema.get("additionalProperties")) {
            let path = Path::Field(&path, name);
            *value = repair(each, value.take(), path, Names::ListedIfAny, repairs);
        }
    }
}

/// Mends a value that no branch accepts to what one of them does: with the fewest repairs, and only
/// where as few never lead to something else.
fn repair_as_one_of(
    branches: &[Value],
    value: Value,
    path: Path<'_>,
    names: Names,
    repairs: &mut Vec<Repair>,
) -> Value {
    if branches.iter().any(|branch| accepts(branch, &value, names)) {
        return value;
    }
    let mut best: Option<(Value, Vec<Repair>)> = None;
    let mut is_doubtful = false;
    for branch in branches {
        let mut steps = Vec::new();
        let mended = repair(branch, value.clone(), path, names, &mut steps);
        if !accepts(branch, &mended, names) {
            continue;
        }
        match &best {
            Some((_, fewest)) if fewest.len() < steps.len() => {}
            Some((other, fewest)) if fewest.len() == steps.len() => {
                is_doubtful |= *other != mended;
            }
            _ => {
                is_doubtful = false;
                best = Some((mended, steps));
            }
        }
    }
    match best {
        Some((mended, mut steps)) if !is_doubtful => {
            repairs.append(&mut steps);
            mended
        }
        _ => value,
    }
}

/// What a value that is not accepted may mean, likeliest first.
fn meanings(schema: &Keywords, value: &Value) -> Vec<(RepairKind, Value)> {
    let mut meanings = Vec::new();
    match value {
        Value::String(text) => {
            match serde_json::from_str(text.trim()) {
                Ok(read @ (Value::Object(_) | Value::Array(_))) => {
                    meanings.push((RepairKind::JsonInText, read));
                }
                Ok(Value::Number(number)) => {
                    let read = number_in(&number, text);
                    meanings.extend(read.map(|number| (RepairKind::NumberInText, number)));
                }
                Ok(read @ Value::Bool(_)) => meanings.push((RepairKind::BooleanInText, read)),
                _ => {}
            }
            meanings.extend(in_other_case(schema, text).map(|it| (RepairKind::OtherCase, it)));
        }
        // A float has lost how it was written: `1.10` came as `1.1`.
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            meanings.push((RepairKind::TextFromNumber, number.to_string().into()));
        }
        _ => {}
    }
    let says_nothing = match value {
        Value::Null | Value::Array(_) => true,
        Value::String(text) => text.trim().is_empty(),
        _ => false,
    };
    if !says_nothing {
        let list = Value::Array(vec![value.clone()]);
        meanings.push((RepairKind::ListOfOne, list));
    }
    meanings
}

/// The number that a text is, if none of its digits is lost; whole ones as integers.
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
    let whole = (float.abs() < EXACT).then_some(float as i64);
    let only_digits = text.trim().trim_start_matches('-').bytes();
    match whole {
        Some(whole) => Some(whole.into()),
        None if only_digits.into_iter().all(|byte| byte.is_ascii_digit()) => None,
        None => Some(float.into()),
    }
}

/// The one of a schema's values that differs from a text in case alone.
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
