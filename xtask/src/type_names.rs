//! Type names are unique within their crate, so that they can be searched for.

use std::collections::BTreeMap;

use anyhow::Result;
use syn::{Item, Visibility};

use crate::source::{self, Crate, Module};

/// Names that every module may use for its own.
const COMMON: [&str; 2] = ["Error", "Builder"];

/// Types of which each operating system has its own.
const PER_SYSTEM: (&str, &[&str]) = (
    "cantle-backends-local",
    &["CommandProcess", "Engine", "ProcessReports", "StartMark"],
);

pub fn check() -> Result<()> {
    source::check("types of one crate share a name", |source| {
        let mut repeated = repeated(source);
        if source.name == PER_SYSTEM.0 {
            repeated.retain(|name, _| !PER_SYSTEM.1.contains(&name.as_str()));
        }
        let lines = repeated.iter();
        lines
            .map(|(name, modules)| format!("{name} in {}", modules.join(", ")))
            .collect()
    })
}

/// Returns the type names that several modules declare, with those modules.
fn repeated(source: &Crate) -> BTreeMap<String, Vec<String>> {
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for module in &source.modules {
        for name in types(module) {
            declared.entry(name).or_default().push(module.display());
        }
    }
    declared.retain(|name, modules| modules.len() > 1 && !COMMON.contains(&name.as_str()));
    declared
}

/// Returns the types that a module declares for others.
fn types(module: &Module) -> impl Iterator<Item = String> {
    module.items.iter().filter_map(|item| {
        let (visibility, name) = match item {
            Item::Enum(item) => (&item.vis, &item.ident),
            Item::Struct(item) => (&item.vis, &item.ident),
            Item::Trait(item) => (&item.vis, &item.ident),
            Item::Type(item) => (&item.vis, &item.ident),
            Item::Union(item) => (&item.vis, &item.ident),
            _ => return None,
        };
        (!matches!(visibility, Visibility::Inherited)).then(|| name.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_two_modules_is_reported() {
        let sources = [
            (
                "a",
                "pub struct Call; pub(crate) enum State {} struct Local; pub struct Error;",
            ),
            (
                "b",
                "pub(super) type Call = u8; pub trait State {} struct Local; pub enum Error {}",
            ),
            ("c", "pub struct Alone;"),
        ];
        let repeated = repeated(&Crate::parse("example", &sources));
        assert_eq!(repeated.keys().collect::<Vec<_>>(), ["Call", "State"]);
    }
}
