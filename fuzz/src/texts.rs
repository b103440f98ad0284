//! Texts: settings of a policy, arguments of tool calls, and web pages.

use std::str::FromStr;

use cantle_core::policy::{HostName, HostPattern, Limits, Policy, Preset};
use cantle_core::sandbox::SandboxPath;
use cantle_core::tool::{DynTool, ToolSpec};
use cantle_web::html_to_markdown;
use serde_json::json;

/// Hosts, paths, limits and policies. What is accepted is written so that it is read again as the same.
pub(crate) fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    stays_the_same::<HostPattern>(text);
    stays_the_same::<SandboxPath>(text);
    if let (Ok(pattern), Ok(name)) = (text.parse::<HostPattern>(), text.parse::<HostName>()) {
        assert!(pattern.matches_name(&name), "{text:?}");
    }
    let _ = text.parse::<Preset>();
    let mut limits = Limits::default();
    for line in text.lines() {
        let _ = limits.set(line);
    }
    if let Ok(policy) = serde_json::from_str::<Policy>(text) {
        let written = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&written).unwrap(), policy);
    }
}

fn stays_the_same<T: FromStr + ToString + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let written = value.to_string();
        assert_eq!(written.parse::<T>().ok(), Some(value), "{written:?}");
    }
}

/// Repaired arguments are valid: parsed again, they stay as they are.
pub(crate) fn arguments(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let schema = json!({
        "type": "object",
        "properties": {
            "cmd": {"type": "string"},
            "count": {"type": "integer", "minimum": 0},
            "ratio": {"type": "number"},
            "mode": {"enum": ["fast", "slow"]},
            "force": {"type": "boolean"},
            "paths": {"type": "array", "items": {"type": "string"}},
            "nested": {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}},
            "either": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "number"}}]}
        },
        "required": ["cmd"],
        "additionalProperties": false
    });
    let tool = DynTool::from_schema(ToolSpec::new("t", "T.", schema), |_, _| async {
        Ok("".into())
    });
    if let Ok(parsed) = tool.parse(text) {
        let again = tool.parse(&parsed.arguments.to_string());
        let again = again.expect("repaired arguments are valid");
        assert_eq!(again.arguments, parsed.arguments);
        assert!(again.repairs.is_empty(), "{:?}", again.repairs);
    }
}

/// HTML pages. Their Markdown is not much longer than they are, in whatever charset.
pub(crate) fn html(data: &[u8]) {
    let text = html_to_markdown(data, None, "https://docs.example.com/guide/");
    assert!(text.len() <= 6 * data.len() + (64 << 10), "{}", text.len());
}
