//! No import cycles between sibling modules.
//!
//! An edge runs from a module to a sibling when a `use` anywhere below the one resolves to an item below
//! the other. Names that a common parent re-exports resolve to where they are defined; what a
//! parent imports from its children is no edge, and neither is what tests import.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use syn::visit::Visit;
use syn::{Item, ItemFn, ItemUse, UseTree};

use crate::source::{self, Crate, Module};

/// Re-exports followed for one name; more would be a loop.
const MAX_REEXPORTS: usize = 16;

pub fn check() -> Result<()> {
    source::check("modules import each other in a circle", cycles)
}

/// One name that a `use` binds.
#[derive(Clone)]
struct Import {
    segments: Vec<String>,
    /// The bound name; `None` for a glob.
    name: Option<String>,
}

type Graph = BTreeMap<Vec<String>, BTreeMap<Vec<String>, String>>;

/// Returns one description per group of modules that reach each other.
fn cycles(source: &Crate) -> Vec<String> {
    let mut graph = Graph::new();
    for module in &source.modules {
        let mut imports = Imports(Vec::new());
        for item in &module.items {
            imports.visit_item(item);
        }
        for import in imports.0 {
            let Some(target) = resolve(source, &module.path, &import.segments, MAX_REEXPORTS)
            else {
                continue;
            };
            let pairs = module.path.iter().zip(&target);
            let common = pairs.take_while(|(one, other)| one == other).count();
            if let (Some(from), Some(to)) = (module.path.get(..=common), target.get(..=common)) {
                let reason = format!("{} uses {}", module.display(), import.segments.join("::"));
                graph
                    .entry(from.to_vec())
                    .or_default()
                    .entry(to.to_vec())
                    .or_insert(reason);
            }
        }
    }
    let reachable: BTreeMap<_, _> = graph
        .keys()
        .map(|node| (node, reachable(&graph, node)))
        .collect();
    let groups = reachable.iter().map(|(node, targets)| {
        let is_mutual = |target: &&Vec<String>| {
            let back = reachable.get(*target);
            back.is_some_and(|back| back.contains(*node))
        };
        targets.iter().filter(is_mutual).collect::<Vec<_>>()
    });
    // Each module of a group has the same one.
    let groups: BTreeSet<_> = groups.filter(|group| !group.is_empty()).collect();
    let described = groups.iter().map(|group| {
        let names: Vec<String> = group.iter().map(|path| path.join("::")).collect();
        let edges = group.iter().flat_map(|from| {
            let targets = graph.get(*from).into_iter().flatten();
            targets
                .filter(move |(to, _)| group.contains(to))
                .map(move |(to, reason)| {
                    format!("\n    {} → {}: {reason}", from.join("::"), to.join("::"))
                })
        });
        format!("{}{}", names.join(", "), edges.collect::<String>())
    });
    described.collect()
}

fn reachable(graph: &Graph, from: &[String]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_vec()];
    while let Some(node) = open.pop() {
        for target in graph.get(&node).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(target.clone()) {
                open.push(target.clone());
            }
        }
    }
    found
}

/// Returns the module in which the last segment of a path used in `from` is defined.
fn resolve(
    source: &Crate,
    from: &[String],
    segments: &[String],
    depth: usize,
) -> Option<Vec<String>> {
    let (first, mut rest) = segments.split_first()?;
    let mut module = from.to_vec();
    match first.as_str() {
        "crate" => module.clear(),
        "self" => {}
        "super" => {
            module.pop();
            while let Some(("super", after)) = rest
                .split_first()
                .map(|(word, after)| (word.as_str(), after))
            {
                module.pop();
                rest = after;
            }
        }
        _ => rest = segments,
    }
    let is_relative = rest.len() == segments.len();
    for (index, segment) in rest.iter().enumerate() {
        let mut child = module.clone();
        child.push(segment.clone());
        if source.module(&child).is_some() {
            module = child;
            continue;
        }
        let binding = source
            .module(&module)
            .and_then(|module| binding(module, segment));
        let Some(import) = binding else {
            // A relative path that names nothing here begins with another crate.
            return (index > 0 || !is_relative).then_some(module);
        };
        let mut segments = import.segments;
        segments.extend_from_slice(&rest[index + 1..]);
        // A name bound to itself comes from another crate of that name.
        if depth == 0 || (is_relative && index == 0 && segments == rest) {
            return None;
        }
        return resolve(source, &module, &segments, depth - 1);
    }
    Some(module)
}

/// Returns the import that binds a name in a module.
fn binding(module: &Module, name: &str) -> Option<Import> {
    let imports = module.items.iter().filter_map(|item| match item {
        Item::Use(item) => Some(flatten(&item.tree, Vec::new())),
        _ => None,
    });
    imports
        .flatten()
        .find(|import| import.name.as_deref() == Some(name))
}

struct Imports(Vec<Import>);

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.0.extend(flatten(&item.tree, Vec::new()));
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !source::is_test(&item.attrs) {
            syn::visit::visit_item_fn(self, item);
        }
    }
}

/// Returns the imports of a tree whose path so far is `segments`.
fn flatten(tree: &UseTree, mut segments: Vec<String>) -> Vec<Import> {
    let name = match tree {
        UseTree::Group(group) => {
            let trees = group.items.iter();
            return trees
                .flat_map(|tree| flatten(tree, segments.clone()))
                .collect();
        }
        UseTree::Path(path) => {
            segments.push(path.ident.to_string());
            return flatten(&path.tree, segments);
        }
        UseTree::Glob(_) => None,
        UseTree::Name(name) if name.ident == "self" => None,
        UseTree::Name(name) => Some((&name.ident, &name.ident)),
        UseTree::Rename(renamed) => Some((&renamed.ident, &renamed.rename)),
    };
    segments.extend(name.map(|(ident, _)| ident.to_string()));
    let name = name.map(|(_, bound)| bound.to_string());
    vec![Import { segments, name }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let groups = cycles(&Crate::parse("example", sources));
        let names = groups
            .iter()
            .map(|group| group.lines().next().unwrap().to_owned());
        names.collect()
    }

    #[test]
    fn modules_that_import_each_other_are_a_cycle() {
        let sources = [
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B; use std::fs;"),
            ("b", "fn f() { use super::c::{self, C}; }"),
            ("c", "use crate::a::*;"),
        ];
        assert_eq!(found(&sources), ["a, b, c"]);
        assert_eq!(found(&sources[..3]), [""; 0]);
    }

    #[test]
    fn names_of_a_parent_resolve_to_their_definition() {
        let sources = [
            ("", "mod p;"),
            (
                "p",
                "mod a; mod b; pub use a::A; use self::b::B as Renamed; struct Own;",
            ),
            ("p::a", "use super::{Own, Renamed};"),
            ("p::b", "use super::A;"),
        ];
        assert_eq!(found(&sources), ["p::a, p::b"]);
    }

    #[test]
    fn parents_and_their_children_are_no_siblings() {
        let sources = [
            ("", "mod p;"),
            ("p", "mod a; use a::A; use serde::Serialize; struct Own;"),
            (
                "p::a",
                "use super::{Own, Serialize}; use crate::p; use serde::Deserialize;",
            ),
        ];
        assert_eq!(found(&sources), [""; 0]);
    }
}
