use quote::quote;
use syn::parse_quote;

use super::*;

/// Behaviour is tested where the attribute is used, in `cantle-core`. Here is what can't be seen
/// there: that the generated code knows no other path to that crate than the one it was given.
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
