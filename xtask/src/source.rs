//! The modules of each crate as syntax trees: the input of the structural checks and of `lines`.
//!
//! Modules compiled only for tests are left out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use syn::{Attribute, Expr, ExprLit, Item, Lit, Meta};

use crate::metadata::Metadata;
use crate::workspace;

/// A crate whose sources are checked.
pub struct Crate {
    pub name: String,
    pub modules: Vec<Module>,
}

/// One module, in a file of its own or inline.
pub struct Module {
    /// Path from the crate root; empty for the root itself.
    pub path: Vec<String>,
    pub file: PathBuf,
    pub items: Vec<Item>,
}

/// Fails with `title` and the violations in all crates.
pub fn check(title: &str, violations: impl Fn(&Crate) -> Vec<String>) -> Result<()> {
    let mut wrong = Vec::new();
    for source in Crate::read_all()? {
        let found = violations(&source).into_iter();
        wrong.extend(found.map(|text| format!("{}: {text}", source.name)));
    }
    ensure!(wrong.is_empty(), "{title}:\n{}", wrong.join("\n"));
    Ok(())
}

impl Crate {
    /// Parses every library and program of the workspace, and the supervisor.
    fn read_all() -> Result<Vec<Crate>> {
        let mut crates = Vec::new();
        for package in Metadata::read()?.packages {
            for root in package.roots() {
                crates.push(Crate::read(package.name.clone(), root)?);
            }
        }
        // Compiled by a build script, so Cargo does not list it.
        let supervisor = workspace::root().join("crates/supervisor/program/main.rs");
        crates.push(Crate::read(
            "cantle-supervisor program".to_owned(),
            &supervisor,
        )?);
        Ok(crates)
    }

    fn read(name: String, root: &Path) -> Result<Crate> {
        let mut modules = Vec::new();
        let directory = root.parent().context("a source file has a directory")?;
        read_file(Vec::new(), root, directory, &mut modules)?;
        Ok(Crate { name, modules })
    }

    #[cfg(test)]
    pub fn parse(name: &str, sources: &[(&str, &str)]) -> Crate {
        let module = |(path, source): &(&str, &str)| Module {
            path: path
                .split("::")
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
            file: PathBuf::from(path.replace("::", "/")),
            items: syn::parse_file(source).unwrap().items,
        };
        Crate {
            name: name.to_owned(),
            modules: sources.iter().map(module).collect(),
        }
    }

    pub fn module(&self, path: &[String]) -> Option<&Module> {
        self.modules.iter().find(|module| module.path == path)
    }
}

impl Module {
    /// Returns the file relative to the workspace root.
    pub fn display(&self) -> String {
        let relative = self
            .file
            .strip_prefix(workspace::root())
            .unwrap_or(&self.file);
        relative.display().to_string()
    }
}

fn read_file(
    path: Vec<String>,
    file: &Path,
    children: &Path,
    modules: &mut Vec<Module>,
) -> Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
    let syntax =
        syn::parse_file(&text).with_context(|| format!("failed to parse {}", file.display()))?;
    add(path, file, children, syntax.items, modules)
}

/// Adds a module and those declared in it. `children` is the directory of their files.
fn add(
    path: Vec<String>,
    file: &Path,
    children: &Path,
    items: Vec<Item>,
    modules: &mut Vec<Module>,
) -> Result<()> {
    let mut rest = Vec::new();
    for item in items {
        let Item::Mod(declared) = item else {
            if !is_test(attributes(&item)) {
                rest.push(item);
            }
            continue;
        };
        if is_test(&declared.attrs) {
            continue;
        }
        let name = declared.ident.to_string();
        let mut child = path.clone();
        child.push(name.clone());
        if let Some((_, items)) = declared.content {
            add(child, file, &children.join(&name), items, modules)?;
        } else if let Some(elsewhere) = path_attribute(&declared.attrs) {
            let directory = file.parent().context("a source file has a directory")?;
            let file = directory.join(elsewhere);
            read_file(child, &file, &file.with_extension(""), modules)?;
        } else {
            let directory = children.join(&name);
            let flat = directory.with_extension("rs");
            let nested = directory.join("mod.rs");
            match [flat, nested].iter().find(|file| file.exists()) {
                Some(file) => read_file(child, file, &directory, modules)?,
                None => bail!("{} declares {name}, which has no file", file.display()),
            }
        }
    }
    modules.push(Module {
        path,
        file: file.to_owned(),
        items: rest,
    });
    Ok(())
}

/// Whether the attributes exclude an item from ordinary builds.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test ,")
        }
        _ => false,
    })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let path = attributes.iter().find(|it| it.path().is_ident("path"))?;
    match &path.meta.require_name_value().ok()?.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
