//! Looking at pictures in a sandbox.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cantle_core::content::{Content, ImageLimits, MediaKind, Part};
use cantle_core::ids::RunId;
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{SandboxExt as _, SandboxPath};
use cantle_core::tool::{ToolContext, ToolErrorKind, ToolOutput};
use cantle_tools::view_image;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use image::{ImageFormat, RgbImage};
use serde_json::json;

use crate::gated::GatedSandbox;
use crate::session::{Session, call, provider};

fn picture(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
    let mut data = Cursor::new(Vec::new());
    RgbImage::new(width, height)
        .write_to(&mut data, format)
        .expect("it is encoded");
    data.into_inner()
}

async fn write(session: &Session, path: &str, data: impl Into<Bytes>) {
    let path = SandboxPath::new(path).expect("a path");
    let written = session.sandbox().write_bytes(&path, data.into()).await;
    written.expect("it is written");
}

async fn view(session: &Session, path: &str) -> ToolOutput {
    let tool = view_image(ImageLimits::default().with_max_pixels(10_000));
    let output = call(&tool, json!({"path": path}), session.context()).await;
    let output = output.expect("it works");
    assert_eq!(output.metadata, Some(Metadata::uses(1)));
    output
}

#[test]
fn spec_of_view_image() {
    let tool = view_image(ImageLimits::default());
    let spec = tool.spec();
    let parameters = serde_json::to_string_pretty(spec.parameters()).expect("JSON");
    insta::assert_snapshot!(
        "view_image_spec",
        format!("{}\n\n{}\n\n{parameters}", spec.name(), spec.description())
    );
    assert!(tool.properties().concurrency_safe);
}

#[tokio::test]
async fn images_come_with_a_description() {
    let session = Session::open(provider()).await;
    let small = picture(40, 30, ImageFormat::Png);
    write(&session, "small.png", small.clone()).await;
    write(
        &session,
        "out/large.jpg",
        picture(400, 100, ImageFormat::Jpeg),
    )
    .await;
    write(&session, "old", picture(40, 30, ImageFormat::Bmp)).await;
    let cases = [
        (
            "small.png",
            "small.png: 40×30 pixels, image/png",
            "image/png",
        ),
        (
            "./out/large.jpg",
            "./out/large.jpg: 400×100 pixels, image/jpeg; scaled down to 200×50 for you",
            "image/jpeg",
        ),
        (
            "old",
            "old: 40×30 pixels, image/bmp; shown as image/png",
            "image/png",
        ),
    ];
    for (path, line, mime_type) in cases {
        let output = view(&session, path).await;
        assert!(output.success);
        let Content::Parts(parts) = &output.content else {
            panic!("{path} has no parts");
        };
        let [Part::Text(text), Part::Media(media)] = parts.as_slice() else {
            panic!("{parts:?}");
        };
        assert_eq!((text.as_str(), media.mime_type()), (line, mime_type));
        assert_eq!(media.kind(), MediaKind::Image);
        if path == "small.png" {
            assert_eq!(media.data(), &small);
        }
    }
    session.close().await;
}

#[tokio::test]
async fn invalid_images_are_refused_with_advice() {
    let session = Session::open(provider()).await;
    let whole = picture(40, 30, ImageFormat::Png);
    write(&session, "cut.png", whole[..whole.len() / 2].to_vec()).await;
    write(&session, "chart.png", whole).await;
    write(&session, "Chart-2.png", "x").await;
    write(
        &session,
        "drawing.svg",
        "<svg xmlns='http://www.w3.org/2000/svg'/>",
    )
    .await;
    write(&session, "report.pdf", "%PDF-1.7\n\0").await;
    write(&session, "empty.png", "").await;
    write(&session, "noise", vec![0xfe; 100]).await;
    write(&session, "scan.tiff", "II*\0\x08\0\0\0\0\0\0").await;
    session
        .run("mkdir out; truncate -s 33M huge.png; ln -s /etc/hostname escape")
        .await;
    let paths = [
        "chrt.png",
        "CHART.PNG",
        "elsewhere/x.png",
        "cut.png/x.png",
        "out",
        "a\0b",
        "huge.png",
        "cut.png",
        "drawing.svg",
        "report.pdf",
        "empty.png",
        "noise",
        "scan.tiff",
    ];
    let mut report = String::new();
    for path in paths {
        let output = view(&session, path).await;
        assert!(!output.success, "{path}");
        report.push_str(&format!(
            "{}\n",
            output.content.text().replace('\0', "[NUL]")
        ));
    }
    insta::assert_snapshot!("view_image_refused", report);
    session.close().await;
}

#[tokio::test]
async fn a_sandbox_is_required() {
    let cx = ToolContext::new(RunId::new(), "call-1");
    let tool = view_image(ImageLimits::default());
    let error = call(&tool, json!({"path": "a.png"}), cx).await.unwrap_err();
    assert_eq!(error.kind(), ToolErrorKind::Failed);
}

#[tokio::test]
async fn waiting_calls_have_read_no_image() {
    const CALLS: usize = 80;
    let session = Session::open(provider()).await;
    write(&session, "a.png", picture(40, 30, ImageFormat::Png)).await;
    let sandbox = Arc::new(GatedSandbox::new(session.sandbox()));
    let mut cx = session.context();
    cx.sandbox = Some(sandbox.clone());
    let tool = view_image(ImageLimits::default());
    let mut calls = FuturesUnordered::new();
    for _ in 0..CALLS {
        calls.push(call(&tool, json!({"path": "a.png"}), cx.clone()));
    }
    let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
    for done in 0..CALLS {
        // Every call is polled before one can end, because no read is allowed.
        assert!(calls.next().now_or_never().is_none());
        let reads = sandbox.reads.load(Ordering::Relaxed);
        assert!(
            (1..=done + parallelism).contains(&reads),
            "{reads} after {done}"
        );
        sandbox.allowed.add_permits(1);
        let output = calls.next().await.unwrap().unwrap();
        assert!(output.success);
    }
    session.close().await;
}
