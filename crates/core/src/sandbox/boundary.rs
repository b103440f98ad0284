//! Detection of policy violations in a command's output.
//!
//! When the kernel denies a system call, only the program sees the error and prints it: "Read-only
//! file system", "Network is unreachable". These messages are the same for all backends. A backend
//! with better information (the proxy refused a host) adds to [`Exit::notes`](super::Exit::notes)
//! itself.

use super::render::limit_advice;
use super::{Captured, CommandOutput, ExitStatus, SandboxInfo};
use crate::policy::{Network, Policy, PolicyField};

/// Maximum number of allowed hosts in a note.
const MAX_HOSTS: usize = 8;

/// For policy fields, lower-case messages that programs print when one of them stops them.
const ERROR_MESSAGES: &[(&[PolicyField], &[&str])] = &[
    (
        &[PolicyField::Network],
        &[
            "could not resolve",
            "couldn't resolve",
            "unable to resolve",
            "failure in name resolution",
            "name or service not known",
            "getaddrinfo",
            "enotfound",
            "eai_again",
            "dns error",
            "network is unreachable",
            "failed to establish a new connection",
            "socket: operation not permitted",
        ],
    ),
    (
        &[PolicyField::WorkingDirectory, PolicyField::WriteRoots],
        &["read-only file system", "permission denied"],
    ),
    (
        &[PolicyField::Subprocesses],
        &["operation not permitted", "permission denied"],
    ),
    (&[PolicyField::CpuTime], &["cpu time limit exceeded"]),
    (
        &[PolicyField::Memory],
        &[
            "cannot allocate memory",
            "memoryerror",
            "out of memory",
            "std::bad_alloc",
            "memory allocation of",
        ],
    ),
    (
        &[PolicyField::Processes],
        &[
            "fork: resource temporarily unavailable",
            "fork: retry",
            "can't start new thread",
            "unable to create native thread",
            "blockingioerror: [errno 11]",
        ],
    ),
    (
        &[PolicyField::FileSize],
        &["file too large", "file size limit exceeded"],
    ),
    (
        &[PolicyField::Disk, PolicyField::Inodes],
        &["no space left on device", "disk quota exceeded"],
    ),
    (&[PolicyField::OpenFiles], &["too many open files"]),
];

impl CommandOutput {
    /// Adds a note for each enforced policy field that the command's error messages indicate.
    /// Standard output is searched only if the command failed.
    pub fn add_policy_notes(&mut self, policy: &Policy, info: &SandboxInfo) {
        let mut text = lower_case(&self.stderr);
        if !self.exit.status.success() {
            text.push('\n');
            text.push_str(&lower_case(&self.stdout));
        }
        let reached = match self.exit.status {
            ExitStatus::LimitReached { field, .. } => Some(field),
            _ => None,
        };
        let printed = ERROR_MESSAGES
            .iter()
            .filter(|(_, messages)| messages.iter().any(|message| text.contains(message)));
        for &field in printed.flat_map(|(fields, _)| *fields) {
            let is_covered = match field {
                // A read-only working directory has its own note.
                PolicyField::WriteRoots => info.enforces(PolicyField::WorkingDirectory),
                _ => reached == Some(field),
            };
            if !is_covered && info.enforces(field) {
                self.exit.notes.push(note(field, policy, info));
            }
        }
    }
}

fn lower_case(captured: &Captured) -> String {
    captured.text().to_ascii_lowercase()
}

fn note(field: PolicyField, policy: &Policy, info: &SandboxInfo) -> String {
    let directory = &info.working_directory;
    match field {
        PolicyField::Network => match &policy.network {
            Some(Network::Hosts(hosts)) if !hosts.is_empty() => {
                let shown: Vec<String> = hosts.iter().take(MAX_HOSTS).map(ToString::to_string).collect();
                let more = if hosts.len() > MAX_HOSTS { ", …" } else { "" };
                format!(
                    "Network access is limited to HTTP and HTTPS to {}{more}, through the proxy in HTTP_PROXY and HTTPS_PROXY. Use a program that honours them, such as curl or pip.",
                    shown.join(", ")
                )
            }
            _ => "Network access is disabled in this sandbox. Don't retry downloads; use what is installed.".to_owned(),
        },
        PolicyField::WorkingDirectory => {
            format!("The working directory `{directory}` is read-only. Answer without changing files.")
        }
        // A program that may not be executed is "denied" as well, hence the condition.
        PolicyField::WriteRoots => {
            format!("Writing is allowed in the working directory `{directory}` and hardly anywhere else. If a write was denied, write there, by a relative path.")
        }
        PolicyField::Subprocesses => {
            "Commands can't start other programs in this sandbox. Use what the program itself can do.".to_owned()
        }
        limit => limit_advice(limit).to_owned(),
    }
}

#[cfg(test)]
mod tests;
