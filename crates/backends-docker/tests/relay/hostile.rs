//! A malicious relay, which must not do more harm than to end the sandbox.

use std::time::Duration;

use cantle_backends_docker::relay::{Relay, RelayOptions};
use cantle_core::sandbox::{ByteRange, SandboxErrorKind, SandboxPath, SpawnRequest, WriteOptions};
use cantle_proxy::ProxySettings;
use cantle_supervisor::frames::{
    Answer, CONNECTION_ID, CONNECTION_WINDOW, Channel, MAX_CONNECTIONS,
};
use cantle_supervisor::wire::{REPORT_BYTES, Report, SETUP_REPLY_BYTES, SetupReply};
use futures_util::stream;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::support::DEADLINE;

/// The id of the first command, which looks for a shell.
const FIRST_ID: u32 = 1;

fn answers() -> impl Strategy<Value = Vec<u8>> {
    let channel = prop::sample::select(Channel::ALL.to_vec());
    let id = prop_oneof![4 => Just(FIRST_ID), 1 => any::<u32>()];
    let number = prop_oneof![any::<u64>(), 0..200_000_u64];
    let answer =
        (0..10_u8, id, channel, number).prop_map(|(kind, id, channel, number)| match kind {
            0 => Answer::Ready { length: number },
            1 => Answer::Report {
                id,
                length: REPORT_BYTES as u64,
            },
            2 => Answer::Gone { id },
            3 => Answer::Output {
                id,
                channel,
                length: number,
            },
            4 => Answer::Count {
                id,
                channel,
                total: number,
            },
            5 => Answer::End {
                id,
                channel,
                total: number,
            },
            6 => Answer::Taken { id, bytes: number },
            7 => Answer::InputClosed { id },
            8 => Answer::Connected {
                id: id | CONNECTION_ID,
            },
            _ => Answer::Report { id, length: number },
        });
    let payload = prop::collection::vec(any::<u8>(), 0..100);
    let report = (any::<i32>(), any::<bool>())
        .prop_map(|(status, alone)| Report::Ended { status, alone }.encode().to_vec());
    let raw = prop::collection::vec(any::<u8>(), 0..64);
    let one = prop_oneof![
        4 => (answer.clone(), report).prop_map(|(answer, report)| [&answer.encode()[..], &report].concat()),
        4 => (answer, payload).prop_map(|(answer, payload)| {
            // The announced length, up to a limit.
            let length = usize::try_from(answer.payload()).unwrap_or(0).min(200_000);
            let payload = payload.into_iter().chain(std::iter::repeat(0)).take(length);
            answer.encode().into_iter().chain(payload).collect()
        }),
        1 => raw,
    ];
    prop::collection::vec(one, 0..12).prop_map(|parts| parts.concat())
}

/// Connects to a relay that reports readiness, sends these bytes and closes its output.
async fn check_survives(bytes: Vec<u8>) {
    check_ends(bytes, AfterAnswers::CloseOutput).await;
}

/// The behaviour of a relay that has sent its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterAnswers {
    CloseOutput,
    Wait,
}

/// Connects to a relay and waits until the sandbox has ended.
async fn check_ends(bytes: Vec<u8>, after: AfterAnswers) {
    let (client, relay) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(client);
    let serving = tokio::spawn(async move {
        let (mut input, mut output) = tokio::io::split(relay);
        let length = SETUP_REPLY_BYTES as u64;
        let ready = SetupReply::Ready {
            missing: 0,
            landlock: 0,
        };
        let answer = [&Answer::Ready { length }.encode()[..], &ready.encode()].concat();
        // The client may close the stream first.
        let _ = output.write_all(&answer).await;
        let _ = output.write_all(&bytes).await;
        if after == AfterAnswers::CloseOutput {
            let _ = output.shutdown().await;
        }
        let _ = tokio::io::copy(&mut input, &mut tokio::io::sink()).await;
    });
    let mut options = RelayOptions::new(SandboxPath::new("/work").unwrap());
    options.proxy = Some(ProxySettings::new(Vec::new()));
    let relay = timeout(DEADLINE, Relay::connect(reader, writer, options));
    if let Ok(relay) = relay.await.expect("the client hangs") {
        relay.gone().await;
    }
    serving.await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn arbitrary_answers_at_worst_end_the_sandbox(bytes in answers()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check_survives(bytes));
    }
}

#[tokio::test]
async fn output_beyond_the_credit_ends_the_sandbox() {
    let mut bytes = Vec::new();
    for _ in 0..20 {
        let (id, channel, length) = (FIRST_ID, Channel::Stderr, 100_000);
        bytes.extend_from_slice(
            &Answer::Output {
                id,
                channel,
                length,
            }
            .encode(),
        );
        bytes.extend(std::iter::repeat_n(0, 100_000));
    }
    check_survives(bytes).await;
}

#[tokio::test(start_paused = true)]
async fn empty_output_ends_the_sandbox() {
    let output = Answer::Output {
        id: FIRST_ID,
        channel: Channel::Stdout,
        length: 0,
    };
    // Before the client gives up.
    let limit = Duration::from_secs(1);
    timeout(
        limit,
        check_ends(output.encode().into(), AfterAnswers::Wait),
    )
    .await
    .expect("the sandbox has ended");
}

#[tokio::test]
async fn more_reports_than_a_command_has_end_the_sandbox() {
    let report = Report::Started { pid: 1 }.encode();
    let length = REPORT_BYTES as u64;
    let answer = Answer::Report {
        id: FIRST_ID,
        length,
    };
    let bytes = [&answer.encode()[..], &report].concat().repeat(100);
    timeout(DEADLINE, check_ends(bytes, AfterAnswers::Wait))
        .await
        .expect("the sandbox has ended");
}

#[tokio::test]
async fn more_connections_or_bytes_than_granted_end_the_sandbox() {
    let connected = |number| {
        let id = CONNECTION_ID | number;
        Answer::Connected { id }.encode().to_vec()
    };
    let too_many = (0..=u32::try_from(MAX_CONNECTIONS).unwrap()).map(connected);
    let not_a_connection = Answer::Connected { id: 7 }.encode();
    // The proxy waits for the end of a head, which is too long for it; it reads no more.
    let piece = [b'x'; 1000];
    let output = Answer::Output {
        id: CONNECTION_ID,
        channel: Channel::Stderr,
        length: piece.len() as u64,
    };
    let output = [&output.encode()[..], &piece].concat();
    let too_long = [connected(0), output.repeat(CONNECTION_WINDOW / piece.len())].concat();
    for bytes in [
        too_many.flatten().collect(),
        not_a_connection.to_vec(),
        too_long,
    ] {
        timeout(DEADLINE, check_ends(bytes, AfterAnswers::Wait))
            .await
            .expect("the sandbox has ended");
    }
}

/// Answers the tasks that find a shell, and then nothing.
async fn connect_to_silent_relay() -> Relay {
    let (client, relay) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(client);
    tokio::spawn(async move {
        let (mut input, mut output) = tokio::io::split(relay);
        let length = SETUP_REPLY_BYTES as u64;
        let ready = SetupReply::Ready {
            missing: 0,
            landlock: 0,
        };
        let report = Report::Ended {
            status: 0,
            alone: true,
        };
        let (id, total) = (FIRST_ID, 0);
        let end = |channel| Answer::End { id, channel, total }.encode();
        let answer = [
            &Answer::Ready { length }.encode()[..],
            &ready.encode(),
            &end(Channel::Stdout),
            &end(Channel::Stderr),
            &Answer::Report {
                id,
                length: REPORT_BYTES as u64,
            }
            .encode(),
            &report.encode(),
            &Answer::Gone { id }.encode(),
        ]
        .concat();
        output.write_all(&answer).await.unwrap();
        let _ = tokio::io::copy(&mut input, &mut tokio::io::sink()).await;
        // Only the client ends the stream.
        drop(output);
    });
    let options = RelayOptions::new(SandboxPath::new("/work").unwrap());
    Relay::connect(reader, writer, options).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_forever_for_a_silent_relay() {
    let relay = connect_to_silent_relay().await;
    let path = SandboxPath::new("file").unwrap();
    let data = |length| Box::pin(stream::iter([Ok(vec![b'x'; length].into())]));
    let options = WriteOptions::default;
    let errors = [
        relay.spawn(SpawnRequest::argv(["true"])).await.map(drop),
        relay.read(&path, ByteRange::all()).await.map(drop),
        relay.write(&path, options(), data(1)).await,
        // More than the relay takes without a grant.
        relay.write(&path, options(), data(4 << 20)).await,
        relay.stat(&path).await.map(drop),
        relay.list(&path).await.map(drop),
        relay.mkdir(&path).await,
        relay.remove(&path).await,
        relay
            .rename(&path, &SandboxPath::new("other").unwrap())
            .await,
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Io);
        assert!(error.to_string().contains("did not answer"), "{error}");
    }
}
