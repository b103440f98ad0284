//! `cantle exec`.

use std::time::Instant;

use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::support::{DEADLINE, Ended, HEARD, Mark, Place, ended, send};

async fn exec(args: &[&str]) -> Ended {
    let args = ["exec", "--"].iter().chain(args);
    Place::new().run(args).await
}

#[tokio::test]
async fn a_command_is_passed_through() {
    let ended = exec(&["bash", "-c", "echo out; echo err >&2; exit 7"]).await;
    let expected = Ended {
        code: Some(7),
        stdout: "out\n".to_owned(),
        stderr: "err\n".to_owned(),
    };
    assert_eq!(ended, expected);
}

#[tokio::test]
async fn arguments_are_not_for_a_shell() {
    let ended = exec(&["printf", "%s|", "$HOME", "a b", "*", ";ls", "--help", ""]).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "$HOME|a b|*|;ls|--help||")
    );
}

#[tokio::test]
async fn it_runs_in_a_directory_of_its_own_without_our_environment() {
    let place = Place::new().set("OPENAI_API_KEY", "sk-secret");
    place.write("ours.txt", "not there");
    let ended = place
        .run(["exec", "--", "bash", "-c", "ls -A; env; pwd"])
        .await;
    assert_eq!(ended.code, Some(0));
    assert!(!ended.stdout.contains("ours.txt") && !ended.stdout.contains("sk-secret"));
    let directory = ended.stdout.lines().last().unwrap();
    assert!(
        !std::path::Path::new(directory).exists(),
        "{directory} is left"
    );
}

#[tokio::test]
async fn input_is_passed_through_to_its_end() {
    let place = Place::new();
    let input: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let ended = place.run_with(["exec", "--", "wc", "-c"], &input).await;
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "3000000"));
    // A command that doesn't want it all is not waited for.
    let ended = place
        .run_with(["exec", "--", "head", "-c", "3"], b"abcdef")
        .await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "abc"));
}

#[tokio::test]
async fn a_command_that_ignores_its_input_is_not_held_up_by_it() {
    let place = Place::new();
    let mut command = place.command(["exec", "--", "echo", "done"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let open = child.stdin.take();
    let ended = ended(child).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "done\n"));
    drop(open);
}

#[tokio::test]
async fn what_ends_it_is_in_the_code() {
    assert_eq!(exec(&["bash", "-c", "kill -9 $$"]).await.code, Some(137));
    assert_eq!(exec(&["bash", "-c", "kill -TERM $$"]).await.code, Some(143));
    let place = Place::new();
    let start = Instant::now();
    let ended = place.run([
        "exec",
        "--timeout",
        "6",
        "--",
        "bash",
        "-c",
        "echo so far; sleep 1000",
    ]);
    let ended = ended.await;
    assert_eq!((ended.code, &*ended.stdout), (Some(124), "so far\n"));
    assert!(start.elapsed() < DEADLINE);
}

#[tokio::test]
async fn what_cant_be_started_is_explained() {
    let place = Place::new();
    place.write("data.txt", "no program");
    let data = place.path("data.txt");
    let missing = exec(&["no-such-program", "x"]).await;
    assert_eq!((missing.code, &*missing.stdout), (Some(127), ""));
    assert!(
        missing.stderr.contains("no-such-program"),
        "{}",
        missing.stderr
    );
    let args = ["exec", "--policy", "unconfined", "--"];
    let data = place
        .run(args.into_iter().chain([data.to_str().unwrap()]))
        .await;
    assert_eq!(data.code, Some(126), "{data:?}");
    let nothing = Place::new().run(["exec"]).await;
    assert_eq!(nothing.code, Some(2));
}

#[tokio::test]
async fn an_interrupt_ends_the_whole_tree() {
    let place = Place::new();
    let mark = Mark::new(&place);
    let line = format!("setsid bash -c 'sleep 1000; :' {mark} & wait");
    for policy in ["workspace", "unconfined"] {
        let args = ["exec", "--policy", policy, "--", "bash", "-c", &line];
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let child = place.command_with_signals(&[HEARD], args).spawn().unwrap();
            mark.appeared().await;
            send(&child, signal);
            assert_eq!(ended(child).await.code, Some(130));
            mark.gone().await;
        }
    }
}

#[tokio::test]
async fn a_second_interrupt_ends_it_at_once() {
    let place = Place::new();
    let mark = Mark::new(&place);
    // It hears the first one, and says so. What it has written fills our pipe and more, which nobody
    // reads: so the first one alone would never end it.
    let line = format!(
        "trap 'touch {}' TERM INT; : {mark}; head -c 80000 /dev/zero; touch {}; \
         while true; do sleep 0.1; done",
        place.path("heard").display(),
        place.path("ready").display()
    );
    let args = ["exec", "--policy", "unconfined", "--", "bash", "-c", &line];
    let mut child = place.command_with_signals(&[HEARD], args).spawn().unwrap();
    place.appeared("ready").await;
    send(&child, Signal::INT);
    place.appeared("heard").await;
    send(&child, Signal::INT);
    let ended = timeout(DEADLINE, child.wait()).await.unwrap();
    assert_eq!(ended.unwrap().code(), Some(130));
    mark.gone().await;
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_it() {
    let place = Place::new();
    let mut child = place.command(["exec", "--", "yes"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 4];
    stdout.read_exact(&mut first).await.unwrap();
    drop(stdout);
    assert_eq!((&first, ended(child).await.code), (b"y\ny\n", Some(141)));
}

#[tokio::test]
async fn a_command_runs_in_a_container_where_that_is_said() {
    let variable = |name| std::env::var(name).ok();
    let engine = variable("CANTLE_TEST_DOCKER_HOST").zip(variable("CANTLE_TEST_DOCKER_IMAGE"));
    let Some((host, image)) = engine else {
        eprintln!("SKIPPED: CANTLE_TEST_DOCKER_HOST and _IMAGE name no engine");
        return;
    };
    let place = Place::new().set("DOCKER_HOST", &host);
    let backend = format!("docker:{image}");
    let line = "pwd; echo 7 > seven; cat seven; exit 3";
    let ended = place
        .run(["exec", "--backend", &backend, "--", "sh", "-c", line])
        .await;
    assert_eq!((ended.code, &*ended.stdout), (Some(3), "/workspace\n7\n"));
}
