//! The sandbox policy that results from the settings.
//!
//! Each setting comes from the strongest layer that has it, with two exceptions: a policy without a
//! network sets aside hosts that only a weaker layer allows, and limits add up by name. A directory that
//! the user does not trust can only lower limits.

use std::path::PathBuf;

use anyhow::bail;
use cantle::backends::local::LocalBackend;
use cantle::core::policy::{HostPattern, Limits, Network, Policy, Preset, Strictness};
use cantle::core::sandbox::{SandboxError, SandboxErrorKind};
use serde_json::{Map, Value};

use crate::settings::layers::{Layers, Origin};
use crate::settings::{AllowedHost, Limit, PolicySettings, SandboxSettings};

/// Returns the policy that these settings describe, for the backend that they name.
///
/// # Errors
/// If settings contradict each other.
pub(crate) fn resolve(layers: &Layers) -> anyhow::Result<Policy> {
    let SandboxSettings { backend, .. } = layers.typed()?;
    resolve_for(layers, backend.is_none_or(|backend| backend.is_local()))
}

/// Returns the policy that these settings describe, for a local backend or another one.
///
/// # Errors
/// If settings contradict each other.
pub(crate) fn resolve_for(layers: &Layers, is_local: bool) -> anyhow::Result<Policy> {
    let settings: PolicySettings = layers.typed()?;
    let preset = settings.policy.unwrap_or_default();
    let mut hosts = hosts(layers, "allow_host", settings.allow_host)?;
    let is_weaker = layers.origin("allow_host") > layers.origin("policy");
    if settings.policy.is_some() && preset != Preset::Network && is_weaker {
        hosts.clear();
    }
    let best_effort = settings.best_effort == Some(true);

    let mut policy = preset.policy();
    match (preset, hosts.is_empty()) {
        (Preset::Unconfined, false) => bail!(
            "--allow-host can't be combined with the policy `unconfined`, under which every host can be \
             reached. Remove one of them"
        ),
        (Preset::Network, true) => bail!(
            "the policy `network` needs hosts: name each with --allow-host, for example --allow-host \
             api.example.com --allow-host '*.example.org'"
        ),
        (Preset::Unconfined, true) if !settings.deny_host.is_empty() => bail!(
            "--deny-host can't be combined with the policy `unconfined`, under which commands reach every host. Remove one \
             of them"
        ),
        (_, false) => {
            let denied = settings.deny_host.into_iter().map(HostPattern::denied);
            hosts.extend(denied);
            policy.network = Some(Network::Hosts(hosts));
        }
        (_, true) => {}
    }
    if !settings.read.is_empty() {
        if !is_local {
            bail!(
                "--read is for the local backend: other backends can't see files of this machine. Copy them with --input"
            );
        }
        add_read_roots(&mut policy, &settings.read)?;
    }
    let defaults = LocalBackend::new().default_limits();
    for (origin, limits) in layers.each::<Vec<Limit>>("limit")? {
        if origin == Origin::UntrustedDirectory {
            tighten(&mut policy.limits, &defaults, &limits)?;
        } else {
            for limit in limits {
                limit.apply_to(&mut policy.limits)?;
            }
        }
    }
    if best_effort {
        policy.strictness = Strictness::BestEffort;
    }
    Ok(policy)
}

/// Returns the policy of a saved run, which had a preset and limits, with what flags change.
///
/// # Errors
/// If settings contradict each other.
pub(crate) fn resolve_again(
    layers: &Layers,
    preset: Preset,
    saved: &Limits,
) -> anyhow::Result<Policy> {
    let mut policy = resolve(layers)?;
    // Limits add up, and those of the run's weaker layers are only in its policy.
    let of_preset = fields(&preset.policy().limits)?;
    let mut limits = fields(&policy.limits)?;
    let saved = fields(saved)?.into_iter();
    limits.extend(saved.filter(|(name, limit)| of_preset.get(name) != Some(limit)));
    policy.limits = serde_json::from_value(limits.into())?;
    for (origin, limits) in layers.each::<Vec<Limit>>("limit")? {
        for limit in limits.iter().filter(|_| origin == Origin::Flag) {
            limit.apply_to(&mut policy.limits)?;
        }
    }
    Ok(policy)
}

/// Returns the hosts of a setting.
///
/// # Errors
/// If a mark follows no host, or a directory's file allows private addresses.
pub(crate) fn hosts(
    layers: &Layers,
    setting: &str,
    hosts: Vec<AllowedHost>,
) -> anyhow::Result<Vec<HostPattern>> {
    let hosts = AllowedHost::patterns(hosts)?;
    if layers.origin(setting) == Some(Origin::Directory)
        && let Some(host) = hosts.iter().find(|host| host.allows_private_addresses())
    {
        bail!("`{host}`: only a flag, a variable or your own settings can allow private addresses");
    }
    Ok(hosts)
}

fn add_read_roots(policy: &mut Policy, paths: &[PathBuf]) -> anyhow::Result<()> {
    let Some(roots) = &mut policy.read_roots else {
        bail!(
            "--read can't be combined with the policy `unconfined`, under which every file can be read. Remove one of them"
        );
    };
    for path in paths {
        let path = std::path::absolute(path)?;
        if !path.exists() {
            bail!(
                "{} does not exist, and commands can't read it (--read)",
                path.display()
            );
        }
        roots.paths.push(path);
    }
    Ok(())
}

/// Applies those of `stricter` that are below the present limits.
fn tighten(limits: &mut Limits, defaults: &Limits, stricter: &[Limit]) -> anyhow::Result<()> {
    let mut other = Limits::default();
    for limit in stricter {
        limit.apply_to(&mut other)?;
    }
    other.unlimited.clear();
    let mut merged = fields(limits)?;
    let in_force = fields(&limits.with_defaults(defaults))?;
    for (name, limit) in fields(&other)? {
        let present = in_force.get(&name).and_then(Value::as_f64);
        if present.is_none_or(|present| limit.as_f64() < Some(present)) {
            merged.insert(name, limit);
        }
    }
    *limits = serde_json::from_value(merged.into())?;
    Ok(())
}

/// Returns limits by name.
fn fields(limits: &Limits) -> serde_json::Result<Map<String, Value>> {
    serde_json::from_value(serde_json::to_value(limits)?)
}

/// Returns what to do on the command line about a sandbox that did not open.
pub(crate) fn hint(error: &SandboxError) -> Option<&'static str> {
    (error.kind() == SandboxErrorKind::Unenforceable).then_some(
        "Use --best-effort to run without what can't be enforced; `cantle doctor` shows what this machine \
         can enforce",
    )
}

#[cfg(test)]
mod tests;
