//! `cargo xtask check`: what must hold before a change goes in, tests aside.

use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::{features, layers, portable, shell, workspace};

/// Check format, lints, docs, layers, features, other systems and tidiness.
#[derive(clap::Args)]
pub struct Args {
    /// Only these (default: all)
    #[arg(value_enum)]
    parts: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// The code is formatted
    Fmt,
    /// No warning of clippy's
    Clippy,
    /// No warning of rustdoc's
    Docs,
    /// No crate depends on one it must not know
    Layers,
    /// Each library builds with no feature, and with each alone
    Features,
    /// The local backend of other systems builds and works, and the program builds for one
    Portable,
    /// The rules for files in `xtask/src/tidy.rs`
    Tidy,
}

pub fn run(args: &Args) -> Result<()> {
    for part in Part::value_variants() {
        if args.parts.is_empty() || args.parts.contains(part) {
            shell::timed(part.name(), || part.run())?;
        }
    }
    Ok(())
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Fmt => "fmt",
            Part::Clippy => "clippy",
            Part::Docs => "docs",
            Part::Layers => "layers",
            Part::Features => "features",
            Part::Portable => "portable",
            Part::Tidy => "tidy",
        }
    }

    fn run(self) -> Result<()> {
        let mut cargo = shell::cargo();
        match self {
            Part::Fmt => {
                shell::run(supervisor("rustfmt").arg("--check"))?;
                cargo.args(["fmt", "--all", "--check"])
            }
            Part::Clippy => {
                lint_supervisor()?;
                cargo.args([
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--",
                    "-D",
                    "warnings",
                ])
            }
            // Libraries: the program's pages would overwrite those of the library of its name.
            Part::Docs => cargo
                .args(["doc", "--workspace", "--lib", "--no-deps"])
                .env("RUSTDOCFLAGS", "-D warnings"),
            Part::Tidy => cargo.args(["test", "--package", "xtask"]),
            Part::Layers => return layers::check(),
            Part::Features => return features::check(),
            Part::Portable => return portable::check(),
        };
        shell::run(&mut cargo)
    }
}

/// `tool` for the source of the supervisor, which a build script compiles and cargo doesn't know.
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
        .args([
            "--crate-type",
            "bin",
            "--emit",
            "metadata",
            "-C",
            "panic=abort",
        ])
        .args(["-D", "warnings", "-D", "clippy::undocumented_unsafe_blocks"])
        .arg("--out-dir")
        .arg(output.path());
    shell::run(&mut clippy)
}
