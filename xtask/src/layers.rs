//! The layers: which crates of this workspace and which external crates each crate may depend on.
//!
//! Only linked dependencies count: normal ones, with all features, transitively. Tests may use any crate.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::metadata::Metadata;
use crate::{facade, shell};

/// The dependency rules of one package.
#[derive(Clone, Copy)]
struct Layer {
    package: &'static str,
    /// Crates of this workspace that it may depend on, and through them on those of their layers.
    ours: &'static [&'static str],
    /// Crates that it must not depend on.
    without: &'static [&'static str],
    /// The only features that it may enable of certain crates.
    at_most: &'static [(&'static str, &'static [&'static str])],
}

const CORE: &[&str] = &["cantle-core"];
/// For libraries, which do not use the terminal.
const TERMINAL: &[&str] = &["anyhow", "clap"];
/// For libraries that never talk to the network.
const NETWORK: &[&str] = &["anyhow", "clap", "hyper", "reqwest", "rustls"];
/// For libraries that speak plain HTTP only.
const TLS: &[&str] = &["anyhow", "clap", "reqwest", "rustls"];

const LAYERS: &[Layer] = &[
    Layer {
        // The cancellation token's.
        at_most: &[("tokio", &["default", "sync"])],
        // rustix opens the host's files beneath a directory.
        ..layer("cantle-core", &[]).without(&[
            "anyhow", "clap", "hyper", "mio", "nix", "reqwest", "rustls", "socket2",
        ])
    },
    layer("cantle-macros", &[]).without(&["anyhow", "clap", "tokio"]),
    layer("cantle-tls", &[]).without(&["anyhow", "clap", "reqwest", "tokio"]),
    layer("cantle-clients", &["cantle-core", "cantle-tls"]).without(TERMINAL),
    layer("cantle-supervisor", &[]).without(TERMINAL),
    layer("cantle-command-driver", CORE).without(NETWORK),
    // It speaks HTTP; what is encrypted passes through.
    layer("cantle-proxy", CORE).without(TLS),
    layer(
        "cantle-backends-docker",
        &[
            "cantle-command-driver",
            "cantle-proxy",
            "cantle-supervisor",
            "cantle-tls",
        ],
    )
    .without(TERMINAL),
    layer(
        "cantle-backends-remote",
        &["cantle-command-driver", "cantle-tls"],
    )
    .without(TERMINAL),
    layer(
        "cantle-backends-local",
        &["cantle-command-driver", "cantle-proxy", "cantle-supervisor"],
    )
    .without(TLS),
    // Which backend it serves is for the program to say.
    layer("cantle-server", &["cantle-core", "cantle-files"]).without(TLS),
    layer("cantle-tools", CORE).without(NETWORK),
    // Its sandboxes come from the caller's backend.
    layer("cantle-python", CORE).without(NETWORK),
    layer("cantle-agent", CORE).without(NETWORK),
    // Spans leave from the program.
    layer("cantle-otel", &["cantle-core", "cantle-tls"]).without(TERMINAL),
    // Which principals there are is for the program to say.
    layer("cantle-files", &["cantle-core", "cantle-tls"]).without(TERMINAL),
    // The browser runs in the session's sandbox.
    layer("cantle-browser", CORE).without(NETWORK),
    // Its requests leave from the program, not from a sandbox.
    layer("cantle-web", &["cantle-core", "cantle-tls"]).without(TERMINAL),
    // Servers at URLs are reached from the program; those that are started get sandboxes of the caller's backend.
    layer("cantle-mcp", &["cantle-core", "cantle-tls"]).without(TERMINAL),
    layer(
        "cantle-code-executor",
        &["cantle-core", "cantle-files", "cantle-python"],
    )
    .without(TERMINAL),
    layer("cantle-testkit", &["cantle-core", "cantle-files"]).without(TERMINAL),
    layer(
        "cantle",
        &[
            "cantle-agent",
            "cantle-backends-docker",
            "cantle-backends-local",
            "cantle-backends-remote",
            "cantle-browser",
            "cantle-clients",
            "cantle-mcp",
            "cantle-python",
            "cantle-tools",
            "cantle-web",
        ],
    )
    .without(TERMINAL),
    layer(
        "cantle-cli",
        &[
            "cantle",
            "cantle-code-executor",
            "cantle-files",
            "cantle-otel",
            "cantle-server",
        ],
    ),
    layer(
        "cantle-bench",
        &[
            "cantle-agent",
            "cantle-backends-docker",
            "cantle-backends-local",
            "cantle-backends-remote",
            "cantle-browser",
            "cantle-clients",
            "cantle-code-executor",
            "cantle-files",
            "cantle-mcp",
            "cantle-python",
            "cantle-testkit",
            "cantle-web",
        ],
    ),
    layer(
        "cantle-fuzz",
        &[
            "cantle-agent",
            "cantle-backends-docker",
            "cantle-backends-local",
            "cantle-clients",
            "cantle-proxy",
            "cantle-server",
            "cantle-web",
        ],
    ),
    layer("xtask", &[]),
];

const fn layer(package: &'static str, ours: &'static [&'static str]) -> Layer {
    Layer {
        package,
        ours,
        without: &[],
        at_most: &[],
    }
}

pub fn check() -> Result<()> {
    let packages = Metadata::read()?.packages;
    let mut wrong = Vec::new();
    for package in &packages {
        let Some(layer) = Layer::of(&package.name) else {
            bail!("{} has no row in {}", package.name, file!());
        };
        let mut cargo = shell::cargo();
        cargo
            .args(["tree", "--package", layer.package, "--all-features"])
            // Not what runs in the compiler: a macro brings nothing of its own into a program.
            .args([
                "--edges=normal,no-proc-macro",
                "--prefix=none",
                "--format={p}|{f}",
            ]);
        let tree = shell::output(&mut cargo)?;
        let ours = packages
            .iter()
            .map(|package| package.name.as_str())
            .collect();
        wrong.extend(layer.violations(&tree, &ours));
    }
    wrong.extend(facade::violations()?);
    if !wrong.is_empty() {
        bail!("the layers are broken:\n{}", wrong.join("\n"));
    }
    Ok(())
}

impl Layer {
    const fn without(self, without: &'static [&'static str]) -> Self {
        Self { without, ..self }
    }

    fn of(package: &str) -> Option<&'static Self> {
        LAYERS.iter().find(|layer| layer.package == package)
    }

    fn may_use(&self, name: &str) -> bool {
        let below = |ours: &&str| Self::of(ours).is_some_and(|layer| layer.may_use(name));
        self.ours.contains(&name) || self.ours.iter().any(below)
    }

    /// Returns the violations in a dependency tree (lines of `name version … |features`).
    fn violations(&self, tree: &str, ours: &BTreeSet<&str>) -> BTreeSet<String> {
        let mut wrong = BTreeSet::new();
        for line in tree.lines() {
            let (package, features) = line.split_once('|').unwrap_or((line, ""));
            let Some(name) = package.split_whitespace().next() else {
                continue;
            };
            let is_above = ours.contains(name) && !self.may_use(name);
            if name != self.package && (is_above || self.without.contains(&name)) {
                wrong.insert(format!("{} depends on {name}", self.package));
            }
            for (_, allowed) in self.at_most.iter().filter(|(limited, _)| *limited == name) {
                let features = features.trim_end_matches(" (*)").split(',');
                for feature in features.filter(|name| !name.is_empty() && !allowed.contains(name)) {
                    wrong.insert(format!(
                        "{} has the feature {feature} of {name}",
                        self.package
                    ));
                }
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(package: &str, tree: &str) -> Vec<String> {
        let layer = Layer::of(package).unwrap();
        let ours = LAYERS.iter().map(|layer| layer.package).collect();
        layer.violations(tree, &ours).into_iter().collect()
    }

    #[test]
    fn a_tree_that_keeps_to_its_layer_is_fine() {
        let tree = "cantle-agent v0.1.0 (/src/crates/agent)|\n\
                    cantle-core v0.1.0 (/src/crates/core)|default,macros\n\
                    tokio v1.54.1|default,macros,rt,sync,time\n\
                    cantle-core v0.1.0 (/src/crates/core)|default,macros (*)\n";
        assert_eq!(violations("cantle-agent", tree), [""; 0]);
    }

    #[test]
    fn a_sibling_or_a_forbidden_crate_is_reported_once() {
        let tree = "cantle-agent v0.1.0 (/src/crates/agent)|\n\
                    cantle-clients v0.1.0 (/src/crates/clients)|chat,default\n\
                    reqwest v0.13.5|stream\n\
                    cantle-testkit v0.1.0 (/src/crates/testkit)|\n\
                    reqwest v0.13.5|stream (*)\n";
        assert_eq!(
            violations("cantle-agent", tree),
            [
                "cantle-agent depends on cantle-clients",
                "cantle-agent depends on cantle-testkit",
                "cantle-agent depends on reqwest",
            ]
        );
    }

    #[test]
    fn core_has_nothing_of_tokio_but_sync() {
        let core = "cantle-core v0.1.0 (/src/crates/core)|\n";
        let tree = |features: &str| format!("{core}tokio v1.54.1|{features}\n");
        assert_eq!(
            violations("cantle-core", &tree("default,sync (*)")),
            [""; 0]
        );
        assert_eq!(
            violations("cantle-core", &tree("default,rt,sync")),
            ["cantle-core has the feature rt of tokio"]
        );
    }
}
