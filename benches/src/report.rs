//! The table of measurements.

use std::fmt;

use anyhow::Result;
use serde::Serialize;

#[derive(Default, Serialize)]
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
        self.rows.push(Row {
            what: what.into(),
            value,
            unit,
            goal: Some((f64::NEG_INFINITY, most)),
        });
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

    pub(crate) fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
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
