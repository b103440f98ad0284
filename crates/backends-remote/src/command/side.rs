//! Short scripts of our own, run beside the commands.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use cantle_core::sandbox::Channel;
use tokio::time::timeout;

use super::line::{BASH, PRIVILEGED};
use crate::envd::{Ended, Envd, EventStream, Fault, Happened, ProcessConfig, Start};
use crate::http::Broken;

/// For a script and its answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// What a script may answer in bytes.
const LONGEST: usize = 64 << 20;

/// What a script did.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) success: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Starts a script with these words as its arguments.
pub(crate) async fn start(envd: &Envd, script: &str, words: &[&str]) -> Result<EventStream, Fault> {
    let fixed = [PRIVILEGED, "-c", script, "cantle"];
    let words = fixed.iter().chain(words).copied().map(Cow::Borrowed);
    let start = Start {
        process: ProcessConfig {
            cmd: BASH,
            args: words.collect(),
            envs: BTreeMap::from([("LC_ALL", "C")]),
            cwd: None,
        },
        pty: None,
        stdin: Some(false),
    };
    envd.start(&start, Some(DEADLINE)).await
}

/// Runs a script to its end.
pub(crate) async fn run(envd: &Envd, script: &str, words: &[&str]) -> Result<Answer, Fault> {
    let running = async {
        let mut events = start(envd, script, words).await?;
        let mut answer = Answer {
            success: false,
            stdout: Vec::new(),
            stderr: String::new(),
        };
        while let Some(happened) = events.next().await? {
            match happened {
                Happened::Started(_) => {}
                Happened::Wrote(Channel::Stdout, bytes) => {
                    if answer.stdout.len() + bytes.len() > LONGEST {
                        return Err(Broken::new("a script answered too much").into());
                    }
                    answer.stdout.extend_from_slice(&bytes);
                }
                Happened::Wrote(Channel::Stderr, bytes) => {
                    if answer.stderr.len() < 1000 {
                        answer.stderr.push_str(&String::from_utf8_lossy(&bytes));
                    }
                }
                Happened::Ended(ended) => answer.success = ended == Ended::Code(0),
            }
        }
        Ok(answer)
    };
    match timeout(DEADLINE, running).await {
        Ok(answer) => answer,
        Err(_) => Err(Broken::silent(DEADLINE).into()),
    }
}
