//! Development tasks: `cargo xtask test`, `check`, `package`, `dist`, `bench`, `fuzz`, `soak`, `lines`.
//!
//! Each subcommand has a file with its arguments and a `run` function; [`Task`] lists them.

mod bench;
mod check;
mod dist;
mod facade;
mod features;
mod fuzz;
mod guard;
mod imports;
mod lane;
mod layers;
mod lines;
mod metadata;
mod package;
mod peers;
mod portable;
mod shell;
mod soak;
mod source;
mod static_build;
mod test;
#[cfg(test)]
mod tidy;
mod traits;
mod type_names;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Test(test::TestArgs),
    Check(check::CheckArgs),
    /// Package the crates, and test an extension crate against the packages
    Package,
    Dist(dist::DistArgs),
    Bench(bench::BenchArgs),
    Fuzz(fuzz::FuzzArgs),
    Lines(lines::LinesArgs),
    Soak(soak::SoakArgs),
    #[command(hide = true)]
    Guard(guard::GuardArgs),
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Check(args) => check::run(&args),
        Task::Package => package::run(),
        Task::Dist(args) => dist::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Lines(args) => lines::run(&args),
        Task::Soak(args) => soak::run(&args),
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
