//! The images of `--image`, which are part of the task.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::core::content::{Content, ImageLimits, Media, MediaKind, Part};
use cantle::core::llm::ModelInfo;

/// Maximum number of images.
const MAX_IMAGES: usize = 20;

/// Maximum size of an image file.
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// Maximum size of all images as they are sent: less than an agent sends in a request.
const MAX_BYTES: usize = 20_000_000;

/// Returns the task with its images, scaled down to what models accept.
///
/// # Errors
/// If a file can't be read, is no image, or the images are too large together.
pub(crate) fn with_images(task: String, paths: &[PathBuf]) -> anyhow::Result<Content> {
    if paths.is_empty() {
        return Ok(task.into());
    }
    if paths.len() > MAX_IMAGES {
        bail!(
            "--image was given {} times; the maximum is {MAX_IMAGES}",
            paths.len()
        );
    }
    let mut parts = vec![Part::Text(task)];
    let mut size = 0;
    for path in paths {
        let image = read(path).with_context(|| format!("--image {}", path.display()))?;
        size += image.data().len();
        if size > MAX_BYTES {
            bail!("the images are larger than {MAX_BYTES} bytes together");
        }
        parts.push(Part::Media(image));
    }
    Ok(parts.into())
}

fn read(path: &Path) -> anyhow::Result<Media> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("the file is larger than {MAX_FILE_BYTES} bytes");
    }
    let image = Media::image(bytes).context("expected PNG, JPEG, GIF, WebP or BMP")?;
    Ok(image.within(ImageLimits::default())?)
}

/// Refuses images in a task for a model that is known not to accept them.
pub(crate) fn check(task: &Content, model: &ModelInfo) -> anyhow::Result<()> {
    let known = model.input_modalities.as_ref();
    let takes_images = known.is_none_or(|it| it.media.contains(&MediaKind::Image));
    if !takes_images && task.media().next().is_some() {
        bail!(
            "{} does not accept images, so --image can't be used. If it does, set --vision on",
            model.slug
        );
    }
    Ok(())
}
