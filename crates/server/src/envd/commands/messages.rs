//! Messages of `process.Process`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cantle_core::sandbox::{Channel, Exit, ExitStatus, SandboxError, Signal};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::envd::rpc::{envelope, json as protobuf};

/// Command line, environment and working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessConfig {
    #[serde(deserialize_with = "protobuf::or_default")]
    pub(crate) cmd: String,
    #[serde(
        deserialize_with = "protobuf::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(crate) args: Vec<String>,
    #[serde(
        deserialize_with = "protobuf::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub(crate) envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
}

impl ProcessConfig {
    /// Returns the memory it takes, about.
    pub(crate) fn size_bytes(&self) -> usize {
        const PER_STRING: usize = 32;
        let args = self.args.iter().map(|arg| PER_STRING + arg.len());
        let pairs = self.envs.iter();
        let envs = pairs.map(|(name, value)| 2 * PER_STRING + name.len() + value.len());
        let cwd = self.cwd.as_ref().map_or(0, String::len);
        self.cmd.len() + cwd + args.chain(envs).sum::<usize>()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TerminalSize {
    #[serde(deserialize_with = "protobuf::number")]
    pub(crate) cols: u32,
    #[serde(deserialize_with = "protobuf::number")]
    pub(crate) rows: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pty {
    pub(crate) size: Option<TerminalSize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StartRequest {
    pub(crate) process: Option<ProcessConfig>,
    pub(crate) pty: Option<Pty>,
    pub(crate) tag: Option<String>,
    pub(crate) stdin: Option<bool>,
}

/// Selects a process by its id, or by the tag given at its start.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Selector {
    #[serde(deserialize_with = "protobuf::optional_number")]
    pub(crate) pid: Option<u32>,
    pub(crate) tag: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Input {
    #[serde(deserialize_with = "protobuf::bytes")]
    pub(crate) stdin: Option<Bytes>,
    #[serde(deserialize_with = "protobuf::bytes")]
    pub(crate) pty: Option<Bytes>,
}

/// A request about one process; each call uses some of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessRequest {
    #[serde(deserialize_with = "protobuf::or_default")]
    pub(crate) process: Selector,
    pub(crate) pty: Option<Pty>,
    #[serde(deserialize_with = "protobuf::or_default")]
    pub(crate) input: Input,
    /// Name or number, as its JSON text, so that any value takes only the memory that it is charged with.
    pub(crate) signal: Option<Box<RawValue>>,
}

/// A message of an input stream: the process, or input for it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamInputRequest {
    pub(crate) start: Option<ProcessRequest>,
    pub(crate) data: Option<ProcessRequest>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ListResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) processes: Vec<Arc<ProcessInfo>>,
}

/// The description of a process.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ProcessInfo {
    pub(crate) config: ProcessConfig,
    pub(crate) pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
}

/// Event: the process has started.
pub(crate) fn started(pid: u32) -> Bytes {
    envelope::encode(&json!({ "event": { "start": { "pid": pid } } }))
}

/// Event: keep-alive.
pub(crate) fn keepalive() -> Bytes {
    envelope::encode(&json!({ "event": { "keepalive": {} } }))
}

/// Event: output of the process.
pub(crate) fn written(channel: Channel, is_pty: bool, bytes: &[u8]) -> Bytes {
    let name = match channel {
        _ if is_pty => "pty",
        Channel::Stdout => "stdout",
        Channel::Stderr => "stderr",
    };
    // The bulk of all data: encoded directly into the send buffer.
    let (start, end) = (format!(r#"{{"event":{{"data":{{"{name}":""#), r#""}}}"#);
    let base64_bytes = protobuf::base64_length(bytes);
    let mut message = envelope::begin(0, start.len() + base64_bytes + end.len());
    message.extend_from_slice(start.as_bytes());
    protobuf::push_base64(&mut message, bytes);
    message.extend_from_slice(end.as_bytes());
    message.into()
}

/// Event: the process has ended.
pub(crate) fn ended(exit: &Exit) -> Bytes {
    let mut end = match exit.status {
        ExitStatus::Code(0) => json!({ "exited": true, "status": "exit status 0" }),
        ExitStatus::Code(code) => {
            let status = format!("exit status {code}");
            json!({ "exitCode": code, "exited": true, "status": status, "error": status })
        }
        ExitStatus::Signal(signal) => by_signal(&signal_name(signal)),
        // Killed by Cantle or by the kernel for a limit.
        _ => by_signal("signal: killed"),
    };
    if let (ExitStatus::LimitReached { .. }, Some(end)) = (exit.status, end.as_object_mut()) {
        let error = format!("signal: killed ({})", exit.status);
        end.insert("error".to_owned(), error.into());
    }
    envelope::encode(&json!({ "event": { "end": end } }))
}

/// Encodes the end of a command whose exit can't be known.
pub(crate) fn lost(error: &SandboxError) -> Bytes {
    let end = by_signal(&error.to_string());
    envelope::encode(&json!({ "event": { "end": end } }))
}

fn by_signal(status: &str) -> Value {
    json!({ "exitCode": -1, "exited": false, "status": status, "error": status })
}

fn signal_name(signal: i32) -> String {
    match Signal::from_raw(signal).and_then(Signal::description) {
        Some(name) => format!("signal: {name}"),
        None => format!("signal: signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn json_of(envelope: &Bytes) -> Value {
        serde_json::from_slice(&envelope[envelope::HEAD_BYTES..]).unwrap()
    }

    #[test]
    fn exits_are_described_as_in_go() {
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
        for (signal, status) in [
            (1, "signal: hangup"),
            (11, "signal: segmentation fault"),
            (24, "signal: CPU time limit exceeded"),
            (31, "signal: bad system call"),
            (40, "signal: signal 40"),
        ] {
            assert_eq!(end(ExitStatus::Signal(signal))["status"], status);
        }
    }

    #[test]
    fn output_is_base64_encoded() {
        let data =
            |channel, is_pty| json_of(&written(channel, is_pty, b"\xffa"))["event"]["data"].clone();
        assert_eq!(data(Channel::Stdout, false), json!({"stdout": "/2E="}));
        assert_eq!(data(Channel::Stderr, false), json!({"stderr": "/2E="}));
        assert_eq!(data(Channel::Stdout, true), json!({"pty": "/2E="}));
    }
}
