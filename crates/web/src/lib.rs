//! Web tools: `fetch_web_page` and `web_search`.
//!
//! [`WebTools`] is their provider. Pages are fetched from public addresses only, in bounded time and memory, and
//! returned as Markdown; what a page says is marked as data for the model.

#![forbid(unsafe_code)]

mod document;
mod error;
mod fetch;
mod http;
mod page;
mod provider;
mod scan;
mod search;
mod services;
mod target;
mod xml;

pub use self::document::html_to_markdown;
pub use self::error::{WebError, WebErrorKind};
pub use self::provider::WebTools;
pub use self::search::{SearchHit, SearchProvider};
pub use self::services::SearchService;

#[cfg(test)]
mod tests;
