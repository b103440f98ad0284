use quote::quote;
use syn::parse_quote;

use super::*;

// How tools behave is tested where the attribute is used, in `cantle-core`. These tests are about what
// can't be seen there: the crate path in the generated code, and the errors.

#[test]
fn generated_code_uses_the_given_core_path() {
    let functions = [
        quote!(
            async fn f(a: String, cx: ToolContext) -> String {
                a
            }
        ),
        quote!(
            fn f(a: String, cx: ToolContext) -> String {
                a
            }
        ),
    ];
    for function in functions {
        let attribute = quote!(description = "Says it.");
        let expanded = expand(attribute, function, &parse_quote!(::cantle::core));
        let text = expanded.to_string();
        assert!(
            text.contains("\"::cantle::core::private::serde\""),
            "{text}"
        );
        assert!(
            text.contains("\"::cantle::core::private::schemars\""),
            "{text}"
        );
        assert!(
            text.contains(":: cantle :: core :: tool :: DynTool"),
            "{text}"
        );
        assert!(!text.contains("cantle_core"), "{text}");
    }
}

/// Expands `#[tool(attribute)] function`, and returns the errors, each with the text it points at.
#[track_caller]
fn errors(attribute: &str, function: &str) -> Vec<(String, String)> {
    let (attribute, function) = (attribute.parse().unwrap(), function.parse().unwrap());
    let errors = try_expand(attribute, function, &parse_quote!(::cantle_core)).unwrap_err();
    let errors = errors.into_iter();
    errors
        .map(|error| (error.span().source_text().unwrap(), error.to_string()))
        .collect()
}

#[track_caller]
fn assert_error(attribute: &str, function: &str, at: &str, message: &str) {
    let expected = vec![(at.to_owned(), message.to_owned())];
    assert_eq!(errors(attribute, function), expected);
}

#[test]
fn attributes_are_checked() {
    let function = "fn f() -> String { String::new() }";
    assert_error(
        "",
        function,
        "f",
        "a tool needs a description for the model: write a doc comment, or `#[tool(description = \"…\")]`",
    );
    let empty = r#"description = "  ""#;
    assert_error(empty, function, r#""  ""#, "the description is empty");
    assert_error(
        r#"title = "Says it", description = "Says it.""#,
        function,
        "title",
        "unknown key; there are `name`, `description` and `concurrency_safe`",
    );
    assert_error(
        r#"description = "Says it.", description = "Says it again.""#,
        function,
        r#"description = "Says it again.""#,
        "the key is given twice",
    );
    assert_error(
        r#"name = "say it", description = "Says it.""#,
        function,
        r#""say it""#,
        "a tool's name has 1 to 64 of the characters a-z A-Z 0-9 _ -",
    );
    assert_error(
        r#"description = "Says it.""#,
        "fn größe() {}",
        "größe",
        "a tool's name has 1 to 64 of the characters a-z A-Z 0-9 _ -; set it with `#[tool(name = \"…\")]`",
    );
}

#[test]
fn signatures_are_checked() {
    let described = r#"description = "Says it.""#;
    let cases = [
        (
            "fn count(&mut self) {}",
            "&mut self",
            "a tool takes `&self`, because its calls may run at the same time",
        ),
        (
            "fn generic<T: ToString>(value: T) {}",
            "<T: ToString>",
            "a tool can't be generic, because its schema is generated from its argument types",
        ),
        (
            "fn conditional(#[cfg(unix)] text: String) {}",
            "#[cfg(unix)]",
            "an argument of a tool takes doc comments, `#[serde(…)]` and `#[schemars(…)]`",
        ),
        (
            "fn contexts(first: tool::ToolContext, second: tool::ToolContext) {}",
            "second: tool::ToolContext",
            "a tool can have only one `ToolContext`",
        ),
        (
            "unsafe fn dangerous() {}",
            "unsafe",
            "a tool can't be an `unsafe fn`, because a model calls it",
        ),
        ("struct NoFunction;", "struct", "expected `fn`"),
    ];
    for (function, at, message) in cases {
        assert_error(described, function, at, message);
    }
}

#[test]
fn all_errors_of_the_arguments_are_reported() {
    let function = "fn borrowed(text: &str, any: impl ToString, (a, b): (u8, u8)) {}";
    let errors = errors(r#"description = "Says it.""#, function);
    let errors: Vec<_> = errors.iter().map(|(at, it)| (&**at, &**it)).collect();
    let expected = [
        (
            "&str",
            "an argument of a tool must be owned: take a `String` instead of a `&str`, `ToolContext` \
             instead of a reference",
        ),
        (
            "impl ToString",
            "an argument of a tool must have a concrete type, from which its schema is generated",
        ),
        (
            "(a, b)",
            "an argument of a tool must be a plain name, which is the parameter's name",
        ),
    ];
    assert_eq!(errors, expected);
}

#[test]
fn a_condition_is_for_everything_that_a_method_becomes() {
    let method = quote!(
        #[cfg(unix)]
        fn f(&self) -> String {
            String::new()
        }
    );
    let attribute = quote!(description = "Says it.");
    let text = expand(attribute, method, &parse_quote!(::cantle_core)).to_string();
    assert_eq!(text.matches("cfg (unix)").count(), 2, "{text}");
}
