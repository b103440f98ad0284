//! The layers: which crates of this workspace and which external crates each crate may depend on.
//!
//! Only linked dependencies count: normal ones, with all features, transitively. Tests may use any crate.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::metadata::Metadata;
use crate::{facade, shell};

/// The dependency rules of one package.
struct Layer {
    package: &'static str,
    /// Crates of this workspace that it may depend on.
    ours: &'static [&'static str],
    /// Crates that it must not depend on.
    without: &'static [&'static str],
    /// The only features that it may enable of certain crates.
    at_most: &'static [(&'static str, &'static [&'static str])],
}

/// The default for a library: it depends on core and does not use the terminal.
const LIBRARY: Layer = Layer {
    package: "",
    ours: &["cantle-core"],
    without: &["anyhow", "clap"],
    at_most: &[],
};

/// Libraries that never talk to the network.
const OFFLINE: Layer = Layer {
    without: &["anyhow", "clap", "hyper", "reqwest", "rustls"],
    ..LIBRARY
};

const LAYERS: &[Layer] = &[
    Layer {
        package: "cantle-core",
        ours: &[],
        without: &[
            "anyhow", "clap", "hyper", "mio", "nix", "reqwest", "rustix", "rustls", "socket2",
        ],
        // The cancellation token's.
        at_most: &[("tokio", &["default", "sync"])],
    },
    Layer {
        package: "cantle-macros",
        ours: &[],
        without: &["anyhow", "clap", "tokio"],
        ..LIBRARY
    },
    Layer {
        package: "cantle-tls",
        ours: &[],
        without: &["anyhow", "clap", "reqwest", "tokio"],
        ..LIBRARY
    },
    Layer {
        package: "cantle-clients",
        ours: &["cantle-core", "cantle-tls"],
        ..LIBRARY
    },
    Layer {
        package: "cantle-supervisor",
        ours: &[],
        ..LIBRARY
    },
    Layer {
        package: "cantle-command-driver",
        ..OFFLINE
    },
    Layer {
        package: "cantle-backends-docker",
        ours: &[
            "cantle-command-driver",
            "cantle-core",
            "cantle-supervisor",
            "cantle-tls",
        ],
        ..LIBRARY
    },
    Layer {
        package: "cantle-backends-remote",
        ours: &["cantle-command-driver", "cantle-core", "cantle-tls"],
        ..LIBRARY
    },
    Layer {
        package: "cantle-server",
        // Which backend it serves is for the program to say.
        without: &["anyhow", "clap", "reqwest", "rustls"],
        ..LIBRARY
    },
    Layer {
        package: "cantle-backends-local",
        ours: &["cantle-command-driver", "cantle-core", "cantle-supervisor"],
        // Its proxy speaks HTTP; what is encrypted passes through.
        without: &["anyhow", "clap", "reqwest", "rustls"],
        ..LIBRARY
    },
    Layer {
        package: "cantle-tools",
        ..OFFLINE
    },
    Layer {
        package: "cantle-agent",
        ..OFFLINE
    },
    Layer {
        package: "cantle-testkit",
        ..LIBRARY
    },
    Layer {
        package: "cantle",
        ours: &[
            "cantle-agent",
            "cantle-backends-docker",
            "cantle-backends-local",
            "cantle-backends-remote",
            "cantle-clients",
            "cantle-command-driver",
            "cantle-core",
            "cantle-supervisor",
            "cantle-tls",
            "cantle-tools",
        ],
        ..LIBRARY
    },
    Layer {
        package: "cantle-cli",
        ours: &[
            "cantle",
            "cantle-agent",
            "cantle-backends-docker",
            "cantle-backends-local",
            "cantle-backends-remote",
            "cantle-clients",
            "cantle-command-driver",
            "cantle-core",
            "cantle-server",
            "cantle-supervisor",
            "cantle-tls",
            "cantle-tools",
        ],
        without: &[],
        at_most: &[],
    },
    Layer {
        package: "cantle-bench",
        ours: &[
            "cantle-agent",
            "cantle-backends-docker",
            "cantle-backends-local",
            "cantle-backends-remote",
            "cantle-clients",
            "cantle-command-driver",
            "cantle-core",
            "cantle-supervisor",
            "cantle-testkit",
            "cantle-tls",
        ],
        without: &[],
        at_most: &[],
    },
    Layer {
        package: "xtask",
        ours: &[],
        without: &[],
        at_most: &[],
    },
];

pub fn check() -> Result<()> {
    let packages = Metadata::read()?.packages;
    let mut wrong = Vec::new();
    for package in &packages {
        let Some(layer) = LAYERS.iter().find(|layer| layer.package == package.name) else {
            bail!("{} has no row in {}", package.name, file!());
        };
        let tree = shell::output(shell::cargo().args([
            "tree",
            "--package",
            layer.package,
            // Not what runs in the compiler: a macro brings nothing of its own into a program.
            "--edges=normal,no-proc-macro",
            "--all-features",
            "--prefix=none",
            "--format={p}|{f}",
        ]))?;
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
    /// Returns the violations in a dependency tree (lines of `name version … |features`).
    fn violations(&self, tree: &str, ours: &BTreeSet<&str>) -> BTreeSet<String> {
        let mut wrong = BTreeSet::new();
        for line in tree.lines() {
            let (package, features) = line.split_once('|').unwrap_or((line, ""));
            let Some(name) = package.split_whitespace().next() else {
                continue;
            };
            let not_ours_to_know = ours.contains(name) && !self.ours.contains(&name);
            if name != self.package && (not_ours_to_know || self.without.contains(&name)) {
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
        let layer = LAYERS
            .iter()
            .find(|layer| layer.package == package)
            .unwrap();
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
