//! Python in real sandboxes of this machine.
#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    reason = "clippy knows tests by their attribute, and not the functions they call"
)]

mod hostile;
mod kernel;
mod one_shot;
mod tool;

use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_python::{Interpreter, PythonSession};

/// The system's Python: the sandbox does not see others.
pub(crate) fn interpreter() -> Interpreter {
    Interpreter::new(LocalBackend::new()).timeout(Duration::from_secs(60))
}

pub(crate) async fn session() -> PythonSession {
    interpreter().open().await.expect("the sandbox opens")
}
