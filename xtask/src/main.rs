//! What the project does to itself: `cargo xtask test`, `check`, `package`, `dist`, `bench`.
//!
//! One file per subcommand: it holds a `clap` type and a `run`; [`Task`] lists it and `main` calls it.

mod bench;
mod check;
mod dist;
mod elf;
mod facade;
mod features;
mod guard;
mod layers;
mod package;
mod peers;
mod portable;
mod shell;
mod test;
#[cfg(test)]
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "What the project does to itself")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Test(test::Args),
    Check(check::Args),
    /// Package the crates, and test an extension crate against the packages
    Package,
    /// Build the static binary
    Dist,
    Bench(bench::Args),
    #[command(hide = true)]
    Guard(guard::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Check(args) => check::run(&args),
        Task::Package => package::run(),
        Task::Dist => dist::run(),
        Task::Bench(args) => bench::run(&args),
        Task::Guard(args) => return guard::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
