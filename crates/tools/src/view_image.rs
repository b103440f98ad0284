//! The tool `view_image`.

mod similar_names;

use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use cantle_core::content::{Content, ImageLimits, Media, MediaError, MediaErrorKind, Part};
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SandboxPath};
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput, on_thread};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

/// Maximum size of an image file.
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// Shows the model an image in the sandbox: `view_image {path}`.
///
/// The file is validated and scaled to `limits`. It may have up to 32 MiB of PNG, JPEG, GIF, WebP or
/// BMP; of an animation, the model sees the first frame. Images are decoded on separate threads, at most
/// one per processor for all sessions that share the tool.
pub fn view_image(limits: ImageLimits) -> DynTool {
    let parallelism = thread::available_parallelism().map_or(1, usize::from);
    let decoders = Arc::new(Semaphore::new(parallelism));
    let description = "Shows you an image file (PNG, JPEG, GIF, WebP or BMP). A large image is scaled down: for its \
                       details, cut out the part you need first.";
    DynTool::from_fn("view_image", description, move |params: Params, cx| {
        show(params.path, cx, limits, Arc::clone(&decoders))
    })
    .with_concurrency_safe(true)
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The image file, relative to the working directory.
    path: String,
}

async fn show(
    path: String,
    cx: ToolContext,
    limits: ImageLimits,
    decoders: Arc<Semaphore>,
) -> Result<ToolOutput, ToolError> {
    let sandbox = cx.require_sandbox()?;
    // Taken before the file is read: waiting calls hold no memory.
    let permit = decoders.acquire_owned().await;
    let permit = permit.map_err(|_| ToolError::failed("The tool is closed."))?;
    let output = match read(&**sandbox, &path).await? {
        Ok(data) => {
            let (shown, image) = (path.clone(), data.clone());
            let thread = thread::Builder::new().name("cantle-image".to_owned());
            let decode = move || {
                // Held until the thread ends, also if the call was cancelled.
                let _permit = permit;
                view(&shown, image, limits)
            };
            match on_thread(thread, decode).await? {
                Ok(content) => ToolOutput::new(content),
                Err(error) => ToolOutput::failure(refusal(&path, &error, &data)),
            }
        }
        Err(advice) => ToolOutput::failure(advice),
    };
    Ok(output.with_metadata(Metadata::uses(1)))
}

/// Reads a file, or returns the reason that it cannot be shown.
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
            let similar = similar_names::suggest(sandbox, &at).await;
            format!("There is no file `{path}`.{similar}")
        }
        SandboxErrorKind::NotAFile => format!("`{path}` is not a file."),
        SandboxErrorKind::InvalidInput => {
            let limit = MAX_FILE_BYTES / (1024 * 1024);
            format!("{error}: up to {limit} MiB are read. Make a smaller image of it first.")
        }
        _ => return Err(error),
    }))
}

/// Returns an image as shown to the model.
fn view(path: &str, data: Bytes, limits: ImageLimits) -> Result<Content, MediaError> {
    let original = Media::image(data)?;
    let media = original.within(limits)?;
    let (before, after) = (size(&original)?, size(&media)?);
    let mut text = format!("{path}: {before} pixels, {}", original.mime_type());
    if after != before {
        text.push_str(&format!("; scaled down to {after} for you"));
    }
    if media.mime_type() != original.mime_type() {
        text.push_str(&format!("; shown as {}", media.mime_type()));
    }
    Ok(Content::Parts(vec![Part::Text(text), Part::Media(media)]))
}

/// Returns the size of an image as text.
fn size(image: &Media) -> Result<String, MediaError> {
    let size = image.image_size()?;
    Ok(size.map_or_else(String::new, |it| format!("{}×{}", it.width, it.height)))
}

/// Returns the reason that a file cannot be shown, with advice.
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
