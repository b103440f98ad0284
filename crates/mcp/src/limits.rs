//! Limits on what a server or client sends.

/// Maximum size of a message.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Maximum number of tools of a server that are offered to the model.
pub(crate) const MAX_TOOLS: usize = 256;
/// Maximum number of tools, of their bytes as JSON, and of pages that a server lists.
pub(crate) const MAX_LISTED_TOOLS: usize = 20_000;
pub(crate) const MAX_LISTED_BYTES: usize = 32 << 20;
pub(crate) const MAX_PAGES: usize = 200;
/// Maximum number of changed tools that are named.
pub(crate) const MAX_NAMED_CHANGES: usize = 50;
/// Maximum size of the schema of one tool, and of the schemas of a server, as JSON.
pub(crate) const MAX_SCHEMA_BYTES: usize = 64 << 10;
pub(crate) const MAX_SCHEMAS_BYTES: usize = 512 << 10;
/// Maximum number of branches of a schema (`anyOf` and the like) that are merged into its root.
pub(crate) const MAX_SCHEMA_BRANCHES: usize = 100;
/// Maximum characters of a tool's description.
pub(crate) const MAX_DESCRIPTION_CHARS: usize = 4_000;
/// Maximum characters of an error.
pub(crate) const MAX_ERROR_CHARS: usize = 4_000;
/// Maximum characters of a line of progress.
pub(crate) const MAX_PROGRESS_CHARS: usize = 300;
/// Maximum number of parts of a result, and of those that are images for the model.
pub(crate) const MAX_PARTS: usize = 64;
pub(crate) const MAX_IMAGES: usize = 8;
/// Maximum number of questions to the user in one call.
pub(crate) const MAX_QUESTIONS: usize = 16;
/// Maximum number of calls of a client that run at the same time.
pub(crate) const MAX_SERVED_CALLS: usize = 16;
/// Maximum number of sessions of a principal over HTTP.
pub(crate) const MAX_SERVED_SESSIONS: usize = 64;
