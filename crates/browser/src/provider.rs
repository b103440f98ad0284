//! The provider of the browser tools.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::content::{Content, ImageLimits, Media, Part};
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{Sandbox, SandboxExt as _, SandboxPath};
use cantle_core::tool::{
    DynTool, OpenContext, ProviderError, Requirements, ToolContext, ToolError, ToolOutput,
    ToolProvider, ToolSet,
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use crate::browser::{Browser, DOWNLOADS};
use crate::failure::Failure;
use crate::requests::Request;
use crate::result::{Outcome, defuse};
use crate::settings::Settings;

/// Provides 14 tools for a browser in the session's sandbox, by default named `browser_navigate`, `browser_click` and
/// so on.
///
/// The browser is a command in the sandbox: it needs Chromium there, reaches the hosts that commands reach, and reads
/// the files that they read. It starts with the first call. After a crash, or if a page blocks it, that call fails and
/// the next one starts a new browser.
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct BrowserTools {
    settings: Settings,
}

impl BrowserTools {
    /// Creates a provider for a headless browser that shows the model no images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the prefix of the tools' names, by default `browser`; the empty prefix leaves it out.
    pub fn tool_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Sets whether the browser has no window, by default true. A window needs a display in the sandbox.
    pub fn headless(mut self, headless: bool) -> Self {
        self.settings.headless = headless;
        self
    }

    /// Sets the program, a path or name in the sandbox. Without it, the usual places of Chromium and Chrome are tried.
    pub fn executable_path(mut self, path: impl Into<String>) -> Self {
        self.settings.executable_path = Some(path.into());
        self
    }

    /// Adds arguments for the program.
    pub fn extra_args<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter().map(Into::into);
        self.settings.extra_args.extend(arguments);
        self
    }

    /// Shows screenshots to the model, scaled to `limits`; for models that accept images. Without, they are files.
    pub fn images(mut self, limits: ImageLimits) -> Self {
        self.settings.images = Some(limits);
        self
    }

    /// Sets the time limit of a call, by default 90 s. A call that exceeds it ends the browser.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }
}

#[async_trait]
impl ToolProvider for BrowserTools {
    fn name(&self) -> &str {
        "browser"
    }

    fn provides_sandbox(&self) -> bool {
        false
    }

    fn identity(&self) -> Value {
        json!({"prefix": self.settings.prefix})
    }

    fn requirements(&self) -> Requirements {
        Requirements::new()
    }

    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        let Some(sandbox) = cx.sandbox else {
            return Err(ProviderError::new(
                "the browser runs in the session's sandbox, and there is none: give the agent `CodeExec`",
            ));
        };
        Ok(Box::new(BrowserSet(Arc::new(SessionBrowser {
            settings: self.settings.clone(),
            sandbox,
            profile: format!("cantle-browser-{}", cx.run),
            browser: Mutex::new(None),
        }))))
    }
}

/// The browser of one session, once it is started.
struct SessionBrowser {
    settings: Settings,
    sandbox: Arc<dyn Sandbox>,
    /// The name of the profile's directory.
    profile: String,
    browser: Mutex<Option<Browser>>,
}

impl SessionBrowser {
    async fn call(&self, request: Request, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let call = self.call_in_time(request);
        match cx.cancellation.run_until_cancelled(call).await {
            Some(result) => result,
            None => Err(ToolError::cancelled()),
        }
    }

    async fn call_in_time(&self, request: Request) -> Result<ToolOutput, ToolError> {
        let mut slot = self.browser.lock().await;
        let limit = self.settings.timeout;
        let done = match timeout(limit, self.attempt(&mut slot, request)).await {
            Ok(done) => done,
            Err(_) => {
                let seconds = limit.as_secs_f64();
                Err(Failure::lost(format!(
                    "the call took longer than {seconds} s"
                )))
            }
        };
        match done {
            Ok((outcome, text)) => self.output(outcome, text).await,
            Err(Failure::Refused(text)) => {
                let text = format!("<browser>\n<error>{}</error>\n</browser>", defuse(&text));
                Ok(ToolOutput::failure(text).with_metadata(Metadata::uses(1)))
            }
            Err(Failure::Lost(reason)) => {
                if let Some(browser) = slot.take() {
                    browser.close().await;
                }
                Err(ToolError::failed(format!(
                    "The browser failed: {}. Its tabs and logins are lost; the next call starts a new one.",
                    defuse(&reason)
                )))
            }
            Err(Failure::Sandbox(error)) => {
                *slot = None;
                Err(error.into())
            }
        }
    }

    async fn attempt(
        &self,
        slot: &mut Option<Browser>,
        request: Request,
    ) -> Result<(Outcome, String), Failure> {
        let browser = match slot {
            Some(browser) => browser,
            None => {
                let sandbox = self.sandbox.as_ref();
                slot.insert(Browser::start(&self.settings, &self.profile, sandbox).await?)
            }
        };
        browser.begin_call();
        let mut outcome = browser.perform(request, self.sandbox.info()).await?;
        let text = browser.render(&mut outcome).await?;
        Ok((outcome, text))
    }

    async fn output(&self, outcome: Outcome, text: String) -> Result<ToolOutput, ToolError> {
        let content = match (outcome.image, self.settings.images) {
            (None, _) => Content::from(text),
            (Some(image), Some(limits)) => {
                let image = decode(image, limits).await?;
                Content::Parts(vec![Part::Text(text), Part::Media(image)])
            }
            (Some(image), None) => {
                let path = format!("{DOWNLOADS}/screenshot.png");
                let at = SandboxPath::new(&path)
                    .map_err(|error| ToolError::failed(error.to_string()))?;
                self.sandbox.write_bytes(&at, image).await?;
                Content::from(format!("{text}\nIt is the file `{path}`."))
            }
        };
        Ok(ToolOutput::new(content).with_metadata(outcome.metadata))
    }
}

/// Validates and scales an image on a new thread: the process that sent it is not trusted.
async fn decode(image: Bytes, limits: ImageLimits) -> Result<Media, ToolError> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("cantle-browser".to_owned())
        .spawn(move || {
            // Fails if the call was cancelled.
            let _ = sender.send(Media::image(image).and_then(|image| image.within(limits)));
        })
        .map_err(|error| {
            ToolError::failed("No thread could be started for the screenshot").with_source(error)
        })?;
    let decoded = receiver.await;
    let decoded = decoded.map_err(|_| ToolError::panicked("the decoder stopped"))?;
    decoded.map_err(|error| {
        ToolError::failed(format!("The screenshot is no valid image: {error}")).with_source(error)
    })
}

struct BrowserSet(Arc<SessionBrowser>);

impl BrowserSet {
    fn tool<P: DeserializeOwned + JsonSchema + Send + 'static>(
        &self,
        name: &str,
        description: &str,
        request: fn(P) -> Request,
    ) -> DynTool {
        let prefix = self.0.settings.prefix.as_str();
        let name = match prefix {
            "" => name.to_owned(),
            _ => format!("{prefix}_{name}"),
        };
        let session = Arc::clone(&self.0);
        DynTool::from_fn(name, description, move |params: P, cx: ToolContext| {
            let session = Arc::clone(&session);
            async move { session.call(request(params), &cx).await }
        })
        // The calls have a limit of their own.
        .with_timeout(None)
    }
}

#[async_trait]
impl ToolSet for BrowserSet {
    fn tools(&self) -> Vec<DynTool> {
        vec![
            self.tool("search", "Searches the web with a search engine in the browser.", Request::Search),
            self.tool(
                "navigate",
                "Opens a URL in the browser and returns a snapshot of the page: its text, and its links, buttons and \
                 fields with references such as [ref=e12]. Downloads go to `downloads/` of the working directory.",
                Request::Navigate,
            ),
            self.tool("go_back", "Goes back to the previous page.", Request::GoBack),
            self.tool("wait", "Waits for some seconds and returns what changed on the page.", Request::Wait),
            self.tool("click", "Clicks an element and returns what changed on the page.", Request::Click),
            self.tool(
                "input_text",
                "Types text into a field, or chooses an option of a list, and returns what changed on the page.",
                Request::InputText,
            ),
            self.tool("scroll", "Scrolls the page.", Request::Scroll),
            self.tool("find_text", "Finds text on the page and scrolls to it.", Request::FindText),
            self.tool("send_keys", "Presses keys, such as `Enter` or `Control+a`.", Request::SendKeys),
            self.tool("evaluate_js", "Runs JavaScript in the page and returns its value as JSON.", Request::EvaluateJs),
            self.tool("switch_tab", "Switches to another tab.", Request::SwitchTab),
            self.tool(
                "snapshot",
                "Describes the current page, up to 20,000 characters, with references for clicks and input.",
                Request::Snapshot,
            ),
            self.tool("screenshot", "Takes a screenshot of the visible part of the page.", Request::Screenshot),
            self.tool("get_url", "Returns the URL and title of the current page.", Request::GetUrl),
        ]
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        None
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        if let Some(browser) = self.0.browser.lock().await.take() {
            browser.close().await;
        }
        Ok(())
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        self.close().await
    }
}
