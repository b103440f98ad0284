//! Expansion of `#[tool]`.
//!
//! The function is replaced by one of the same name that returns the tool. The original moves into its
//! body, with a struct whose fields are the parameters.

use proc_macro2::TokenStream;
use quote::{ToTokens as _, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;
use syn::{Attribute, Error, Expr, ExprLit, ItemFn, Lit, LitStr, Meta, Path, Result, ReturnType};

use crate::arguments::{self, Argument};
use crate::options::{self, Options};

/// Expands `#[tool]`; `core` is the path of `cantle-core` in the calling crate.
pub(crate) fn expand(attribute: TokenStream, function: TokenStream, core: &Path) -> TokenStream {
    try_expand(attribute, function, core).unwrap_or_else(Error::into_compile_error)
}

fn try_expand(attribute: TokenStream, function: TokenStream, core: &Path) -> Result<TokenStream> {
    let options = Options::parse(attribute)?;
    let mut function: ItemFn = syn::parse2(function)?;
    check_signature(&function)?;
    let arguments = parse_arguments(&mut function)?;
    let name = name(&options, &function)?;
    let description = description(&options, &function)?;
    let concurrency_safe = options.concurrency_safe;

    // Attributes of the item stay outside; those that affect the body move inside.
    let (outer, inner): (Vec<Attribute>, Vec<Attribute>) = std::mem::take(&mut function.attrs)
        .into_iter()
        .partition(|attribute| {
            ["doc", "cfg", "deprecated"]
                .iter()
                .any(|name| attribute.path().is_ident(name))
        });
    function.attrs = inner;
    let visibility = std::mem::replace(&mut function.vis, syn::Visibility::Inherited);
    let ident = function.sig.ident.clone();
    let is_method = arguments
        .iter()
        .any(|argument| matches!(argument, Argument::Receiver));

    let params = params(&arguments, core);
    let values = arguments.iter().filter_map(|argument| match argument {
        Argument::Field { name, .. } => Some(quote!(__params.#name)),
        Argument::Context => Some(quote!(__cx)),
        Argument::Receiver => None,
    });
    // A function moves into its replacement. A method can't, and gets another name beside it.
    let (called, receiver, bind, clone) = if is_method {
        function.sig.ident = quote::format_ident!("__tool_{}", ident.unraw());
        let method = &function.sig.ident;
        (
            quote!(__this.#method),
            quote!(self: &::std::sync::Arc<Self>),
            quote!(let __this = ::std::sync::Arc::clone(self);),
            quote!(let __this = ::std::sync::Arc::clone(&__this);),
        )
    } else {
        (quote!(#ident), quote!(), quote!(), quote!())
    };
    // Errors about the return type point at that type.
    let at_output = match &function.sig.output {
        ReturnType::Type(_, ty) => ty.span(),
        ReturnType::Default => ident.span(),
    };
    let into_result = quote_spanned! {at_output=> {
        #[allow(unused_imports, reason = "the type of the value chooses among them")]
        use #core::tool::returned::{
            AnyErrorResult as _, JsonValue as _, NoResult as _, OutputValue as _, Returned, ToolErrorResult as _,
        };
        match (&&&Returned::new(__returned)).result() {
            ::core::result::Result::Ok(__value) => (&&Returned::new(__value)).output(),
            ::core::result::Result::Err(__error) => ::core::result::Result::Err(__error),
        }
    }};

    let tool = if function.sig.asyncness.is_some() {
        quote! {
            #core::tool::DynTool::from_fn(
                #name,
                #description,
                move |__params: __Params, __cx: #core::tool::ToolContext| {
                    #clone
                    async move {
                        let __returned = #called(#(#values),*).await;
                        #into_result
                    }
                },
            )
        }
    } else {
        quote! {
            #core::tool::DynTool::blocking(
                #name,
                #description,
                move |__params: __Params, __cx: #core::tool::ToolContext| {
                    let __returned = #called(#(#values),*);
                    #into_result
                },
            )
        }
    };

    // Not `expect`: most functions break none of these rules.
    let function = quote! {
        #[allow(
            clippy::needless_pass_by_value,
            clippy::too_many_arguments,
            clippy::unused_async,
            reason = "a tool's signature follows from its parameters"
        )]
        #function
    };
    let conditions = outer.iter().filter(|it| it.path().is_ident("cfg"));
    let (beside, inside) = if is_method {
        (quote!(#(#conditions)* #function), quote!())
    } else {
        (quote!(), function)
    };
    Ok(quote! {
        #(#outer)*
        #visibility fn #ident(#receiver) -> #core::tool::DynTool {
            #inside

            #params

            #bind
            #tool.with_concurrency_safe(#concurrency_safe)
        }

        #beside
    })
}

fn check_signature(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    let refuse = |tokens: TokenStream, message: &str| Err(Error::new_spanned(tokens, message));
    if let Some(token) = &signature.constness {
        return refuse(token.to_token_stream(), "a tool can't be a `const fn`");
    }
    if let syn::Safety::Unsafe(token) = &signature.safety {
        return refuse(
            token.to_token_stream(),
            "a tool can't be an `unsafe fn`, because a model calls it",
        );
    }
    if let Some(abi) = &signature.abi {
        return refuse(abi.to_token_stream(), "a tool must use the Rust ABI");
    }
    let generics = &signature.generics;
    if !generics.params.is_empty() {
        return refuse(
            generics.to_token_stream(),
            "a tool can't be generic, because its schema is generated from its argument types",
        );
    }
    if let Some(clause) = &generics.where_clause {
        return refuse(clause.to_token_stream(), "a tool can't be generic");
    }
    Ok(())
}

/// Parses all arguments, or returns all errors.
fn parse_arguments(function: &mut ItemFn) -> Result<Vec<Argument>> {
    let mut arguments = Vec::new();
    let mut errors: Option<Error> = None;
    let mut fail = |error: Error| match &mut errors {
        Some(errors) => errors.combine(error),
        None => errors = Some(error),
    };
    let mut has_context = false;
    for input in &mut function.sig.inputs {
        match arguments::parse(input) {
            Ok(Argument::Context) if has_context => {
                fail(Error::new_spanned(
                    input,
                    "a tool can have only one `ToolContext`",
                ));
            }
            Ok(argument) => {
                has_context |= matches!(argument, Argument::Context);
                arguments.push(argument);
            }
            Err(error) => fail(error),
        }
    }
    errors.map_or(Ok(arguments), Err)
}

fn params(arguments: &[Argument], core: &Path) -> TokenStream {
    let fields = arguments.iter().filter_map(|argument| match argument {
        Argument::Field {
            name,
            ty,
            attributes,
        } => Some(quote!(#(#attributes)* #name: #ty)),
        Argument::Context | Argument::Receiver => None,
    });
    let path = |name: &str| format!("{}::private::{name}", core.to_token_stream()).replace(' ', "");
    let (serde, schemars) = (path("serde"), path("schemars"));
    quote! {
        #[derive(#core::private::serde::Deserialize, #core::private::schemars::JsonSchema)]
        #[serde(crate = #serde)]
        #[schemars(crate = #schemars)]
        struct __Params {
            #(#fields),*
        }
    }
}

fn name(options: &Options, function: &ItemFn) -> Result<LitStr> {
    if let Some(name) = &options.name {
        return Ok(name.clone());
    }
    let ident = &function.sig.ident;
    let name = ident.unraw().to_string();
    options::check_name(&name).map_err(|message| {
        Error::new(
            ident.span(),
            format!("{message}; set it with `#[tool(name = \"…\")]`"),
        )
    })?;
    Ok(LitStr::new(&name, ident.span()))
}

/// Returns the description: the option, or the function's doc comment.
fn description(options: &Options, function: &ItemFn) -> Result<String> {
    if let Some(description) = &options.description {
        return Ok(description.value());
    }
    let lines: Vec<String> = function.attrs.iter().filter_map(doc_line).collect();
    let text = lines.join("\n").trim().to_owned();
    if text.is_empty() {
        return Err(Error::new(
            function.sig.ident.span(),
            "a tool needs a description for the model: write a doc comment, or `#[tool(description = \"…\")]`",
        ));
    }
    Ok(text)
}

fn doc_line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(meta) = &attribute.meta else {
        return None;
    };
    match &meta.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(line),
            ..
        }) if meta.path.is_ident("doc") => {
            let line = line.value();
            Some(
                line.strip_prefix(' ')
                    .unwrap_or(&line)
                    .trim_end()
                    .to_owned(),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
