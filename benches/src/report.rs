//! The table of measurements.

use std::fmt;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    /// Allowed range, if there is a goal.
    goal: Option<(f64, f64)>,
}

impl Report {
    pub(crate) fn add(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.rows.push(Row {
            what: what.into(),
            value,
            unit,
            goal: None,
        });
    }

    pub(crate) fn at_most(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        most: f64,
    ) {
        self.between(what, value, unit, (f64::NEG_INFINITY, most));
    }

    pub(crate) fn at_least(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        least: f64,
    ) {
        self.between(what, value, unit, (least, f64::INFINITY));
    }

    pub(crate) fn between(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        range: (f64, f64),
    ) {
        self.rows.push(Row {
            what: what.into(),
            value,
            unit,
            goal: Some(range),
        });
    }

    /// Returns the report as JSON, after the rows of an earlier one that it does not have.
    pub(crate) fn to_json(&self, earlier: &Value) -> Result<String> {
        let earlier = earlier["rows"].as_array().into_iter().flatten();
        let is_kept = |row: &&Value| !self.rows.iter().any(|own| row["what"] == *own.what);
        let mut rows: Vec<Value> = earlier.filter(is_kept).cloned().collect();
        for row in &self.rows {
            rows.push(serde_json::to_value(row)?);
        }
        Ok(serde_json::to_string_pretty(&json!({ "rows": rows }))?)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row {
            what,
            value,
            unit,
            goal,
        } in &self.rows
        {
            write!(f, "{what:<52} {value:>10.3} {unit:<4}")?;
            if let Some((least, most)) = goal {
                let verdict = if (*least..=*most).contains(value) {
                    "ok"
                } else {
                    "MISSED"
                };
                let range = if *least <= 0.0 {
                    format!("≤ {most}")
                } else if most.is_infinite() {
                    format!("≥ {least}")
                } else {
                    format!("{least} … {most}")
                };
                write!(f, "  goal {range} {unit}  {verdict}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_areas_stay() {
        let mut earlier = Report::default();
        earlier.add("one", 1.0, "s");
        earlier.at_most("two", 2.0, "MB", 5.0);
        let earlier = earlier.to_json(&Value::Null).unwrap();
        let mut report = Report::default();
        report.add("one", 3.0, "s");
        let merged = report.to_json(&serde_json::from_str(&earlier).unwrap());
        let merged: Value = serde_json::from_str(&merged.unwrap()).unwrap();
        let expected = json!({"rows": [
            {"what": "two", "value": 2.0, "unit": "MB", "goal": [null, 5.0]},
            {"what": "one", "value": 3.0, "unit": "s", "goal": null},
        ]});
        assert_eq!(merged, expected);
    }
}
