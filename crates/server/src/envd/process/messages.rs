//! The messages of `process.Process`: those that come, and those that go.

use std::collections::BTreeMap;

use bytes::Bytes;
use cantle_core::sandbox::{Channel, Exit, ExitStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::envd::rpc::{envelope, json as forms};

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessConfig {
    pub(crate) cmd: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Size {
    #[serde(deserialize_with = "forms::number")]
    pub(crate) cols: u32,
    #[serde(deserialize_with = "forms::number")]
    pub(crate) rows: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pty {
    pub(crate) size: Option<Size>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StartRequest {
    pub(crate) process: Option<ProcessConfig>,
    pub(crate) pty: Option<Pty>,
    pub(crate) tag: Option<String>,
    pub(crate) stdin: Option<bool>,
}

/// Which process is meant: by its id, or by the tag it was started with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Selector {
    #[serde(deserialize_with = "forms::optional_number")]
    pub(crate) pid: Option<u32>,
    pub(crate) tag: Option<String>,
}

/// A call that names a process and nothing else.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Selected {
    pub(crate) process: Selector,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct UpdateRequest {
    pub(crate) process: Selector,
    pub(crate) pty: Option<Pty>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Input {
    #[serde(deserialize_with = "forms::bytes")]
    pub(crate) stdin: Option<Bytes>,
    #[serde(deserialize_with = "forms::bytes")]
    pub(crate) pty: Option<Bytes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SendInputRequest {
    pub(crate) process: Selector,
    pub(crate) input: Input,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamInputRequest {
    pub(crate) start: Option<Selected>,
    pub(crate) data: Option<StreamData>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamData {
    pub(crate) input: Input,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SendSignalRequest {
    pub(crate) process: Selector,
    /// By name, or by number.
    pub(crate) signal: serde_json::Value,
}

#[derive(Debug, Serialize)]
pub(crate) struct ListResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) processes: Vec<ProcessInfo>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ProcessInfo {
    pub(crate) config: ProcessConfig,
    pub(crate) pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
}

/// A message without fields.
#[derive(Debug, Serialize)]
pub(crate) struct Empty {}

/// The event that a process has started.
pub(crate) fn started(pid: u32) -> Bytes {
    envelope::of(&json!({ "event": { "start": { "pid": pid } } }))
}

/// The event that there is nothing to say.
pub(crate) fn keepalive() -> Bytes {
    envelope::of(&json!({ "event": { "keepalive": {} } }))
}

/// The event that a process has written something.
pub(crate) fn written(channel: Channel, is_pty: bool, bytes: &[u8]) -> Bytes {
    let name = match channel {
        _ if is_pty => "pty",
        Channel::Stdout => "stdout",
        Channel::Stderr => "stderr",
    };
    // Most of what passes through are these: written once, where they are sent from.
    let mut message = envelope::begin(48 + bytes.len().div_ceil(3) * 4);
    message.extend_from_slice(br#"{"event":{"data":{""#);
    message.extend_from_slice(name.as_bytes());
    message.extend_from_slice(br#"":""#);
    forms::push_base64(&mut message, bytes);
    message.extend_from_slice(br#""}}}"#);
    envelope::finish(message)
}

/// The event that a process has ended.
pub(crate) fn ended(exit: &Exit) -> Bytes {
    let mut end = match exit.status {
        ExitStatus::Code(0) => json!({ "exited": true, "status": "exit status 0" }),
        ExitStatus::Code(code) => {
            let status = format!("exit status {code}");
            json!({ "exitCode": code, "exited": true, "status": status, "error": status })
        }
        ExitStatus::Signal(signal) => by_signal(signal_name(signal)),
        // Our own doing, or the kernel's.
        _ => by_signal("signal: killed"),
    };
    if let (ExitStatus::LimitReached { .. }, Some(end)) = (exit.status, end.as_object_mut()) {
        let error = format!("signal: killed ({})", exit.status);
        end.insert("error".to_owned(), error.into());
    }
    envelope::of(&json!({ "event": { "end": end } }))
}

fn by_signal(status: &str) -> serde_json::Value {
    json!({ "exitCode": -1, "exited": false, "status": status, "error": status })
}

/// A signal as envd, which is written in Go, calls it.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => "signal: hangup",
        2 => "signal: interrupt",
        3 => "signal: quit",
        4 => "signal: illegal instruction",
        6 => "signal: aborted",
        7 => "signal: bus error",
        8 => "signal: floating point exception",
        9 => "signal: killed",
        11 => "signal: segmentation fault",
        13 => "signal: broken pipe",
        14 => "signal: alarm clock",
        15 => "signal: terminated",
        _ => "signal: other",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn json_of(envelope: &Bytes) -> serde_json::Value {
        serde_json::from_slice(&envelope[envelope::HEAD..]).unwrap()
    }

    #[test]
    fn ends_are_told_as_go_tells_them() {
        let end =
            |status| json_of(&ended(&Exit::new(status, Duration::ZERO)))["event"]["end"].clone();
        assert_eq!(
            end(ExitStatus::Code(0)),
            json!({"exited": true, "status": "exit status 0"})
        );
        assert_eq!(
            end(ExitStatus::Code(3)),
            json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"})
        );
        let killed = json!({
            "exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"
        });
        assert_eq!(end(ExitStatus::Signal(9)), killed);
        assert_eq!(end(ExitStatus::Cancelled), killed);
    }

    #[test]
    fn output_is_told_in_base64() {
        let told =
            |channel, is_pty| json_of(&written(channel, is_pty, b"\xffa"))["event"]["data"].clone();
        assert_eq!(told(Channel::Stdout, false), json!({"stdout": "/2E="}));
        assert_eq!(told(Channel::Stderr, false), json!({"stderr": "/2E="}));
        assert_eq!(told(Channel::Stdout, true), json!({"pty": "/2E="}));
    }
}
