//! The arguments of a function under `#[tool]`: parameters and the context.

use syn::{Attribute, Error, FnArg, Ident, Pat, PatType, Receiver, ReceiverKind, Result, Type};

pub(crate) enum Argument {
    /// A field of the parameters.
    Field {
        name: Ident,
        ty: Box<Type>,
        /// Attributes for the field, which a function argument must not have.
        attributes: Vec<Attribute>,
    },
    /// The call's context.
    Context,
    /// `&self`.
    Receiver,
}

/// Parses an argument and removes the attributes that Rust allows on fields only.
pub(crate) fn parse(input: &mut FnArg) -> Result<Argument> {
    let input = match input {
        FnArg::Typed(input) => input,
        FnArg::Receiver(receiver) if is_shared_reference(receiver) => {
            return Ok(Argument::Receiver);
        }
        FnArg::Receiver(receiver) => {
            return Err(Error::new_spanned(
                receiver,
                "a tool takes `&self`, because its calls may run at the same time",
            ));
        }
    };
    let attributes = take_field_attributes(input)?;
    if is_context(&input.ty) {
        return Ok(Argument::Context);
    }
    Ok(Argument::Field {
        name: name(&input.pat)?,
        ty: owned(&input.ty)?,
        attributes,
    })
}

fn is_shared_reference(receiver: &Receiver) -> bool {
    matches!(receiver.kind, ReceiverKind::Reference(_, _, None))
}

fn take_field_attributes(input: &mut PatType) -> Result<Vec<Attribute>> {
    const FIELD_ATTRIBUTES: [&str; 3] = ["doc", "serde", "schemars"];
    const LINT_ATTRIBUTES: [&str; 5] = ["allow", "expect", "warn", "deny", "forbid"];
    let is_one_of = |attribute: &Attribute, names: &[&str]| {
        names.iter().any(|name| attribute.path().is_ident(name))
    };
    let (field, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut input.attrs)
        .into_iter()
        .partition(|attribute| is_one_of(attribute, &FIELD_ATTRIBUTES));
    if let Some(other) = rest
        .iter()
        .find(|attribute| !is_one_of(attribute, &LINT_ATTRIBUTES))
    {
        return Err(Error::new_spanned(
            other,
            "an argument of a tool takes doc comments, `#[serde(…)]` and `#[schemars(…)]`",
        ));
    }
    input.attrs = rest;
    Ok(field)
}

fn is_context(ty: &Type) -> bool {
    let Type::Path(ty) = ty else {
        return false;
    };
    let last = ty.path.segments.last();
    ty.qself.is_none() && last.is_some_and(|segment| segment.ident == "ToolContext")
}

fn name(pattern: &Pat) -> Result<Ident> {
    match pattern {
        Pat::Ident(pattern) if pattern.by_ref.is_none() && pattern.subpat.is_none() => {
            Ok(pattern.ident.clone())
        }
        other => Err(Error::new_spanned(
            other,
            "an argument of a tool must be a plain name, which is the parameter's name",
        )),
    }
}

fn owned(ty: &Type) -> Result<Box<Type>> {
    match ty {
        Type::Reference(_) => Err(Error::new_spanned(
            ty,
            "an argument of a tool must be owned: take a `String` instead of a `&str`, `ToolContext` instead of a reference",
        )),
        Type::ImplTrait(_) => Err(Error::new_spanned(
            ty,
            "an argument of a tool must have a concrete type, from which its schema is generated",
        )),
        ty => Ok(Box::new(ty.clone())),
    }
}
