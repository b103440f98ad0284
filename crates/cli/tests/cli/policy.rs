//! What commands may do: real ones, at the boundary that each policy names.

use cantle_testkit::openai::{Script, ScriptedServer};
use serde_json::Value;

use crate::support::{Ended, Place};
use crate::{command, finish};

/// What a shell's line says under these flags.
async fn exec(place: &Place, flags: &[&str], line: &str) -> Ended {
    let args = ["exec"].iter().chain(flags);
    place.run(args.chain(&["--", "bash", "-c", line])).await
}

/// A line that writes to a file of this place.
fn write(place: &Place) -> String {
    format!("echo out > {}", place.path("outside.txt").display())
}

#[tokio::test]
async fn by_default_nothing_is_written_outside() {
    let place = Place::new();
    let line = format!("{} || echo refused; echo in > f && cat f", write(&place));
    let ended = exec(&place, &[], &line).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "refused\nin\n"));
    assert_eq!(place.list(""), [""; 0]);
    // That is the policy's doing.
    let ended = exec(&place, &["--policy", "unconfined"], &write(&place)).await;
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    assert_eq!(place.read("outside.txt"), "out\n");
}

#[tokio::test]
async fn by_default_there_is_no_network() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let line = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected");
    let place = Place::new();
    assert_eq!(exec(&place, &[], &line).await.stdout, "");
    let ended = exec(&place, &["--policy=unconfined"], &line).await;
    assert_eq!(ended.stdout, "connected\n");
}

#[tokio::test]
async fn read_only_looks_and_changes_nothing() {
    let ended = exec(&Place::new(), &["--policy=read_only"], "touch f || ls /usr").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("bin\n"), "{ended:?}");
}

#[tokio::test]
async fn limits_are_kept() {
    let place = Place::new();
    let line = "head -c 4000 /dev/zero > f; stat -c %s f; ulimit -n";
    let flags = ["--limit=file_size=2K", "--limit", "open_files=77"];
    let ended = exec(&place, &flags, line).await;
    assert_eq!(ended.stdout, "2048\n77\n", "{ended:?}");
    let ended = exec(&place, &["--limit=wall_time=0.2s"], "sleep 1000").await;
    assert_eq!(ended.code, Some(124), "{ended:?}");
    // What the command can't know is told.
    let ended = exec(&place, &["--limit=output=1K"], "exec yes").await;
    assert_eq!(ended.code, Some(137), "{ended:?}");
    let said = "cantle: stopped at the limit of output (1 KiB)\n";
    assert_eq!(ended.stderr, said);
}

#[tokio::test]
async fn what_holds_is_said_where_it_is_wanted() {
    let place = Place::new();
    let ended = exec(&place, &["-v", "--limit", "memory=1G"], "echo out").await;
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "out\n"));
    let said: Vec<&str> = ended.stderr.lines().collect();
    let [sandbox, enforced] = said[..] else {
        panic!("{said:?}");
    };
    assert!(sandbox.starts_with("cantle: sandbox local · "), "{sandbox}");
    assert!(sandbox.ends_with(" · no network"), "{sandbox}");
    assert!(enforced.contains("network kernel, memory "), "{enforced}");
    let ended = exec(&place, &["-v", "--policy", "unconfined"], "echo out").await;
    assert_eq!(
        ended.stderr,
        "cantle: sandbox local · not isolated · network open\n"
    );
}

#[tokio::test]
async fn what_cant_be_enforced_is_refused_or_listed() {
    let place = Place::new();
    let flags = ["exec", "--allow-host", "pypi.org"];
    let command = ["--", "echo", "out"];
    let strict = flags.iter().chain(&command);
    let Some(ended) = place.run_without_namespaces(strict).await else {
        return;
    };
    assert_eq!((ended.code, &*ended.stdout), (Some(125), ""), "{ended:?}");
    for said in ["policy here: network.", "--best-effort", "cantle doctor"] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    let best_effort = flags.iter().chain(&["--best-effort"]).chain(&command);
    let ended = place.run_without_namespaces(best_effort).await.unwrap();
    let expected = Ended {
        code: Some(0),
        stdout: "out\n".to_owned(),
        stderr: "cantle: not enforced here: network\n".to_owned(),
    };
    assert_eq!(ended, expected);
}

#[tokio::test]
async fn a_run_is_refused_the_same_way_with_a_code_of_its_own() {
    let script = Script::new()
        .turn(command("echo out"))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new()
        .served_by(&server.url())
        .set("CANTLE_ALLOW_HOST", "pypi.org");
    let Some(ended) = place.run_without_namespaces(["run", "Hello"]).await else {
        return;
    };
    assert_eq!((ended.code, &*ended.stdout), (Some(6), ""), "{ended:?}");
    for said in ["policy here: network.", "--best-effort", "cantle doctor"] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    assert_eq!(server.requests().len(), 0);

    let place = place.set("CANTLE_BEST_EFFORT", "1");
    let ended = place.run_without_namespaces(["run", "Hello"]).await;
    let ended = ended.unwrap();
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "Done.\n"));
    let said =
        "! The policy's network is not enforced: commands may reach what this machine can.\n";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[tokio::test]
async fn what_is_in_force_is_in_the_first_event() {
    let script = Script::new().turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let ended = place.run(["run", "Hello", "--json"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let first: Value = serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap();
    let sandbox = &first["sandbox"];
    assert_eq!(sandbox["isolation"], "kernel");
    assert!(!sandbox["walls"].as_array().unwrap().is_empty());
    let enforcement = sandbox["enforcement"].as_array().unwrap();
    let fields: Vec<&str> = enforcement
        .iter()
        .map(|it| it["field"].as_str().unwrap())
        .collect();
    assert!(
        fields.starts_with(&["read_roots", "write_roots", "network"]),
        "{fields:?}"
    );
    assert!(enforcement.iter().all(|it| it["by"] != "not_enforced"));
}

#[tokio::test]
async fn a_policy_comes_from_files_and_the_environment_too() {
    let place = Place::new();
    place.write(
        ".config/cantle/cantle.toml",
        "policy = \"unconfined\"\nlimit = [\"open_files=99\"]\n",
    );
    let line = format!("{} || echo refused; ulimit -n", write(&place));
    assert_eq!(exec(&place, &[], &line).await.stdout, "99\n");
    place.write("cantle.toml", "policy = \"workspace\"\n");
    assert_eq!(exec(&place, &[], &line).await.stdout, "refused\n99\n");
    let place = place.set("CANTLE_POLICY", "unconfined");
    assert_eq!(exec(&place, &[], &line).await.stdout, "99\n");
    let flags = ["--policy=workspace", "--limit=open_files=98"];
    assert_eq!(exec(&place, &flags, &line).await.stdout, "refused\n98\n");
}

#[tokio::test]
async fn policies_that_make_no_sense_are_usage_errors() {
    let place = Place::new();
    place.write("free/cantle.toml", "policy = \"unconfined\"\n");
    let mut told = String::new();
    for (flags, inside) in [
        (&["--policy=unconfined", "--allow-host=pypi.org"][..], ""),
        (&["--policy=network"], ""),
        (&[], "free"),
    ] {
        for (before, after) in [
            (
                &["run", "Hello", "--model=m", "--provider=local"][..],
                &[][..],
            ),
            (&["exec"], &["--", "true"]),
            (&["demo"], &[]),
        ] {
            let mut command = place.command(before.iter().chain(flags).chain(after));
            command.current_dir(place.path(inside));
            let ended = crate::support::ended(command.spawn().unwrap()).await;
            assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{ended:?}");
            if before[0] == "run" {
                told += &ended.stderr;
            } else {
                assert!(told.ends_with(&ended.stderr), "{ended:?}");
            }
        }
    }
    insta::assert_snapshot!(told);
}
