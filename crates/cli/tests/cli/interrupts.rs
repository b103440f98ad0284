//! Ctrl-C and its relatives.

use std::time::{Duration, Instant};

use cantle_testkit::openai::{Fault, Script, ScriptedServer, Turn};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use crate::command;
use crate::support::{DEADLINE, Place, appeared, ended, gone};

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A run whose command has written its process id, and that of a child of its own session, and
/// then goes on for ever. `trap` makes it deaf to gentle signals.
async fn busy(place: &Place, trap: &str) -> (ScriptedServer, Child, [String; 2]) {
    let pids = ["leader", "grandchild"].map(|name| place.path(name));
    let script = format!(
        "{trap} echo kept > work.txt; setsid bash -c 'echo $$ > {}; sleep 1000' & \
         echo $$ > {}; while true; do sleep 1; done",
        pids[1].display(),
        pids[0].display()
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
    let child = place.command(args).spawn().unwrap();
    let pids = [appeared(&pids[0]).await, appeared(&pids[1]).await];
    (server, child, pids)
}

#[tokio::test]
async fn the_first_cancels_and_says_what_was_kept() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = Place::new();
        let (_server, child, pids) = busy(&place, "").await;
        send(&child, signal);
        let ended = ended(child).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(4), ""), "{ended:?}");
        for pid in &pids {
            gone(pid).await;
        }
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
    let (_server, mut child, pids) = busy(&place, "trap '' TERM INT;").await;
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
    let second = Instant::now();
    send(&child, Signal::INT);
    let ended = ended(child).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(4), ""), "{ended:?}");
    assert!(
        second.elapsed() < Duration::from_secs(1),
        "{:?}",
        second.elapsed()
    );
    for pid in &pids {
        gone(pid).await;
    }
    assert!(!place.path("out/cantle-result.json").exists());
}

#[tokio::test]
async fn a_model_that_does_not_answer_is_not_waited_for() {
    let script = Script::new().turn(Turn::text("").fault_always(Fault::Hang));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let child = place.command(["run", "Wait", "--json"]).spawn().unwrap();
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
    let script = Script::new()
        .turn(command("kill -HUP $PPID; echo still here"))
        .turn(crate::finish("Not impressed.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new();
    let line = format!(
        "trap '' HUP; exec {} run Hang --base-url {} --model m",
        env!("CARGO_BIN_EXE_cantle"),
        server.url()
    );
    let mut shell = place.command([""; 0]);
    *shell.as_std_mut() = {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &line]).current_dir(place.path(""));
        shell
    };
    let output = shell.output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
