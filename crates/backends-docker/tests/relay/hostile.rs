//! A relay that lies: it may end the sandbox, and nothing else.

use cantle_backends_docker::relay::{Relay, RelayOptions};
use cantle_core::sandbox::SandboxPath;
use cantle_supervisor::frames::{Answer, Lane};
use cantle_supervisor::wire::{READY_BYTES, REPORT_BYTES, Ready, Report};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::support::DEADLINE;

/// The first of the relay's commands is the one that looks for a shell.
const FIRST: u32 = 1;

fn answers() -> impl Strategy<Value = Vec<u8>> {
    let lane = prop::sample::select(Lane::ALL.to_vec());
    let id = prop_oneof![4 => Just(FIRST), 1 => any::<u32>()];
    let number = prop_oneof![any::<u64>(), 0..200_000_u64];
    let answer = (0..10_u8, id, lane, number).prop_map(|(kind, id, lane, number)| match kind {
        0 => Answer::Ready { length: number },
        1 => Answer::Report {
            id,
            length: REPORT_BYTES as u64,
        },
        2 => Answer::Gone { id },
        3 => Answer::Output {
            id,
            lane,
            length: number,
        },
        4 => Answer::Count {
            id,
            lane,
            total: number,
        },
        5 => Answer::End {
            id,
            lane,
            total: number,
        },
        6 => Answer::Taken { id, bytes: number },
        7 => Answer::InputClosed { id },
        8 => Answer::Staged { id, number },
        _ => Answer::Report { id, length: number },
    });
    let payload = prop::collection::vec(any::<u8>(), 0..100);
    let report = (any::<i32>(), any::<bool>()).prop_map(|(status, alone)| {
        Report::Ended {
            status,
            alone,
            cpu_us: 0,
            max_rss_kib: 0,
        }
        .encode()
        .to_vec()
    });
    let raw = prop::collection::vec(any::<u8>(), 0..64);
    let one = prop_oneof![
        4 => (answer.clone(), report).prop_map(|(answer, report)| [&answer.encode()[..], &report].concat()),
        4 => (answer, payload).prop_map(|(answer, payload)| {
            // As much as it says, within reason.
            let length = usize::try_from(answer.payload()).unwrap_or(0).min(200_000);
            let payload = payload.into_iter().chain(std::iter::repeat(0)).take(length);
            answer.encode().into_iter().chain(payload).collect()
        }),
        1 => raw,
    ];
    prop::collection::vec(one, 0..12).prop_map(|parts| parts.concat())
}

/// Speaks to a relay that says it is ready, then these bytes, and then nothing more.
async fn survives(said: Vec<u8>) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(ours);
    let lying = tokio::spawn(async move {
        let (mut listening, mut speaking) = tokio::io::split(theirs);
        let length = READY_BYTES as u64;
        let ready = Ready::Ready {
            missing: 0,
            landlock: 0,
        };
        let answer = [&Answer::Ready { length }.encode()[..], &ready.encode()].concat();
        // Whoever hangs up first.
        let _ = speaking.write_all(&answer).await;
        let _ = speaking.write_all(&said).await;
        let _ = speaking.shutdown().await;
        let _ = tokio::io::copy(&mut listening, &mut tokio::io::sink()).await;
    });
    let options = RelayOptions::new(SandboxPath::new("/work").unwrap());
    let relay = timeout(DEADLINE, Relay::connect(reader, writer, options));
    if let Ok(relay) = relay.await.expect("a lie is no reason to hang") {
        relay.gone().await;
    }
    lying.await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_a_relay_says_it_ends_at_worst(said in answers()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(survives(said));
    }
}

#[tokio::test]
async fn more_output_than_there_is_credit_for_ends_the_relay() {
    let mut said = Vec::new();
    for _ in 0..20 {
        let (id, lane, length) = (FIRST, Lane::Errors, 100_000);
        said.extend_from_slice(&Answer::Output { id, lane, length }.encode());
        said.extend(std::iter::repeat_n(0, 100_000));
    }
    survives(said).await;
}
