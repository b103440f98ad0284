//! The test programs that Cargo builds, and how they are started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::guard::Guarded;
use crate::lane::Lane;
use crate::metadata::Metadata;
use crate::shell;

/// Selections of `cargo test` that exclude documentation tests.
const TARGET_FLAGS: [&str; 10] = [
    "--lib",
    "--bin",
    "--bins",
    "--test",
    "--tests",
    "--example",
    "--examples",
    "--bench",
    "--benches",
    "--all-targets",
];

/// The arguments for `cargo test`, and those behind `--` for the test programs.
pub struct CargoArgs {
    pub cargo: Vec<String>,
    pub tests: Vec<String>,
}

impl CargoArgs {
    pub fn parse(given: &[String]) -> CargoArgs {
        let mut parts = given.splitn(2, |word| word == "--");
        let mut cargo = parts.next().unwrap_or_default().to_vec();
        let names_packages = cargo
            .iter()
            .any(|word| word.starts_with("-p") || word.starts_with("--package"));
        if !names_packages {
            cargo.insert(0, "--workspace".to_owned());
        }
        CargoArgs {
            cargo,
            tests: parts.next().unwrap_or_default().to_vec(),
        }
    }

    /// Builds the `cantle` program, if it is tested, with the optional features of a lane: the full one has the
    /// servers of the stores, and a static program with all features.
    pub fn add_features(&mut self, lane: Lane) {
        let is_tested = |word: &String| word == "--workspace" || word.ends_with("cantle-cli");
        if self.cargo.iter().any(is_tested) {
            let features = match lane {
                Lane::Quick => "cantle-cli/otel",
                Lane::Full => "cantle-cli/azure,cantle-cli/postgres,cantle-cli/s3",
            };
            self.cargo.push(format!("--features={features}"));
        }
    }

    pub fn has_programs(&self) -> bool {
        !self.cargo.iter().any(|word| word == "--doc")
    }

    pub fn has_doc_tests(&self) -> bool {
        let selects = |word: &String| {
            let flag = word.split('=').next().unwrap_or_default();
            TARGET_FLAGS.contains(&flag)
        };
        !self.cargo.iter().any(selects)
    }
}

/// A built test program.
pub struct TestProgram {
    pub package: String,
    /// The name of the target: a library, a program or an integration test.
    pub target: String,
    pub path: PathBuf,
    manifest: PathBuf,
}

/// Builds the tests and lists their programs.
pub fn build(args: &CargoArgs) -> Result<Vec<TestProgram>> {
    let mut cargo = shell::cargo();
    cargo.arg("test").args(&args.cargo);
    if !args.has_programs() {
        return Ok(Vec::new());
    }
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let line = shell::line(&cargo);
    eprintln!("$ {line}");
    let messages = tempfile::NamedTempFile::new()?;
    let stdout = Stdio::from(messages.reopen()?);
    let status = Guarded::spawn(&cargo, stdout, Stdio::inherit())?.wait()?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    let text = fs::read_to_string(messages.path())?;
    let packages = Metadata::read()?.packages;
    let mut programs = Vec::new();
    for line in text.lines() {
        let message: Value =
            serde_json::from_str(line).context("failed to read a message of cargo's")?;
        let text = |at| Some(message.pointer(at)?.as_str()?.to_owned());
        if message["profile"]["test"] == true
            && let Some(path) = text("/executable")
            && let (Some(manifest), Some(target)) = (text("/manifest_path"), text("/target/name"))
        {
            let manifest = PathBuf::from(manifest);
            let package = packages
                .iter()
                .find(|package| package.manifest_path == manifest);
            let package =
                package.with_context(|| format!("{} is no package", manifest.display()))?;
            programs.push(TestProgram {
                package: package.name.clone(),
                target,
                path: path.into(),
                manifest,
            });
        }
    }
    Ok(programs)
}

impl TestProgram {
    /// Returns the command line without arguments, in the environment that `cargo test` provides.
    pub fn command(&self, libraries: &Path) -> Command {
        let mut command = Command::new(&self.path);
        let directory = self.manifest.parent().unwrap_or(Path::new("."));
        let artifacts = self.path.parent().unwrap_or(Path::new("."));
        // The tests of procedural macros are linked with the shared standard library.
        let search = [artifacts, libraries]
            .map(|path| path.display().to_string())
            .join(":");
        command
            .current_dir(directory)
            .env("CARGO_MANIFEST_DIR", directory)
            .env("CARGO_MANIFEST_PATH", &self.manifest)
            .env("CARGO_PKG_NAME", &self.package)
            .env("CARGO", shell::cargo().get_program())
            .env("LD_LIBRARY_PATH", search);
        command
    }

    /// Returns the names of its tests, in order.
    pub fn tests(&self, libraries: &Path, filters: &[String]) -> Result<Vec<String>> {
        let mut list = self.command(libraries);
        list.args(filters).args(["--list", "--format=terse"]);
        let names = shell::output(&mut list)?;
        let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str]) -> CargoArgs {
        CargoArgs::parse(
            &given
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn all_packages_are_tested_unless_some_are_named() {
        assert_eq!(parse(&[]).cargo, ["--workspace"]);
        assert_eq!(parse(&["-p", "cantle-core"]).cargo, ["-p", "cantle-core"]);
    }

    #[test]
    fn arguments_of_the_tests_are_not_for_the_build() {
        let args = parse(&["--lib", "--", "--nocapture", "--", "x"]);
        assert_eq!(args.cargo, ["--workspace", "--lib"]);
        assert_eq!(args.tests, ["--nocapture", "--", "x"]);
    }

    #[test]
    fn a_selected_target_excludes_documentation_tests() {
        assert!(parse(&["-p", "cantle-core"]).has_doc_tests());
        assert!(!parse(&["--test=local"]).has_doc_tests());
        assert!(parse(&["--doc"]).has_doc_tests() && !parse(&["--doc"]).has_programs());
    }
}
