//! What commands may do: one policy from what flags, environment and files say of it.
//!
//! The strongest place decides, setting by setting. Two things go together: a policy without a network
//! sets aside hosts that only a weaker place allows. And one place is less trusted: a `cantle.toml` in
//! the current directory may be somebody else's, so it can restrict commands, but not free them.

use std::str::FromStr;

use anyhow::bail;
use cantle::core::policy::{InvalidPolicy, Limits, Network, Policy, Preset, Strictness};
use cantle::core::sandbox::{SandboxError, SandboxErrorKind};
use serde::Deserialize;

use crate::args::PolicyArgs;

/// A limit as it was written, such as `memory=2G`; it makes sense.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Limit(String);

impl FromStr for Limit {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        Limits::default().set(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Limit {
    type Error = InvalidPolicy;

    fn try_from(text: String) -> Result<Self, InvalidPolicy> {
        text.parse()
    }
}

/// Where settings come from, the strongest first.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    /// Flags and environment.
    pub(crate) said: &'a PolicyArgs,
    /// The `cantle.toml` of the current directory.
    pub(crate) directory: &'a PolicyArgs,
    /// The user's own.
    pub(crate) user: &'a PolicyArgs,
}

/// Which of the places is the directory's.
const DIRECTORY: usize = 1;

/// Puts the policy together. `limits_variable` is what the environment says of limits, which flags
/// don't replace but add to.
pub(crate) fn resolve(
    places: &Places<'_>,
    limits_variable: Option<&str>,
) -> anyhow::Result<Policy> {
    let all = [places.said, places.directory, places.user];
    let strongest = || all.iter().enumerate();
    let preset = strongest().find_map(|(place, args)| Some((place, args.policy?)));
    let hosts_from = match preset {
        Some((place, preset)) if preset != Preset::Network => place + 1,
        _ => all.len(),
    };
    let hosts = strongest()
        .take(hosts_from)
        .find(|(_, args)| !args.allow_host.is_empty());
    let best_effort = strongest().find_map(|(place, args)| Some((place, args.best_effort?)));

    if preset == Some((DIRECTORY, Preset::Unconfined)) {
        return not_the_directorys("policy = \"unconfined\"", "--policy unconfined");
    }
    if let Some((DIRECTORY, _)) = hosts {
        return not_the_directorys("allow_host", "--allow-host");
    }
    if best_effort == Some((DIRECTORY, true)) {
        return not_the_directorys("best_effort", "--best-effort");
    }

    let preset = preset.map(|(_, preset)| preset).unwrap_or_default();
    let mut policy = preset.policy();
    match (preset, hosts) {
        (Preset::Unconfined, Some(_)) => bail!(
            "hosts are allowed (--allow-host), but under the policy `unconfined` every host can be reached: \
             an allow-list would promise what nothing keeps. Leave one of them out"
        ),
        (Preset::Network, None) => bail!(
            "the policy `network` allows no host yet: name each with --allow-host, such as \
             --allow-host pypi.org --allow-host '*.debian.org'"
        ),
        (_, Some((_, args))) => policy.network = Some(Network::Hosts(args.allow_host.clone())),
        (_, None) => {}
    }
    for limit in &places.user.limit {
        policy.limits.set(&limit.0)?;
    }
    let mut directorys = Limits::default();
    for limit in &places.directory.limit {
        directorys.set(&limit.0)?;
    }
    tighten(&mut policy.limits, &directorys);
    for limit in limits_variable.into_iter().flat_map(|all| all.split(',')) {
        policy.limits.set(limit)?;
    }
    for limit in &places.said.limit {
        policy.limits.set(&limit.0)?;
    }
    if best_effort.is_some_and(|(_, wanted)| wanted) {
        policy.strictness = Strictness::BestEffort;
    }
    Ok(policy)
}

/// Takes over those of the other limits that leave less.
fn tighten(limits: &mut Limits, other: &Limits) {
    fn least<T: Ord + Copy>(limit: &mut Option<T>, other: Option<T>) {
        *limit = limit.iter().copied().chain(other).min();
    }
    least(&mut limits.wall_time, other.wall_time);
    least(&mut limits.cpu_time, other.cpu_time);
    least(&mut limits.memory_bytes, other.memory_bytes);
    least(&mut limits.processes, other.processes);
    least(&mut limits.file_size_bytes, other.file_size_bytes);
    least(&mut limits.disk_bytes, other.disk_bytes);
    least(&mut limits.inodes, other.inodes);
    least(&mut limits.open_files, other.open_files);
    least(&mut limits.output_bytes, other.output_bytes);
}

fn not_the_directorys(setting: &str, flag: &str) -> anyhow::Result<Policy> {
    bail!(
        "the cantle.toml of this directory says `{setting}`, which would let commands do more. That file may \
         be somebody else's, so this is for you to say: with {flag}, its variable, or the cantle.toml of \
         your own ($XDG_CONFIG_HOME/cantle/cantle.toml)"
    )
}

/// What to do on the command line about a sandbox that did not open.
pub(crate) fn hint(error: &SandboxError) -> Option<&'static str> {
    (error.kind() == SandboxErrorKind::Unenforceable).then_some(
        "With --best-effort it runs all the same, without what can't be enforced; `cantle doctor` says what \
         this machine can do",
    )
}

#[cfg(test)]
mod tests;
