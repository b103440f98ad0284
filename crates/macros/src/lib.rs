//! The `#[tool]` attribute of Cantle, which turns a function into a tool. Used through `cantle-core`
//! and the `cantle` facade, which determine the crate path in the generated code.

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
