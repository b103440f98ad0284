//! Unusually large trees and files: deeper than `PATH_MAX`, and a gigabyte.

use super::memory::MemoryMeter;
use super::prelude::*;

cases! { cases for Harness:
    a_tree_deeper_than_any_path_is_removed,
    a_file_of_1_gigabyte_goes_in_and_out.heavy().alone(),
}

async fn a_tree_deeper_than_any_path_is_removed(bench: &Bench<'_>) -> Checked {
    // 60 names of 100 bytes exceed PATH_MAX (4096).
    let script = "name=$(printf %0100d 0); mkdir deep; cd deep; \
                  for i in {1..60}; do mkdir $name; cd $name; echo x > file; done";
    bench.stdout(script).await?;
    bench.remove(&path("deep")?).await?;
    bench.must_print("the remaining files", "ls", "").await?;
    // The second tree is removed by `close`.
    bench.stdout(script).await?;
    Ok(())
}

async fn a_file_of_1_gigabyte_goes_in_and_out(bench: &Bench<'_>) -> Checked {
    const BYTES: u64 = 1 << 30;
    /// Coprime to all buffer sizes, so that lost, repeated or reordered pieces are detected.
    const PERIOD: usize = 1_000_003;
    const PIECE: usize = 256 * 1024;
    let pattern = [noise(PERIOD), noise(PERIOD)].concat();
    let pattern = Bytes::from(pattern);
    let own = pattern.clone();
    let part = move |at: u64, length: usize| {
        let from = (at % PERIOD as u64) as usize;
        own.slice(from..from + length)
    };
    let file = path("large")?;
    let mut meter = MemoryMeter::new().ok();
    let pieces = (0..BYTES / PIECE as u64).map({
        let part = part.clone();
        move |number| Ok(part(number * PIECE as u64, PIECE))
    });
    let options = WriteOptions::default().with_size(BYTES);
    let data = Box::pin(stream::iter(pieces));
    bench.write(&file, options, data).await?;
    let size = bench.stdout("stat -c %s large").await?;
    equal("the size a command sees", size.trim(), &*BYTES.to_string())?;

    let mut data = bench.read(&file, ByteRange::all()).await?;
    let mut at = 0;
    while let Some(piece) = data.next().await {
        let piece = piece?;
        for part_of_it in piece.chunks(PERIOD) {
            let expected = part(at, part_of_it.len());
            ensure!(
                part_of_it == expected,
                "the file differs within {} bytes from byte {at} on",
                part_of_it.len()
            );
            at += part_of_it.len() as u64;
        }
        if let Some(meter) = &mut meter {
            meter.sample();
        }
    }
    equal("bytes read", at, BYTES)?;
    meter.map_or(Ok(()), |meter| meter.check("a file of 1 GB", BYTES))
}
