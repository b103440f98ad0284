//! Memory stays bounded for any amount of output and any file size. A test program of its own, because it
//! measures the process.

#![cfg(confined)]
#![expect(
    clippy::unwrap_used,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

use std::sync::Arc;

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, Sandbox, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest, Spill,
};

/// Returns the peak memory of this process.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Allowance for chunks in transit and the allocator.
const BOUND: u64 = 32 << 20;

async fn open() -> Arc<dyn Sandbox> {
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    LocalBackend::new().open(cx).await.unwrap()
}

/// A single test, because the peak is per process.
#[tokio::test]
async fn output_and_files_of_any_size_use_bounded_memory() {
    let sandbox = open().await;
    sandbox.run(SpawnRequest::shell("true")).await.unwrap();
    let before = peak_bytes();
    output(&*sandbox).await;
    let grown = peak_bytes() - before;
    assert!(grown < BOUND, "{grown} bytes for output");
    files(&*sandbox).await;
    let grown = peak_bytes() - before;
    assert!(grown < BOUND, "{grown} bytes for files");
    sandbox.close().await.unwrap();
}

/// Captured, spilled and unread output.
async fn output(sandbox: &dyn Sandbox) {
    const GIGABYTE: u64 = 1 << 30;
    let line = format!("head -c {GIGABYTE} /dev/zero");

    let captured = sandbox.run(SpawnRequest::shell(&line)).await.unwrap();
    assert_eq!(captured.exit.stdout.total_bytes, GIGABYTE);

    let spill = Spill::after(1000).with_cap(64 << 20);
    let spilled = sandbox
        .run(SpawnRequest::shell(&line).with_spill(spill))
        .await
        .unwrap();
    assert_eq!(spilled.exit.stdout.total_bytes, GIGABYTE);

    let discarded = sandbox
        .spawn(SpawnRequest::shell(&line))
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    assert_eq!(discarded.stdout.total_bytes, GIGABYTE);
}

/// Downloads, uploads and transfers between sandboxes. The copies are only as large as
/// needed to show that they are not in memory.
async fn files(sandbox: &dyn Sandbox) {
    const SIZE: u64 = 8 * BOUND;
    let file: SandboxPath = "file".parse().unwrap();
    let line = format!("truncate -s {SIZE} file");
    sandbox.run(SpawnRequest::shell(line)).await.unwrap();

    let host = tempfile::tempdir().unwrap();
    let copy = host.path().join("copy");
    let size = sandbox.download(&file, &copy).await.unwrap();
    assert_eq!(size, SIZE);

    let uploaded = sandbox.upload(&copy, &file).await.unwrap();
    let sizes: Vec<_> = uploaded.files.iter().map(|file| file.size_bytes).collect();
    assert_eq!(sizes, [SIZE]);
    host.close().unwrap();

    let other = open().await;
    sandbox.copy_to(&file, &*other, &file).await.unwrap();
    assert_eq!(other.stat(&file).await.unwrap().size_bytes, SIZE);
    other.close().await.unwrap();
}
