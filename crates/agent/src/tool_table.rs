//! The tools of a session, by name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cantle_core::llm::ToolSpecs;
use cantle_core::tool::DynTool;
use indexmap::IndexMap;

use crate::rules::ToolTraits;
use crate::scope::AgentTool;

/// The tools of a session. Sessions without tools of providers share the table of their agent.
#[derive(Clone, Debug)]
pub(crate) struct ToolTable {
    tools: Arc<HashMap<String, AgentTool>>,
    traits: Arc<IndexMap<String, ToolTraits>>,
    specs: ToolSpecs,
}

impl ToolTable {
    /// A table of ordinary tools and finish tools.
    ///
    /// # Errors
    /// If a name is invalid or not unique.
    pub(crate) fn new(tools: &[AgentTool], finish_tools: &[DynTool]) -> Result<Self, String> {
        check_names(tools.iter().map(|it| &it.tool).chain(finish_tools))?;
        let ordinary = tools.iter().cloned().map(|tool| (tool, false));
        let finish = finish_tools.iter().cloned();
        let all = ordinary.chain(finish.map(|tool| (AgentTool::from(tool), true)));
        let (mut by_name, mut traits, mut specs) = (HashMap::new(), IndexMap::new(), Vec::new());
        for (tool, finishes) in all {
            let name = tool.tool.name().to_owned();
            let properties = tool.tool.properties();
            let properties = ToolTraits {
                finishes,
                concurrency_safe: properties.concurrency_safe,
                polls: properties.polls,
                repeatable: properties.repeatable,
                accepts_text: properties.accepts_text,
            };
            specs.push(tool.tool.spec().clone());
            traits.insert(name.clone(), properties);
            by_name.insert(name, tool);
        }
        Ok(Self {
            tools: Arc::new(by_name),
            traits: Arc::new(traits),
            specs: ToolSpecs::new(specs),
        })
    }

    /// Replaces the descriptions for the model.
    pub(crate) fn set_specs(&mut self, specs: ToolSpecs) {
        self.specs = specs;
    }

    pub(crate) fn get(&self, name: &str) -> Option<&AgentTool> {
        self.tools.get(name)
    }

    /// Whether a tool makes calls of others.
    pub(crate) fn is_forwarding(&self) -> bool {
        self.tools.values().any(|tool| tool.tool.is_forwarding())
    }

    pub(crate) fn is_finish(&self, name: &str) -> bool {
        self.traits.get(name).is_some_and(|it| it.finishes)
    }

    /// The properties of the tools, in order.
    pub(crate) fn traits(&self) -> &Arc<IndexMap<String, ToolTraits>> {
        &self.traits
    }

    pub(crate) fn specs(&self) -> &ToolSpecs {
        &self.specs
    }
}

/// Checks that tool names are valid and unique.
pub(crate) fn check_names<'t>(tools: impl Iterator<Item = &'t DynTool>) -> Result<(), String> {
    let mut names = HashSet::new();
    for tool in tools {
        let name = tool.name();
        if !is_valid_name(name, 64) {
            return Err(format!(
                "the tool name `{name}` must be 1 to 64 letters, digits, `_` or `-`"
            ));
        }
        if !names.insert(name) {
            return Err(format!("two tools are called `{name}`"));
        }
    }
    Ok(())
}

/// Whether a name has 1 to `max` letters, digits, `_` or `-`.
pub(crate) fn is_valid_name(name: &str, max: usize) -> bool {
    (1..=max).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}
