//! Options of `#[tool(…)]`.

use proc_macro2::TokenStream;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser as _;
use syn::{Error, LitStr, Result};

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) name: Option<LitStr>,
    pub(crate) description: Option<LitStr>,
    pub(crate) concurrency_safe: bool,
}

impl Options {
    pub(crate) fn parse(attribute: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        syn::meta::parser(|key| options.take(&key)).parse2(attribute)?;
        Ok(options)
    }

    fn take(&mut self, key: &ParseNestedMeta<'_>) -> Result<()> {
        if key.path.is_ident("name") {
            let name: LitStr = key.value()?.parse()?;
            check_name(&name.value()).map_err(|message| Error::new(name.span(), message))?;
            set_once(&mut self.name, name, key)
        } else if key.path.is_ident("description") {
            let description: LitStr = key.value()?.parse()?;
            if description.value().trim().is_empty() {
                return Err(Error::new(description.span(), "the description is empty"));
            }
            set_once(&mut self.description, description, key)
        } else if key.path.is_ident("concurrency_safe") {
            self.concurrency_safe = true;
            Ok(())
        } else {
            Err(key.error("unknown key; there are `name`, `description` and `concurrency_safe`"))
        }
    }
}

fn set_once(option: &mut Option<LitStr>, value: LitStr, key: &ParseNestedMeta<'_>) -> Result<()> {
    if option.replace(value).is_some() {
        return Err(key.error("the key is given twice"));
    }
    Ok(())
}

/// Checks that a tool's name is accepted by every model provider.
pub(crate) fn check_name(name: &str) -> std::result::Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
        return Err("a tool's name has 1 to 64 of the characters a-z A-Z 0-9 _ -");
    }
    Ok(())
}
