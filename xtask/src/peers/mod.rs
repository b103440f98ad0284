//! Peers: the software that tests talk to, installed once under `target/peers` and started per test run.
//!
//! Tests find a peer by environment variables. A test whose variable is missing reports that it was skipped.
//! A peer that cannot be installed or started is reported as skipped, or is an error if [`Required`] names
//! it.

mod aimock;
mod azurite;
mod busybox;
mod chromium;
mod docker;
mod e2b;
mod extractors;
mod index;
mod installer;
mod litellm;
mod llama;
mod mcp;
mod mdbook;
mod moto;
mod node;
mod phoenix;
mod postgres;
mod python;
mod s3s;
mod server;
mod static_program;
mod system;

use std::any::Any;
use std::collections::BTreeSet;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

pub use installer::Installer;
pub use server::Server;

use crate::lane::Lane;

type BringUp = fn(&Installer) -> Result<Ready>;

/// The peers that need no other one, and the first lane that has them.
const INDEPENDENT: [(&str, Lane, BringUp); 16] = [
    ("llama", Lane::Quick, llama::bring_up),
    // For histories that it wrote and histories that it must read (`xtask/peers/stirrup_history.py`). The second package
    // is a part that lxml has given up and a dependency of Stirrup still imports.
    ("stirrup", Lane::Quick, |installer| {
        let packages = ["stirrup", "lxml_html_clean"];
        let pins = include_str!("../../peers/stirrup.txt");
        let variable = "CANTLE_TEST_STIRRUP_PYTHON";
        python::peer(installer, ("stirrup", (3, 12)), &packages, pins, variable)
    }),
    // Cargo compiles all crates once more for it.
    ("static", Lane::Full, static_program::bring_up),
    ("e2b", Lane::Quick, e2b::bring_up),
    // Its figures are results of a Python kernel.
    ("matplotlib", Lane::Quick, |installer| {
        let pins = include_str!("../../peers/matplotlib.txt");
        let variable = "CANTLE_TEST_MATPLOTLIB";
        python::peer(
            installer,
            ("matplotlib", (3, 11)),
            &["matplotlib"],
            pins,
            variable,
        )
    }),
    ("moto", Lane::Quick, moto::bring_up),
    ("s3s", Lane::Full, s3s::bring_up),
    ("azurite", Lane::Full, azurite::bring_up),
    ("postgres", Lane::Quick, postgres::bring_up),
    ("mcp", Lane::Quick, mcp::bring_up),
    ("index", Lane::Quick, index::bring_up),
    ("chromium", Lane::Quick, |_| chromium::bring_up()),
    // The readers of exported runs: those of ATIF and of Inspect.
    ("readers", Lane::Full, |installer| {
        let pins = include_str!("../../peers/readers.txt");
        let variable = "CANTLE_TEST_READERS_PYTHON";
        python::peer(
            installer,
            ("readers", (3, 11)),
            &["atif", "inspect_ai"],
            pins,
            variable,
        )
    }),
    ("extractors", Lane::Full, extractors::bring_up),
    ("mdbook", Lane::Full, mdbook::bring_up),
    ("phoenix", Lane::Full, phoenix::bring_up),
];

/// The peers of which one needs another.
const DEPENDENT: [&str; 4] = ["aimock", "litellm", "busybox", "docker"];

fn names() -> impl Iterator<Item = &'static str> {
    DEPENDENT
        .into_iter()
        .chain(INDEPENDENT.map(|(name, ..)| name))
}

/// The peers that must be available: `CANTLE_REQUIRE`, a comma-separated list or `all`.
pub struct Required(BTreeSet<String>);

impl Required {
    pub fn from_env() -> Result<Required> {
        Required::parse(&std::env::var("CANTLE_REQUIRE").unwrap_or_default())
    }

    fn parse(list: &str) -> Result<Required> {
        let mut names = BTreeSet::new();
        for name in list.split(',').map(str::trim) {
            match name {
                "" => {}
                "all" => names.extend(self::names().map(str::to_owned)),
                _ if self::names().any(|peer| peer == name) => drop(names.insert(name.to_owned())),
                _ => bail!(
                    "CANTLE_REQUIRE names {name:?}, which is no peer; there are {} and `all`",
                    self::names().collect::<Vec<_>>().join(", ")
                ),
            }
        }
        Ok(Required(names))
    }

    fn names(&self, peer: &str) -> bool {
        self.0.contains(peer)
    }
}

/// A peer that tests can use. Dropping it stops its server.
#[derive(Default)]
pub struct Ready {
    /// Environment variables for the tests.
    pub variables: Vec<(&'static str, String)>,
    pub server: Option<Server>,
    /// Removed after the end of the server, which uses it.
    _leftovers: Option<Box<dyn Any + Send>>,
}

impl Ready {
    fn with<const N: usize>(variables: [(&'static str, String); N]) -> Self {
        Self {
            variables: variables.into(),
            ..Self::default()
        }
    }

    fn served<const N: usize>(server: Server, variables: [(&'static str, String); N]) -> Self {
        Self {
            server: Some(server),
            ..Self::with(variables)
        }
    }

    /// Keeps what belongs to the server until its end.
    fn with_leftovers(self, leftovers: impl Any + Send) -> Self {
        Self {
            _leftovers: Some(Box::new(leftovers)),
            ..self
        }
    }
}

/// The peers of a test run.
#[derive(Default)]
pub struct Peers {
    ready: Vec<Ready>,
    /// Peers that are not available.
    pub skipped: Vec<&'static str>,
}

impl Peers {
    /// Returns what tests find in their environment.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.ready
            .iter()
            .flat_map(|ready| ready.variables.iter().cloned())
    }

    fn add(
        &mut self,
        name: &'static str,
        outcome: Result<Ready>,
        required: &Required,
    ) -> Result<()> {
        match outcome {
            Ok(ready) => self.ready.push(ready),
            Err(error) if required.names(name) => {
                return Err(error).context(format!("required peer {name} is not available"));
            }
            Err(error) => {
                eprintln!("SKIPPED {name}: {error:#}");
                self.skipped.push(name);
            }
        }
        Ok(())
    }

    /// Stops all servers without waiting for their end.
    pub fn release(&mut self) {
        let servers = self.ready.iter_mut().flat_map(|ready| &mut ready.server);
        servers.for_each(Server::release);
    }
}

/// Prepares and starts all peers side by side.
pub fn bring_up(installer: &Installer, required: &Required) -> Result<Peers> {
    system::install_missing();
    let outcomes = thread::scope(|scope| -> Result<_> {
        let aimock = start(scope, "aimock", || aimock::bring_up(installer));
        let containers = start(scope, "docker", || {
            // In this order: the engine's images are made of BusyBox.
            let busybox = busybox::bring_up(installer);
            Ok((busybox, docker::bring_up(installer)))
        });
        let wanted = INDEPENDENT
            .into_iter()
            .filter(|(_, first, _)| *first <= installer.lane);
        let others: Vec<_> = wanted
            .map(|(name, _, bring_up)| (name, start(scope, name, move || bring_up(installer))))
            .collect();
        let proxy = litellm::prepare(installer);
        let aimock = join(aimock);
        // The proxy stands in front of aimock.
        let litellm = match &aimock {
            Ok((_, address)) => proxy.and_then(|proxy| litellm::start(&proxy, installer, address)),
            Err(_) => Err(anyhow!("it needs aimock")),
        };
        let (busybox, docker) = join(containers)?;
        let mut outcomes = vec![
            ("aimock", aimock.map(|(ready, _)| ready)),
            ("litellm", litellm),
            ("busybox", busybox),
            ("docker", docker),
        ];
        outcomes.extend(others.into_iter().map(|(name, other)| (name, join(other))));
        Ok(outcomes)
    })?;

    let mut peers = Peers::default();
    for (name, outcome) in outcomes {
        peers.add(name, outcome, required)?;
    }
    Ok(peers)
}

/// Prepares and starts nothing but the container engine.
pub fn bring_up_engine(installer: &Installer) -> Result<Ready> {
    system::install_missing();
    docker::bring_up(installer)
}

/// Prepares a peer beside the others, and prints how long it took.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &'static str,
    bring_up: impl FnOnce() -> Result<T> + Send + 'scope,
) -> ScopedJoinHandle<'scope, Result<T>> {
    scope.spawn(move || {
        let start = Instant::now();
        let outcome = bring_up();
        eprintln!("== peer {name}: {:.1} s", start.elapsed().as_secs_f32());
        outcome
    })
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("its thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_peers_are_listed_or_all() {
        let names = |list| {
            Required::parse(list)
                .unwrap()
                .0
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(names(""), [""; 0]);
        assert_eq!(names("llama, aimock,"), ["aimock", "llama"]);
        assert_eq!(
            names("all"),
            [
                "aimock",
                "azurite",
                "busybox",
                "chromium",
                "docker",
                "e2b",
                "extractors",
                "index",
                "litellm",
                "llama",
                "matplotlib",
                "mcp",
                "mdbook",
                "moto",
                "phoenix",
                "postgres",
                "readers",
                "s3s",
                "static",
                "stirrup"
            ]
        );
    }

    #[test]
    fn an_unknown_peer_is_refused() {
        let error = Required::parse("lama").err().unwrap();
        assert!(error.to_string().contains("\"lama\""), "{error}");
    }
}
