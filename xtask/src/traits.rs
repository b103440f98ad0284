//! Public traits can be wrapped: no method has a default that a wrapper could forget, and pointers forward them.

use anyhow::Result;
use syn::{Item, ItemTrait, TraitItem, TypeParamBound, Visibility};

use crate::source;

/// Traits whose methods have defaults.
const WITH_DEFAULTS: [&str; 4] = [
    // Its methods are independent: one that is missing decides nothing.
    "Hooks",
    // For one backend's commands, or one wire protocol: they have no wrappers.
    "Transport",
    "TurnAssembler",
    "WireProtocol",
];

/// Traits that `auto_impl` can't forward.
const FORWARDED_BY_HAND: [&str; 1] = [
    // Closing consumes it.
    "ToolSet",
];

pub fn check() -> Result<()> {
    source::check("public traits are hard to wrap", |source| {
        let items = source.modules.iter().flat_map(|module| &module.items);
        let violations = items.filter_map(|item| match item {
            Item::Trait(item) => violation(item),
            _ => None,
        });
        violations.collect()
    })
}

fn violation(item: &ItemTrait) -> Option<String> {
    let name = item.ident.to_string();
    if !matches!(item.vis, Visibility::Public(_)) || is_sealed(item) {
        return None;
    }
    let mut methods = item.items.iter().filter_map(|item| match item {
        TraitItem::Fn(method) if method.default.is_some() => Some(&method.sig.ident),
        _ => None,
    });
    if let Some(method) = methods.next()
        && !WITH_DEFAULTS.contains(&name.as_str())
    {
        return Some(format!("{name}::{method} has a default"));
    }
    let has = |name| item.attrs.iter().any(|it| it.path().is_ident(name));
    let is_forwarded = has("auto_impl") || FORWARDED_BY_HAND.contains(&name.as_str());
    (has("async_trait") && !is_forwarded)
        .then(|| format!("{name} is not forwarded through pointers: use `auto_impl`"))
}

/// Whether other crates can't implement the trait.
fn is_sealed(item: &ItemTrait) -> bool {
    item.supertraits.iter().any(|bound| {
        matches!(bound, TypeParamBound::Trait(bound)
            if bound.path.segments.iter().any(|it| it.ident == "sealed"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation_of(source: &str) -> Option<String> {
        violation(&syn::parse_str(source).unwrap())
    }

    #[test]
    fn defaults_and_missing_forwarding_are_reported() {
        let wrapped = "#[async_trait] #[auto_impl(Arc)] pub trait A { async fn a(&self); }";
        assert_eq!(violation_of(wrapped), None);
        assert_eq!(violation_of("trait A { fn a(&self) {} }"), None);
        assert_eq!(
            violation_of("pub trait A: sealed::B { fn a(&self) {} }"),
            None
        );
        let default = violation_of("pub trait A { fn a(&self); fn b(&self) {} }");
        assert_eq!(default.as_deref(), Some("A::b has a default"));
        let missing = violation_of("#[async_trait] pub trait A { async fn a(&self); }");
        assert!(missing.unwrap().starts_with("A is not forwarded"));
    }
}
