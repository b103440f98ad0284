//! The settings of the browser and its tools.

use std::time::Duration;

use cantle_core::content::ImageLimits;

/// Default time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The settings of the browser and its tools; their setters are those of the provider.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: String,
    pub(crate) headless: bool,
    pub(crate) executable_path: Option<String>,
    pub(crate) extra_args: Vec<String>,
    pub(crate) images: Option<ImageLimits>,
    pub(crate) timeout: Duration,
}

impl Default for Settings {
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
