//! The supervisor's protocols, and the archive by which its program is compared.

use std::ffi::CStr;
use std::time::Duration;

use cantle_backends_docker::holds_program;
use cantle_backends_docker::relay::{Relay, RelayOptions};
use cantle_core::sandbox::SandboxPath;
use cantle_supervisor::frames::{Answer, Request};
use cantle_supervisor::wire::{
    ControlGroup, Order, PlannedStep, Reader, Report, SETUP_REPLY_BYTES, Setup, SetupReply, Spawn,
};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::block_on;

const DEADLINE: Duration = Duration::from_secs(5);

/// Decodes a message, and what is encoded from it.
macro_rules! round_trip {
    ($type:ty, $data:expr) => {
        if let Some(message) = <$type>::decode($data) {
            let again = <$type>::decode(&message.encode());
            assert_eq!(again.map(|it| it.encode()), Some(message.encode()));
        }
    };
}

/// Messages between a backend and the supervisor, in both directions.
pub(crate) fn supervisor(data: &[u8]) {
    round_trip!(Order, data);
    round_trip!(SetupReply, data);
    round_trip!(Report, data);
    round_trip!(Request, data);
    round_trip!(Answer, data);
    let mut reader = Reader::new(data);
    if reader.read::<Setup<'_>>().is_some() {
        while reader.read::<ControlGroup<'_>>().is_some() {}
        while reader.read::<PlannedStep<'_>>().is_some() {}
    }
    let mut reader = Reader::new(data);
    while reader.read::<PlannedStep<'_>>().is_some() {}
    let mut reader = Reader::new(data);
    if reader.read::<Spawn<'_>>().is_some() {
        while reader.read::<&CStr>().is_some() {}
    }
}

/// Bytes of a hostile relay after its setup; they end the sandbox at worst.
pub(crate) fn relay(data: &[u8]) {
    block_on(async {
        let (client, relay) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(client);
        let (mut input, mut output) = tokio::io::split(relay);
        let length = SETUP_REPLY_BYTES as u64;
        let ready = SetupReply::Ready {
            missing: 0,
            landlock: 0,
        };
        let start = [&Answer::Ready { length }.encode()[..], &ready.encode()].concat();
        let serve = async {
            // The client may close the stream first.
            let _ = output.write_all(&start).await;
            let _ = output.write_all(data).await;
            let _ = output.shutdown().await;
            let _ = tokio::io::copy(&mut input, &mut tokio::io::sink()).await;
        };
        let connect = async {
            let options = RelayOptions::new(SandboxPath::new("/work").unwrap());
            if let Ok(relay) = Relay::connect(reader, writer, options).await {
                relay.gone().await;
            }
        };
        let both = timeout(DEADLINE, async { tokio::join!(serve, connect) });
        both.await.expect("the client ends with the stream");
    });
}

/// An engine's answer to the request for the supervisor's program.
pub(crate) fn archive(data: &[u8]) {
    const PROGRAM: &[u8] = b"program";
    let mut archive = data.to_vec();
    // The checksums of headers would hide every other change.
    for block in archive.chunks_exact_mut(512) {
        if block[257..].starts_with(b"ustar") {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    if holds_program(&archive, PROGRAM) {
        assert!(archive.windows(PROGRAM.len()).any(|it| it == PROGRAM));
    }
}
