//! How the suite is run: all of it, less, or with a way to kill a sandbox.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use cantle_core::sandbox::Sandbox;

type Killing<'o> = Pin<Box<dyn Future<Output = io::Result<()>> + 'o>>;
pub(super) type Killer<'o> = Arc<dyn Fn(Arc<dyn Sandbox>) -> Killing<'o> + 'o>;

/// How [`sandbox_with`](super::sandbox_with) is run. The default is every case that can be tried
/// with nothing but the backend.
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
pub struct SandboxOptions<'o> {
    pub(super) quick: bool,
    pub(super) names: Vec<&'o str>,
    pub(super) killer: Option<Killer<'o>>,
}

impl<'o> SandboxOptions<'o> {
    /// Every case, but those about a sandbox that is killed from outside.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same without the cases that move a gigabyte or make a hundred thousand files, for a
    /// backend that takes minutes to do so. Smaller ones of their kind are still there.
    #[must_use]
    pub fn quick(mut self) -> Self {
        self.quick = true;
        self
    }

    /// The cases of these names alone: while one of them is being mended.
    #[must_use]
    pub fn only(mut self, names: &[&'o str]) -> Self {
        self.names = names.to_vec();
        self
    }

    /// The same with the cases about a sandbox that is killed from outside: `kill` ends it at once, as
    /// a crash or an operator would, behind the backend's back.
    #[must_use]
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
