//! Looking at pictures: the tool `view_image`.

mod near;

use std::sync::Arc;

use bytes::Bytes;
use cantle_core::content::{
    Content, ImageLimits, ImageSize, Media, MediaError, MediaErrorKind, Part,
};
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SandboxPath};
use cantle_core::tool::{DynTool, Tool, ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::{Semaphore, oneshot};

/// Bytes of a file that are read.
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// Lets the model look at a picture in the sandbox: `view_image {path}`.
///
/// The file is verified and brought within `limits` before it enters the conversation. Up to 32 MiB
/// of PNG, JPEG, GIF, WebP or BMP are read; of an animation, the model sees the first frame.
/// Pictures are decoded off the runtime, as many at a time as there are processors, for all sessions
/// that share the tool.
#[must_use]
pub fn view_image(limits: ImageLimits) -> DynTool {
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    DynTool::new(ViewImage {
        limits,
        decoders: Arc::new(Semaphore::new(at_once)),
    })
}

struct ViewImage {
    limits: ImageLimits,
    decoders: Arc<Semaphore>,
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The image file, relative to the working directory.
    path: String,
}

impl Tool for ViewImage {
    type Params = Params;

    fn name(&self) -> &str {
        "view_image"
    }

    fn description(&self) -> &str {
        "Shows you an image file (PNG, JPEG, GIF, WebP or BMP). A large image is scaled down: for its \
         details, cut out the part you need first."
    }

    fn concurrency_safe(&self) -> bool {
        true
    }

    async fn call(&self, params: Params, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let sandbox = cx.require_sandbox()?;
        let output = match read(&**sandbox, &params.path).await? {
            Ok(data) => match self.look(data.clone()).await? {
                Ok(seen) => ToolOutput::new(seen.content(&params.path)),
                Err(error) => ToolOutput::failure(refusal(&params.path, &error, &data)),
            },
            Err(advice) => ToolOutput::failure(advice),
        };
        Ok(output.with_metadata(Metadata::uses(1)))
    }
}

impl ViewImage {
    /// Decodes a file on a thread of its own. A call that is given up leaves it to its end, and
    /// holds its place among the decoders until then.
    async fn look(&self, data: Bytes) -> Result<Result<Seen, MediaError>, ToolError> {
        let no_place = |_| ToolError::failed("The tool is closed.");
        let place = Arc::clone(&self.decoders).acquire_owned();
        let place = place.await.map_err(no_place)?;
        let limits = self.limits;
        let (done, seen) = oneshot::channel();
        std::thread::Builder::new()
            .name("cantle-image".to_owned())
            .spawn(move || {
                // Nobody may be waiting any more.
                let _ = done.send(Seen::of(data, limits));
                drop(place);
            })
            .map_err(|error| {
                ToolError::failed("No thread could be started for the image").with_source(error)
            })?;
        seen.await
            .map_err(|_| ToolError::panicked("the image's decoder has given up"))
    }
}

/// Reads a file, or says why there is nothing to look at.
async fn read(sandbox: &dyn Sandbox, path: &str) -> Result<Result<Bytes, String>, SandboxError> {
    let at = match SandboxPath::new(path) {
        Ok(at) => at,
        Err(error) => return Ok(Err(format!("{error}."))),
    };
    let error = match sandbox.read_bytes(&at, MAX_FILE_BYTES).await {
        Ok(data) => return Ok(Ok(data)),
        Err(error) => error,
    };
    Ok(Err(match error.kind() {
        SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory => {
            let near = near::names(sandbox, &at).await;
            format!("There is no file `{path}`.{near}")
        }
        SandboxErrorKind::NotAFile => format!("`{path}` is not a file."),
        SandboxErrorKind::InvalidInput => {
            let limit = MAX_FILE_BYTES / (1024 * 1024);
            format!("{error}: up to {limit} MiB are read. Make a smaller image of it first.")
        }
        _ => return Err(error),
    }))
}

/// An image as the model sees it.
struct Seen {
    media: Media,
    before: ImageSize,
    after: ImageSize,
    before_type: &'static str,
}

impl Seen {
    fn of(data: Bytes, limits: ImageLimits) -> Result<Self, MediaError> {
        let original = Media::image(data)?;
        let media = original.within(limits)?;
        let none = ImageSize {
            width: 0,
            height: 0,
        };
        Ok(Self {
            before: original.image_size()?.unwrap_or(none),
            after: media.image_size()?.unwrap_or(none),
            before_type: original.mime_type(),
            media,
        })
    }

    fn content(self, path: &str) -> Content {
        let ImageSize { width, height } = self.before;
        let mut text = format!("{path}: {width}×{height} pixels, {}", self.before_type);
        if self.after != self.before {
            let ImageSize { width, height } = self.after;
            text.push_str(&format!("; scaled down to {width}×{height} for you"));
        }
        if self.media.mime_type() != self.before_type {
            text.push_str(&format!("; shown as {}", self.media.mime_type()));
        }
        Content::Parts(vec![Part::Text(text), Part::Media(self.media)])
    }
}

/// Why a file is not shown, and what to do instead.
fn refusal(path: &str, error: &MediaError, data: &[u8]) -> String {
    let advice = match error.kind() {
        MediaErrorKind::Type if data.is_empty() => " The file is empty.",
        MediaErrorKind::Type if is_text(data) => {
            " It is text: read it with a command, or make a PNG of it if it is a drawing (SVG)."
        }
        MediaErrorKind::Type => " Make a PNG of what you want to see first, and view that.",
        MediaErrorKind::TooLarge => " Make a smaller image of it first.",
        MediaErrorKind::Corrupt => " Make the file again.",
        _ => "",
    };
    format!("`{path}` can't be shown: {error}.{advice}")
}

fn is_text(data: &[u8]) -> bool {
    let head = data.get(..1024).unwrap_or(data);
    let is_cut_character = |error: std::str::Utf8Error| error.error_len().is_none();
    !head.contains(&0) && std::str::from_utf8(head).map_or_else(is_cut_character, |_| true)
}
