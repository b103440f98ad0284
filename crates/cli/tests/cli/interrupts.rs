//! Ctrl-C and its relatives.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use cantle_testkit::openai::{Fault, Script, ScriptedServer, Turn};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use crate::command;
use crate::support::{DEADLINE, HEARD, Mark, Place, ended, redact, send};

/// What a command that was cancelled has until it is killed.
const GRACE: Duration = Duration::from_secs(1);

/// A run whose command has started a child of its own session, and goes on for ever; both have the
/// mark. `signals` is what the run hears of, `before` is what its command does first.
async fn busy(place: &Place, signals: &[&str], before: &str) -> (ScriptedServer, Child, Mark) {
    let mark = Mark::new(place);
    let script = format!(
        "{before} echo kept > work.txt; setsid bash -c 'sleep 1000; :' {mark} & \
         while true; do sleep 1; done"
    );
    let server = ScriptedServer::start(Script::new().turn(command(&script)))
        .await
        .unwrap();
    let url = server.url();
    let args = [
        "run",
        "Work",
        "--output-dir",
        "out",
        "--model",
        "m",
        "--base-url",
        &url,
    ];
    let child = place.command_with_signals(signals, args).spawn().unwrap();
    mark.appeared().await;
    (server, child, mark)
}

#[tokio::test]
async fn the_first_cancels_and_says_what_was_kept() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = Place::new();
        let (_server, child, mark) = busy(&place, &[HEARD], "").await;
        send(&child, signal);
        let ended = ended(child).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(4), ""), "{ended:?}");
        mark.gone().await;
        assert_eq!(
            place.list("out"),
            ["cantle-history.json", "cantle-unfinished"]
        );
        assert_eq!(place.read("out/cantle-unfinished/work.txt"), "kept\n");
        for said in [
            "cancelling; once more ends it at once",
            "✗ cancelled",
            "cantle-history.json",
        ] {
            assert!(ended.stderr.contains(said), "{}", ended.stderr);
        }
    }
}

#[tokio::test]
async fn the_second_ends_at_once() {
    let place = Place::new();
    let (_server, mut child, mark) = busy(&place, &[HEARD], "trap '' TERM INT;").await;
    let first = Instant::now();
    send(&child, Signal::INT);
    // The first has to be heard, or the second would be the first.
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let heard = async {
        while !said
            .next_line()
            .await
            .unwrap()
            .unwrap()
            .contains("cancelling")
        {}
    };
    timeout(DEADLINE, heard).await.unwrap();
    send(&child, Signal::INT);
    let in_time = first.elapsed() < GRACE;
    let ended = ended(child).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(4), ""), "{ended:?}");
    mark.gone().await;
    assert!(!place.path("out/cantle-result.json").exists());
    // Where we were held up, the first one may have had its way before.
    if in_time {
        assert_eq!(place.list("out"), [""; 0]);
    }
}

#[tokio::test]
async fn a_model_that_does_not_answer_is_not_waited_for() {
    let script = Script::new().turn(Turn::text("").fault_always(Fault::Hang));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let child = place
        .command_with_signals(&[HEARD], ["run", "Wait", "--json"])
        .spawn()
        .unwrap();
    server.received(1).await;
    send(&child, Signal::INT);
    let ended = ended(child).await;
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let last = ended.stdout.lines().last().unwrap();
    assert!(last.contains(r#""status":"cancelled""#), "{last}");
    assert_eq!(
        ended.stderr,
        "cantle: cancelling; once more ends it at once\ncantle: the run was cancelled\n"
    );
}

#[tokio::test]
async fn a_signal_that_is_ignored_stays_ignored() {
    let place = Place::new();
    let signals = [HEARD, "--ignore-signal=HUP"];
    let (_server, child, _) = busy(&place, &signals, "").await;
    send(&child, Signal::HUP);
    send(&child, Signal::TERM);
    // Were it not ignored, the other one would be the second and end everything at once.
    let ended = ended(child).await;
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("✗ cancelled"), "{}", ended.stderr);
    assert_eq!(place.read("out/cantle-unfinished/work.txt"), "kept\n");
}

#[tokio::test]
async fn what_cant_be_kept_is_named() {
    let place = Place::new();
    let before = r"
        mkfifo pipe; ln -s nowhere dangling; mkdir deep; ln -s ../work.txt deep/link
        echo x > deep/$'caf\xe9\n.txt'; truncate -s 2G huge; mkdir empty;";
    let (_server, child, _) = busy(&place, &[HEARD], before).await;
    send(&child, Signal::TERM);
    let ended = ended(child).await;
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let (_, told) = ended.stderr.split_once("  kept  ").unwrap();
    insta::assert_snapshot!(redact(told));
    // A name need not be text.
    let name = OsStr::from_bytes(b"out/cantle-unfinished/deep/caf\xe9\n.txt");
    assert_eq!(place.read(name), "x\n");
    assert_eq!(place.list("out/cantle-unfinished"), ["deep", "work.txt"]);
}

#[tokio::test]
async fn of_many_lost_files_some_are_named() {
    let place = Place::new();
    let before = "for n in $(seq 30); do ln -s work.txt link-$n; done;";
    let (_server, child, _) = busy(&place, &[HEARD], before).await;
    send(&child, Signal::TERM);
    let told = ended(child).await.stderr;
    assert_eq!(told.matches("it is a link\n").count(), 8, "{told}");
    assert!(told.contains("22 more such files\n"), "{told}");
}

#[tokio::test]
async fn what_is_in_the_way_of_keeping_is_named() {
    let place = Place::new();
    place.write("out/cantle-history.json/file", "in the way");
    place.write("out/cantle-unfinished", "in the way");
    let (_server, child, _) = busy(&place, &[HEARD], "").await;
    send(&child, Signal::TERM);
    let ended = ended(child).await;
    assert_eq!(ended.code, Some(4), "{ended:?}");
    for said in [
        "lost     the conversation: failed to write out/cantle-history.json: ",
        "the files: failed to replace out/cantle-unfinished: ",
    ] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    assert_eq!(place.read("out/cantle-history.json/file"), "in the way");
    assert_eq!(place.read("out/cantle-unfinished"), "in the way");
}
