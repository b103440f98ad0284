//! Memory: bounded by configuration, not by what flows through. These cases look at this process's
//! own memory, so they run alone.

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, ExitStatus, OutputChunk, SandboxExt as _, SpawnRequest, WriteOptions,
};
use futures_util::{StreamExt as _, stream};

use super::super::check::{Checked, ensure, equal};
use super::super::suite::Case;
use super::bench::{Bench, Harness, path};
use super::{case, host};

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(output_of_100_megabytes_takes_little_memory)
            .alone()
            .optional(),
        case!(a_file_of_64_megabytes_takes_little_memory)
            .alone()
            .optional(),
    ]
}

async fn output_of_100_megabytes_takes_little_memory(bench: &Bench<'_>) -> Checked {
    const BYTES: u64 = 100_000_000;
    let mut meter = Meter::new()?;
    let mut count = 0;
    let mut sink = |chunk: OutputChunk| {
        count += chunk.bytes.len() as u64;
        meter.look();
    };
    let request = SpawnRequest::shell(format!("head -c {BYTES} /dev/zero"));
    let exit = bench.sandbox.exec(request, &mut sink).await?;
    meter.look();
    equal("exit", exit.status, ExitStatus::Code(0))?;
    equal(
        "bytes read and counted",
        (count, exit.stdout.total_bytes),
        (BYTES, BYTES),
    )?;
    meter.check("100 MB of output", BYTES)
}

async fn a_file_of_64_megabytes_takes_little_memory(bench: &Bench<'_>) -> Checked {
    const PIECE: usize = 65_536;
    const PIECES: usize = 1000;
    let size = (PIECE * PIECES) as u64;
    let file = path("large")?;
    let mut meter = Meter::new()?;
    let piece = Bytes::from(vec![7; PIECE]);
    let data = stream::iter((0..PIECES).map(move |_| Ok(piece.clone())));
    let options = WriteOptions::default().with_size(size);
    bench.sandbox.write(&file, options, Box::pin(data)).await?;
    meter.look();
    let mut data = bench.sandbox.read(&file, ByteRange::all()).await?;
    let mut count = 0;
    while let Some(piece) = data.next().await {
        count += piece?.len() as u64;
        meter.look();
    }
    equal("bytes written and read", count, size)?;
    meter.check("a file of 64 MB", size)
}

/// How much the memory of this process grows.
pub(super) struct Meter {
    before: u64,
    most: u64,
}

impl Meter {
    pub(super) fn new() -> Checked<Self> {
        let before = host::resident_bytes()?;
        Ok(Self {
            before,
            most: before,
        })
    }

    pub(super) fn look(&mut self) {
        self.most = self.most.max(host::resident_bytes().unwrap_or_default());
    }

    /// It has not grown by half of what went through. Less would be seen, too, but pieces are on their
    /// way, the allocator keeps what it had, and other tests of the process go on.
    pub(super) fn check(&self, what: &str, bytes: u64) -> Checked {
        let growth = self.most - self.before;
        ensure!(
            growth <= bytes / 2,
            "the memory of this process grew by {growth} bytes over {what}"
        );
        Ok(())
    }
}
