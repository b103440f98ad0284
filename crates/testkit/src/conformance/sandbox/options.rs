//! Options of the sandbox suite.

use std::pin::Pin;
use std::sync::Arc;
use std::{fmt, io};

use cantle_core::sandbox::Sandbox;

use crate::lane;

type KillFuture<'o> = Pin<Box<dyn Future<Output = io::Result<()>> + 'o>>;
pub(super) type Killer<'o> = Arc<dyn Fn(Arc<dyn Sandbox>) -> KillFuture<'o> + 'o>;

/// Options of [`sandbox_with`](super::sandbox_with). By default, every case runs that needs only the
/// backend.
///
/// ```no_run
/// # use cantle_core::sandbox::Backend;
/// # use cantle_testkit::conformance::{SandboxOptions, sandbox_with};
/// # async fn kill_container(_: &str) -> std::io::Result<()> { Ok(()) }
/// # async fn check(backend: &dyn Backend) {
/// let options = SandboxOptions::new().quick().killed_by(async |sandbox| {
///     kill_container(&sandbox.info().id).await
/// });
/// sandbox_with(backend, options).await.assert();
/// # }
/// ```
#[derive(Default)]
#[must_use]
pub struct SandboxOptions<'o> {
    pub(super) quick: bool,
    pub(super) names: Vec<&'o str>,
    pub(super) killer: Option<Killer<'o>>,
}

impl<'o> SandboxOptions<'o> {
    /// Selects every case except those about sandboxes killed from outside.
    pub fn new() -> Self {
        Self::default()
    }

    /// Skips the cases that transfer a gigabyte or create a hundred thousand files; smaller variants
    /// still run.
    pub fn quick(mut self) -> Self {
        self.quick = true;
        self
    }

    /// Applies [`quick`](Self::quick) unless the full [lane](crate::lane) is selected.
    pub fn in_lane(self) -> Self {
        if lane::choose("the cases that move a gigabyte", true, false) {
            self.quick()
        } else {
            self
        }
    }

    /// Runs only the named cases.
    pub fn only(mut self, names: &[&'o str]) -> Self {
        self.names = names.to_vec();
        self
    }

    /// Adds the cases about sandboxes killed from outside. `kill` ends a sandbox at once without the
    /// backend, as a crash or an operator would.
    pub fn killed_by<K>(mut self, kill: K) -> Self
    where
        K: AsyncFn(Arc<dyn Sandbox>) -> io::Result<()> + 'o,
    {
        let kill = Arc::new(kill);
        self.killer = Some(Arc::new(move |sandbox| {
            let kill = Arc::clone(&kill);
            Box::pin(async move { kill(sandbox).await })
        }));
        self
    }
}

impl fmt::Debug for SandboxOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxOptions")
            .field("quick", &self.quick)
            .field("names", &self.names)
            .field("killer", &self.killer.is_some())
            .finish()
    }
}
