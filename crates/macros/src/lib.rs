//! The `#[tool]` attribute of Cantle: makes a tool of a function. Used through `cantle-core` and
//! the `cantle` facade, which name the crate that the generated code refers to.

mod arguments;
mod options;
mod tool;

use proc_macro::TokenStream;

/// `#[tool]` for crates that depend on `cantle-core`; documented there.
#[proc_macro_attribute]
pub fn tool(attribute: TokenStream, function: TokenStream) -> TokenStream {
    tool::expand(
        attribute.into(),
        function.into(),
        &syn::parse_quote!(::cantle_core),
    )
    .into()
}

/// `#[tool]` for crates that depend on the `cantle` facade; documented there.
#[proc_macro_attribute]
pub fn tool_for_facade(attribute: TokenStream, function: TokenStream) -> TokenStream {
    tool::expand(
        attribute.into(),
        function.into(),
        &syn::parse_quote!(::cantle::core),
    )
    .into()
}
