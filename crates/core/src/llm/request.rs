//! Model requests.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::message::{EncodedForms, SharedMessage};
use crate::tool::ToolSpec;

/// One request to a model: the whole conversation and the tools.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The conversation, oldest first.
    pub messages: Vec<SharedMessage>,
    /// The tools that the model may call, in a stable order.
    pub tools: ToolSpecs,
}

impl ChatRequest {
    /// Creates a request for the next turn of a conversation.
    pub fn new(messages: Vec<SharedMessage>, tools: ToolSpecs) -> Self {
        Self { messages, tools }
    }
}

/// The immutable, shared specs of a session's tools, with their encoded forms.
#[derive(Clone, Default)]
pub struct ToolSpecs(Arc<Inner>);

#[derive(Default)]
struct Inner {
    specs: Vec<ToolSpec>,
    forms: EncodedForms,
}

impl ToolSpecs {
    /// Wraps specs for sharing.
    pub fn new(specs: Vec<ToolSpec>) -> Self {
        Self(Arc::new(Inner {
            specs,
            forms: EncodedForms::default(),
        }))
    }

    /// Returns the cache of encoded forms.
    pub fn forms(&self) -> &EncodedForms {
        &self.0.forms
    }
}

impl Deref for ToolSpecs {
    type Target = [ToolSpec];

    fn deref(&self) -> &[ToolSpec] {
        &self.0.specs
    }
}

impl fmt::Debug for ToolSpecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(ToolSpec::name))
            .finish()
    }
}
