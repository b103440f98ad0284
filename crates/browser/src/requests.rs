//! The tools' parameters.

use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct NoParameters {}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Search {
    /// The query.
    pub(crate) query: String,
    /// The search engine.
    #[serde(default)]
    pub(crate) engine: Engine,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    #[default]
    Google,
    Duckduckgo,
    Bing,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Navigate {
    /// The URL, with its scheme.
    pub(crate) url: String,
    /// Whether to open it in a new tab.
    #[serde(default)]
    pub(crate) new_tab: bool,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Wait {
    /// Seconds, from 1 to 30.
    #[serde(default = "default_seconds")]
    pub(crate) seconds: u64,
}

fn default_seconds() -> u64 {
    3
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Click {
    /// The element's reference in the snapshot, such as `e12`.
    #[serde(rename = "ref")]
    pub(crate) reference: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct InputText {
    /// The field's reference in the snapshot, such as `e12`.
    #[serde(rename = "ref")]
    pub(crate) reference: String,
    /// The text. For a list of options, the label of one; for a date, its ISO form; for a file, its path (one a line).
    pub(crate) text: String,
    /// Whether to remove the field's text first.
    #[serde(default = "default_clear")]
    pub(crate) clear_first: bool,
}

fn default_clear() -> bool {
    true
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Scroll {
    /// The direction.
    pub(crate) direction: Direction,
    /// Pixels.
    #[serde(default = "default_amount")]
    pub(crate) amount: u32,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Up,
    Down,
}

fn default_amount() -> u32 {
    500
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct FindText {
    /// The text, in any case.
    pub(crate) text: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct SendKeys {
    /// Keys with spaces between, such as `Enter`, `Tab Tab Enter` or `Control+a`.
    pub(crate) keys: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct EvaluateJs {
    /// The code: an expression, statements, or the body of a function with `return`. `await` works.
    pub(crate) script: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct SwitchTab {
    /// The tab's index, from 0.
    pub(crate) index: usize,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Snapshot {
    /// Reference of the element to describe; without it, the whole page.
    #[serde(default)]
    pub(crate) scope: Option<String>,
    /// Whether to leave out everything but links, buttons and fields.
    #[serde(default)]
    pub(crate) interactive_only: bool,
}
