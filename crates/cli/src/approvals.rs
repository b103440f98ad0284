//! The approval rules of `--approve`.

use anyhow::{Context as _, bail};
use cantle::agent::{Approvals, Permission};

use crate::agent;

/// Checks that a person can decide on calls: without a terminal, a call that needs a decision would never run.
///
/// # Errors
/// If no one can be asked.
pub(crate) fn check_can_ask(approvals: &Approvals, has_user: bool) -> anyhow::Result<()> {
    if approvals.may_ask() && !has_user {
        bail!(
            "tool calls need approval (--approve), but no one can be asked: standard input or standard error is \
             not a terminal. Give --approve a file of rules that allow or deny every call, or `never`"
        );
    }
    Ok(())
}

/// Returns the approval rules of `--approve`.
///
/// # Errors
/// If the file can't be read, or has invalid rules.
pub(crate) fn read(approve: Option<&str>) -> anyhow::Result<Approvals> {
    match approve {
        None | Some("never") => Ok(Approvals::allowing()),
        Some("ask") => Ok(Approvals::asking().rule(agent::FINISH, [], Permission::Allow)?),
        Some("always" | "all") => {
            bail!(
                "--approve takes `never`, `ask`, or a TOML file of rules; `ask` asks about every call"
            )
        }
        Some(path) => {
            let text = std::fs::read(path).with_context(|| {
                format!("--approve takes `never`, `ask`, or a TOML file of rules, and `{path}` is none of them")
            })?;
            let text =
                String::from_utf8(text).with_context(|| format!("{path} is not UTF-8 text"))?;
            toml::from_str(&text).with_context(|| format!("invalid approval rules in {path}"))
        }
    }
}
