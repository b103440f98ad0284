//! Attributes that make no sense.

use cantle_core::tool;

#[tool]
fn undescribed() -> String {
    String::new()
}

#[tool(description = "  ")]
fn emptily_described() -> String {
    String::new()
}

#[tool(title = "Says it", description = "Says it.")]
fn unknown_key() -> String {
    String::new()
}

#[tool(name = "say it", description = "Says it.")]
fn bad_name() -> String {
    String::new()
}

#[tool(description = "Says it.", description = "Says it again.")]
fn twice() -> String {
    String::new()
}

/// Says it.
#[tool]
fn größe() -> String {
    String::new()
}

fn main() {}
