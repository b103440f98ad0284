//! The facade crate re-exports and does nothing else.

use anyhow::{Context, Result};
use syn::{Attribute, Item, Meta};

use crate::workspace;

/// What in the facade's source is more than a re-export.
pub fn violations() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for path in workspace::files(&workspace::root().join("crates/cantle/src"))? {
        let source = std::fs::read_to_string(&path)?;
        let file = syn::parse_file(&source)
            .with_context(|| format!("failed to parse {}", path.display()))?;
        let extra = more_than_reexports(&file.items);
        wrong.extend(
            extra
                .iter()
                .map(|what| format!("the facade has {what}, not only re-exports")),
        );
    }
    Ok(wrong)
}

fn more_than_reexports(items: &[Item]) -> Vec<String> {
    let mut extra = Vec::new();
    for item in items {
        match item {
            Item::Use(_) => {}
            Item::Mod(module) => {
                let inside = module.content.as_ref().map(|(_, items)| items.as_slice());
                extra.extend(more_than_reexports(inside.unwrap_or_default()));
            }
            // The usual way to have the README's code tested.
            Item::Struct(item) if item.attrs.iter().any(is_for_doctests) => {}
            Item::Struct(item) => extra.push(format!("struct {}", item.ident)),
            Item::Enum(item) => extra.push(format!("enum {}", item.ident)),
            Item::Fn(item) => extra.push(format!("fn {}", item.sig.ident)),
            Item::Trait(item) => extra.push(format!("trait {}", item.ident)),
            Item::Type(item) => extra.push(format!("type {}", item.ident)),
            Item::Impl(_) => extra.push("an impl".to_owned()),
            _ => extra.push("an item".to_owned()),
        }
    }
    extra
}

fn is_for_doctests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else {
        return false;
    };
    list.path.is_ident("cfg") && list.tokens.to_string() == "doctest"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(source: &str) -> Vec<String> {
        more_than_reexports(&syn::parse_file(source).unwrap().items)
    }

    #[test]
    fn reexports_and_tested_docs_are_no_code() {
        let source = "//! Docs.\n\
                      pub use cantle_core::*;\n\
                      #[cfg(feature = \"agent\")]\n\
                      pub mod agent { pub use cantle_agent::{Agent, Session}; }\n\
                      #[doc = \"\"] #[cfg(doctest)] struct Readme;\n";
        assert_eq!(extra(source), [""; 0]);
    }

    #[test]
    fn code_is_found_also_in_modules() {
        let source = "pub struct Options; impl Options {} pub mod inner { pub fn help() {} }";
        assert_eq!(extra(source), ["struct Options", "an impl", "fn help"]);
    }
}
