//! Warnings about the sandbox that every run of a session emits.

use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{Isolation, Sandbox};

/// Returns the warnings about a session's sandbox and outputs.
pub(super) fn sandbox_warnings(sandbox: Option<&dyn Sandbox>, delivers_files: bool) -> Vec<String> {
    let Some(sandbox) = sandbox else {
        let message = "The agent can't run code: it has no sandbox, and can't save files.";
        return vec![message.to_owned()];
    };
    let mut warnings = Vec::new();
    if sandbox.info().isolation == Isolation::None {
        warnings.push(format!(
            "Commands are not isolated: the {} backend runs them with your rights on this machine.",
            sandbox.info().backend
        ));
    }
    let enforcement = sandbox.info().enforcement.iter();
    for it in enforcement.filter(|it| it.is_missing()) {
        let consequence = consequence(it.field);
        warnings.push(format!(
            "The policy's {} is not enforced: {consequence}.",
            it.field
        ));
    }
    if !delivers_files {
        // A kept run has its sandbox longer than the session.
        let message = "No output directory: files that the agent creates are saved nowhere outside of its sandbox.";
        warnings.push(message.to_owned());
    }
    warnings
}

/// The consequence of a policy field that is not enforced.
fn consequence(field: PolicyField) -> &'static str {
    match field {
        PolicyField::ReadRoots => "commands may read what you can",
        PolicyField::WriteRoots => "commands may write where you can",
        PolicyField::WorkingDirectory => "commands may change files there",
        PolicyField::Network => "commands may reach what this machine can",
        PolicyField::Subprocesses => "commands may start other programs",
        PolicyField::Environment => "commands don't have its variables",
        _ => "commands may use all there is",
    }
}
