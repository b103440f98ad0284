//! What a command's own words tell about the boundary it ran into.
//!
//! Where the kernel says no, only the program hears it, and prints what its system calls told it:
//! "Read-only file system", "Network is unreachable". The words are the same everywhere, so they are
//! read here, once for all backends. A backend that knows more than the words (a host that its proxy
//! refused) adds to [`Exit::notes`](super::Exit::notes) itself.

use super::render::instead;
use super::{Captured, CommandOutput, EnforcedBy, ExitStatus, SandboxInfo};
use crate::policy::{Network, Policy, PolicyField};

/// Hosts of the allow-list that a note repeats.
const HOSTS: usize = 8;

/// For each field, what programs print (in lower case) when it stops them.
const SIGNS: &[(PolicyField, &[&str])] = &[
    (
        PolicyField::Network,
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
        PolicyField::WorkingDirectory,
        &["read-only file system", "permission denied"],
    ),
    (
        PolicyField::WriteRoots,
        &["read-only file system", "permission denied"],
    ),
    (
        PolicyField::Subprocesses,
        &["operation not permitted", "permission denied"],
    ),
    (PolicyField::CpuTime, &["cpu time limit exceeded"]),
    (
        PolicyField::Memory,
        &[
            "cannot allocate memory",
            "memoryerror",
            "out of memory",
            "std::bad_alloc",
            "memory allocation of",
        ],
    ),
    (
        PolicyField::Processes,
        &[
            "fork: resource temporarily unavailable",
            "fork: retry",
            "can't start new thread",
            "unable to create native thread",
            "blockingioerror: [errno 11]",
        ],
    ),
    (
        PolicyField::FileSize,
        &["file too large", "file size limit exceeded"],
    ),
    (
        PolicyField::Disk,
        &["no space left on device", "disk quota exceeded"],
    ),
    (
        PolicyField::Inodes,
        &["no space left on device", "disk quota exceeded"],
    ),
    (PolicyField::OpenFiles, &["too many open files"]),
];

impl CommandOutput {
    /// Adds to the notes what the command's own errors tell about the policy's boundary: a line for
    /// each field that is enforced and that they speak of. Standard error is read always, standard
    /// output where the command failed.
    pub fn note_boundary(&mut self, policy: &Policy, info: &SandboxInfo) {
        let mut words = lower_case(&self.stderr);
        if !self.exit.status.success() {
            words.push('\n');
            words.push_str(&lower_case(&self.stdout));
        }
        let told = match self.exit.status {
            ExitStatus::LimitReached { field, .. } => Some(field),
            _ => None,
        };
        let enforced = |field| {
            let mut report = info.enforcement.iter();
            report.any(|it| it.field == field && it.by != EnforcedBy::NotEnforced)
        };
        for (field, signs) in SIGNS {
            let said = match field {
                // The stronger of the two says it.
                PolicyField::WriteRoots => enforced(PolicyField::WorkingDirectory),
                _ => told == Some(*field),
            };
            if !said && enforced(*field) && signs.iter().any(|sign| words.contains(sign)) {
                self.exit.notes.push(note(*field, policy, info));
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
                let shown: Vec<String> = hosts.iter().take(HOSTS).map(ToString::to_string).collect();
                let more = if hosts.len() > HOSTS { ", …" } else { "" };
                format!(
                    "The policy field network allows HTTP and HTTPS through the proxy in HTTP_PROXY and HTTPS_PROXY, to {}{more}: use a program that takes it, such as curl or pip.",
                    shown.join(", ")
                )
            }
            _ => "The policy field network allows no host: work with the files and programs that are here.".to_owned(),
        },
        PolicyField::WorkingDirectory => {
            format!("The policy makes the working_directory `{directory}` read-only: answer without changing files.")
        }
        // A program that may not be executed is "denied" as well, hence the condition.
        PolicyField::WriteRoots => {
            format!("Where writing was denied: the policy field write_roots allows the working directory `{directory}` and hardly anything else, so write there, by relative paths.")
        }
        PolicyField::Subprocesses => {
            "The policy field subprocesses lets no command start other programs: use what the program itself can do.".to_owned()
        }
        limit => instead(limit).to_owned(),
    }
}

#[cfg(test)]
mod tests;
