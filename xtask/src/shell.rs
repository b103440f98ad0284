//! Running commands: each is printed before it runs, and named in the error if it fails.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Arguments of clippy after those of Cargo.
pub const DENY_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];

/// Returns Cargo in the root, without the variables that `cargo run` set for this program: build scripts
/// that watch them (such as `ring`'s) would run again after each switch between `cargo xtask` and `cargo`.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace::root());
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        let kind = name_text
            .strip_prefix("CARGO_")
            .and_then(|rest| rest.split('_').next());
        if let Some("PKG" | "MANIFEST" | "BIN" | "CRATE" | "PRIMARY") = kind {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Prints a command and runs it to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command
        .status()
        .with_context(|| format!("failed to start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Returns the standard output of a command; its standard error is inherited.
pub fn output(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("failed to start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{line}` is not UTF-8"))
}

/// Returns the output of a program, or `None` if it fails in any way.
pub fn probe(program: impl AsRef<OsStr>, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()
}

/// Formats a command as a shell line.
pub fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a phase and prints its name and duration.
pub fn timed<T>(title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("== {title}");
    let start = Instant::now();
    let done = work().with_context(|| format!("{title} failed"))?;
    eprintln!("== {title}: {:.1} s", start.elapsed().as_secs_f32());
    Ok(done)
}
