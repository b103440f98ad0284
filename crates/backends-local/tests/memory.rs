//! Memory stays bounded, whatever a command writes. On its own, because it measures the process.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ByteRange, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest, Spill,
};
use futures_util::StreamExt as _;

/// The most memory this process ever had.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// One test for all: each would count for the others.
#[tokio::test]
async fn a_gigabyte_takes_a_few_megabytes() {
    const GIGABYTE: u64 = 1 << 30;
    const BOUND: u64 = 32 << 20;

    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    sandbox.run(SpawnRequest::shell("true")).await.unwrap();
    let before = peak_bytes();
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

    // A file that has no content takes no disk either.
    let file: SandboxPath = "sparse".parse().unwrap();
    sandbox
        .run(SpawnRequest::shell(format!(
            "truncate -s {GIGABYTE} sparse"
        )))
        .await
        .unwrap();
    let mut content = sandbox.read(&file, ByteRange::all()).await.unwrap();
    let mut read = 0;
    while let Some(piece) = content.next().await {
        read += piece.unwrap().len() as u64;
    }
    assert_eq!(read, GIGABYTE);

    let grown = peak_bytes() - before;
    assert!(grown < BOUND, "{grown} bytes");
    sandbox.close().await.unwrap();
}
