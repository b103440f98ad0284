//! The facade crate contains only re-exports, and the default tools: no other crate has them all.

use anyhow::{Context, Result};
use syn::Item;

use crate::workspace;

/// Returns a description of each item in the facade that is not a re-export.
pub fn violations() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for path in workspace::files(&workspace::root().join("crates/cantle/src"))? {
        let source = std::fs::read_to_string(&path)?;
        let file = syn::parse_file(&source)
            .with_context(|| format!("failed to parse {}", path.display()))?;
        let extra = other_items(&file.items);
        wrong.extend(
            extra
                .iter()
                .map(|item| format!("the facade contains {item}, but only re-exports are allowed")),
        );
    }
    Ok(wrong)
}

fn other_items(items: &[Item]) -> Vec<String> {
    let mut extra = Vec::new();
    for item in items {
        match item {
            Item::Use(_) => {}
            Item::Mod(module) => {
                let inside = module.content.as_ref().map(|(_, items)| items.as_slice());
                extra.extend(other_items(inside.unwrap_or_default()));
            }
            Item::Struct(item) => extra.push(format!("struct {}", item.ident)),
            Item::Enum(item) => extra.push(format!("enum {}", item.ident)),
            Item::Fn(item) if item.sig.ident == "default_tools" => {}
            Item::Fn(item) => extra.push(format!("fn {}", item.sig.ident)),
            Item::Trait(item) => extra.push(format!("trait {}", item.ident)),
            Item::Type(item) => extra.push(format!("type {}", item.ident)),
            Item::Impl(_) => extra.push("an impl".to_owned()),
            _ => extra.push("an item".to_owned()),
        }
    }
    extra
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(source: &str) -> Vec<String> {
        other_items(&syn::parse_file(source).unwrap().items)
    }

    #[test]
    fn reexports_guides_and_default_tools_are_allowed() {
        let source = "//! Docs.\n\
                      pub use cantle_core::*;\n\
                      #[cfg(feature = \"agent\")]\n\
                      pub mod agent { pub use cantle_agent::{Agent, Session}; }\n\
                      pub fn default_tools() -> (CodeExec, WebTools) {}\n\
                      #[cfg(doctest)] mod guides { #[doc = \"\"] mod readme {} }\n";
        assert_eq!(extra(source), [""; 0]);
    }

    #[test]
    fn items_in_inline_modules_are_found() {
        let source = "pub struct Options; impl Options {} pub mod inner { pub fn help() {} }";
        assert_eq!(extra(source), ["struct Options", "an impl", "fn help"]);
    }
}
