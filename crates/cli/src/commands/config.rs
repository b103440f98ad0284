//! `cantle config`: every setting, its value, and where it comes from.

use std::fmt::Write as _;

use cantle::core::escape::for_decision;
use serde_json::{Map, Value, json};

use super::print;
use crate::args::ConfigArgs;
use crate::exit::{Failure, FailureExt as _};
use crate::settings::file::{default_of, names};
use crate::settings::layers::Layers;

/// Performs the command, and returns the exit code.
pub(crate) fn perform(args: &ConfigArgs) -> Result<u8, Failure> {
    let layers = Layers::with_files(&args.settings).usage()?;
    let values = layers.merged();
    let names = names();
    if args.json {
        let entry = |name: &String| {
            let origin = layers.origin(name).filter(|_| values.contains_key(name));
            let value = values.get(name);
            let entry = json!({"value": value, "origin": origin.map(|origin| origin.to_string())});
            (name.clone(), entry)
        };
        let settings: Map<String, Value> = names.iter().map(entry).collect();
        let config = json!({"settings": settings, "ignored": layers.ignored});
        print(format!("{config:#}\n"))?;
        return Ok(0);
    }
    let mut text = String::new();
    for name in names {
        match (values.get(&name), layers.origin(&name)) {
            (Some(value), Some(origin)) => {
                let value = for_decision(&value.to_string());
                let _ = writeln!(text, "{name} = {value}  # {origin}");
            }
            _ => {
                let default = default_of(&name).map(|default| format!(" = {default}"));
                let _ = writeln!(text, "# {name}{}", default.unwrap_or_default());
            }
        }
    }
    if let Some(ignored) = &layers.ignored {
        let _ = writeln!(text, "\n# {}", for_decision(ignored));
    }
    print(&text)?;
    Ok(0)
}
