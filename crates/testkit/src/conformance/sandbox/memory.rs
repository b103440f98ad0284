//! Memory: bounded by configuration, not by the amount of data. These cases measure this process's
//! memory, so they run alone.

use super::prelude::*;

cases! { cases for Harness:
    output_of_100_megabytes_takes_little_memory.alone().optional(),
    a_file_of_64_megabytes_takes_little_memory.alone().optional(),
}

async fn output_of_100_megabytes_takes_little_memory(bench: &Bench<'_>) -> Checked {
    const BYTES: u64 = 100_000_000;
    let mut meter = MemoryMeter::new()?;
    let mut count = 0;
    let mut sink = |chunk: OutputChunk| {
        count += chunk.bytes.len() as u64;
        meter.sample();
    };
    let request = SpawnRequest::shell(format!("head -c {BYTES} /dev/zero"));
    let exit = bench.exec(request, &mut sink).await?;
    meter.sample();
    equal("exit", exit.status, ExitStatus::Code(0))?;
    let counted = [count, exit.stdout.total_bytes];
    equal("bytes read and counted", counted, [BYTES; 2])?;
    meter.check("100 MB of output", BYTES)
}

async fn a_file_of_64_megabytes_takes_little_memory(bench: &Bench<'_>) -> Checked {
    const PIECE: usize = 65_536;
    const PIECES: usize = 1000;
    let size = (PIECE * PIECES) as u64;
    let file = path("large")?;
    let mut meter = MemoryMeter::new()?;
    let piece = Bytes::from(vec![7; PIECE]);
    let data = stream::iter((0..PIECES).map(move |_| Ok(piece.clone())));
    let options = WriteOptions::default().with_size(size);
    bench.write(&file, options, Box::pin(data)).await?;
    meter.sample();
    let mut data = bench.read(&file, ByteRange::all()).await?;
    let mut count = 0;
    while let Some(piece) = data.next().await {
        count += piece?.len() as u64;
        meter.sample();
    }
    equal("bytes written and read", count, size)?;
    meter.check("a file of 64 MB", size)
}

/// Growth of this process's resident memory.
pub(super) struct MemoryMeter {
    baseline: u64,
    peak: u64,
}

impl MemoryMeter {
    pub(super) fn new() -> Checked<Self> {
        let baseline = host::resident_bytes()?;
        Ok(Self {
            baseline,
            peak: baseline,
        })
    }

    pub(super) fn sample(&mut self) {
        self.peak = self.peak.max(host::resident_bytes().unwrap_or_default());
    }

    /// Checks that memory grew by at most half of `bytes`. The margin covers in-flight data, memory
    /// retained by the allocator, and concurrent tests.
    pub(super) fn check(&self, what: &str, bytes: u64) -> Checked {
        let growth = self.peak - self.baseline;
        ensure!(
            growth <= bytes / 2,
            "the memory of this process grew by {growth} bytes over {what}"
        );
        Ok(())
    }
}
