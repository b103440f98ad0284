//! `cargo xtask check`: all checks but the tests.

use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::{features, imports, layers, portable, shell, traits, type_names, workspace};

/// Check format, lints, docs, layers, features, other systems and tidiness.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Only these (default: all)
    #[arg(value_enum)]
    parts: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Formatting
    Fmt,
    /// Clippy without warnings
    Clippy,
    /// Rustdoc without warnings
    Docs,
    /// Dependencies between crates
    Layers,
    /// No import cycles between sibling modules
    Imports,
    /// Unique type names within each crate
    Names,
    /// No default methods in public traits, which wrappers could forget; forwarding for pointers
    Traits,
    /// Each published library with no feature, and with each alone
    Features,
    /// The local backend for other systems
    Portable,
    /// The rules for files in `xtask/src/tidy`
    Tidy,
}

pub fn run(args: &CheckArgs) -> Result<()> {
    for part in Part::value_variants() {
        if args.parts.is_empty() || args.parts.contains(part) {
            let value = part.to_possible_value();
            let name = value.as_ref().map_or("", PossibleValue::get_name);
            shell::timed(name, || part.run())?;
        }
    }
    Ok(())
}

impl Part {
    fn run(self) -> Result<()> {
        let mut cargo = shell::cargo();
        match self {
            Part::Fmt => {
                shell::run(supervisor("rustfmt").arg("--check"))?;
                cargo.args(["fmt", "--all", "--check"])
            }
            Part::Clippy => {
                lint_supervisor()?;
                let targets = ["--workspace", "--all-targets"];
                cargo.arg("clippy").args(targets).args(shell::DENY_WARNINGS)
            }
            // Only libraries: the program's pages would overwrite those of the library of the same name. With an
            // example, dependencies have the features that the tests ask for, with which Clippy has checked them.
            Part::Docs => cargo
                .args(["doc", "--workspace", "--lib", "--example", "own_tool"])
                .arg("--no-deps")
                .env("RUSTDOCFLAGS", "-D warnings"),
            // The whole workspace's features, so that it reuses the dependencies that the tests were built with.
            Part::Tidy => cargo.args([
                "test",
                "--workspace",
                "--features",
                "cantle-cli/otel",
                "--bin",
                "xtask",
            ]),
            Part::Layers => return layers::check(),
            Part::Imports => return imports::check(),
            Part::Names => return type_names::check(),
            Part::Traits => return traits::check(),
            Part::Features => return features::check(),
            Part::Portable => return portable::check(),
        };
        shell::run(&mut cargo)
    }
}

/// Returns `tool` for the supervisor, which a build script compiles without Cargo.
fn supervisor(tool: &str) -> Command {
    let main = workspace::root().join("crates/supervisor/program/main.rs");
    let mut command = Command::new(tool);
    command.args(["--edition", "2024"]).arg(main);
    command
}

fn lint_supervisor() -> Result<()> {
    let output = tempfile::tempdir()?;
    let mut clippy = supervisor("clippy-driver");
    clippy
        .args(["--crate-type", "bin", "--emit", "metadata"])
        .args(["-C", "panic=abort"])
        .args(["-D", "warnings", "-D", "clippy::undocumented_unsafe_blocks"])
        .arg("--out-dir")
        .arg(output.path());
    shell::run(&mut clippy)
}
