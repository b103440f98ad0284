//! The settings of the browser and its tools.

use std::time::Duration;

use cantle_core::content::ImageLimits;

/// Default time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Provides 14 tools for a browser in the session's sandbox, by default named `browser_navigate`, `browser_click` and
/// so on.
///
/// The browser is a command in the sandbox: it needs Chromium there, reaches the hosts that commands reach, and reads
/// the files that they read. It starts with the first call. After a crash, or if a page blocks it, that call fails and
/// the next one starts a new browser.
#[must_use]
#[derive(Clone, Debug)]
pub struct BrowserTools {
    pub(crate) prefix: String,
    pub(crate) headless: bool,
    pub(crate) executable_path: Option<String>,
    pub(crate) extra_args: Vec<String>,
    pub(crate) images: Option<ImageLimits>,
    pub(crate) timeout: Duration,
}

impl Default for BrowserTools {
    fn default() -> Self {
        Self {
            prefix: "browser".to_owned(),
            headless: true,
            executable_path: None,
            extra_args: Vec::new(),
            images: None,
            timeout: TIMEOUT,
        }
    }
}

impl BrowserTools {
    /// Creates a provider for a headless browser that shows the model no images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the prefix of the tools' names, by default `browser`; the empty prefix leaves it out.
    pub fn tool_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets whether the browser has no window, by default true. A window needs a display in the sandbox.
    pub fn headless(mut self, headless: bool) -> Self {
        self.headless = headless;
        self
    }

    /// Sets the program, a path or name in the sandbox. Without it, the usual places of Chromium and Chrome are tried.
    pub fn executable_path(mut self, path: impl Into<String>) -> Self {
        self.executable_path = Some(path.into());
        self
    }

    /// Adds arguments for the program.
    pub fn extra_args<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter().map(Into::into);
        self.extra_args.extend(arguments);
        self
    }

    /// Shows screenshots to the model, scaled to `limits`; for models that accept images. Without, they are files.
    pub fn images(mut self, limits: ImageLimits) -> Self {
        self.images = Some(limits);
        self
    }

    /// Sets the time limit of a call, by default 90 s. A call that exceeds it ends the browser.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
