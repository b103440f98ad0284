//! Python in real sandboxes of this machine.
#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    reason = "clippy knows tests by their attribute, and not the functions they call"
)]

mod code_session;
mod display;
mod failing;
mod hostile;
mod kernel;
mod mellea;
mod one_shot;
mod packages;
mod tool;

use std::path::PathBuf;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_python::{Interpreter, PythonSession};

/// The system's Python: the sandbox does not see others.
pub(crate) fn interpreter() -> Interpreter {
    Interpreter::new(LocalBackend::new()).timeout(Duration::from_secs(60))
}

/// Returns a traceback without the lines that point at expressions, which differ between versions.
pub(crate) fn without_carets(traceback: &str) -> String {
    let points =
        |line: &&str| line.contains(['^', '~']) && line.trim().trim_matches(['^', '~']).is_empty();
    traceback
        .split_inclusive('\n')
        .filter(|line| !points(line))
        .collect()
}

/// The Pythons of pyenv that are new enough.
pub(crate) fn other_pythons() -> Vec<PathBuf> {
    let home = std::env::home_dir().unwrap_or_default();
    let versions = std::fs::read_dir(home.join(".pyenv/versions"));
    let versions = versions.into_iter().flatten().flatten();
    let is_supported = |name: &str| {
        let minor = name
            .strip_prefix("3.")
            .and_then(|it| it.split('.').next()?.parse::<u32>().ok());
        minor.is_some_and(|minor| minor >= 9)
    };
    let versions = versions.filter(|it| it.file_name().to_str().is_some_and(is_supported));
    versions.map(|it| it.path().join("bin/python")).collect()
}

pub(crate) async fn session() -> PythonSession {
    interpreter().open().await.expect("the sandbox opens")
}
