//! `cantle files`.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::support::{Exited, TestEnv};

async fn files(env: &TestEnv, args: &[&str]) -> Exited {
    env.run(["files"].iter().chain(args)).await
}

#[tokio::test]
async fn files_are_stored_listed_copied_and_removed() {
    let env = TestEnv::new();
    env.write("data/a.csv", "1,2\n");
    env.write("b.txt", "b");
    let put = files(&env, &["put", "data/a.csv", "b.txt"]).await;
    assert_eq!(
        (put.code, put.stdout.lines().count()),
        (Some(0), 2),
        "{put:?}"
    );
    let id = put.stdout.split(' ').next().unwrap();
    let listed = files(&env, &["ls"]).await.stdout;
    let names: Vec<_> = listed
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(names, ["b.txt", "a.csv"]);
    let json: Value = serde_json::from_str(&files(&env, &["ls", "--json"]).await.stdout).unwrap();
    assert_eq!(
        (&json[1]["id"], &json[1]["owner"]),
        (&id.into(), &"local".into())
    );

    assert_eq!(files(&env, &["get", id, "-"]).await.stdout, "1,2\n");
    assert_eq!(files(&env, &["get", id]).await.stdout, "a.csv\n");
    assert_eq!(env.read("a.csv"), "1,2\n");
    // An existing file stays as it is, and nothing else remains of the copy.
    let again = files(&env, &["get", id, "b.txt"]).await;
    assert_eq!(
        (again.code, env.read("b.txt")),
        (Some(1), "b".to_owned()),
        "{again:?}"
    );
    assert_eq!(env.list("."), [".local", "a.csv", "b.txt", "data"]);

    for command in ["get", "rm"] {
        let other = files(&env, &[command, id, "--owner", "bob"]).await;
        assert_eq!(other.code, Some(2), "{other:?}");
        assert!(
            other.stderr.contains(&format!("File not found: {id}")),
            "{other:?}"
        );
    }
    assert_eq!(
        files(&env, &["rm", id]).await.stdout,
        format!("removed {id} a.csv\n")
    );
    assert_eq!(files(&env, &["ls"]).await.stdout.lines().count(), 1);
    assert_eq!(
        files(&env, &["gc"]).await.stdout,
        "removed 0 objects (0 B)\n"
    );
    let directory = files(&env, &["put", "data"]).await;
    assert_eq!(directory.code, Some(2), "{directory:?}");
}

#[tokio::test]
async fn empty_variables_name_no_store() {
    let env = TestEnv::new()
        .set("CANTLE_STORE", "")
        .set("CANTLE_CATALOGUE", "")
        .set("CANTLE_STORE_CREDENTIALS", "");
    env.write("a", "x");
    let put = files(&env, &["put", "a"]).await;
    assert_eq!(put.code, Some(0), "{put:?}");
    assert_eq!(env.list("."), [".local", "a"]);
}

#[tokio::test]
async fn a_store_of_another_catalogue_is_refused() {
    let env = TestEnv::new();
    env.write("a", "x");
    let first = files(&env, &["--store", "stored", "put", "a"]).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    let other = ["--store", "stored", "--catalogue", "other.sqlite", "ls"];
    let refused = files(&env, &other).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("belongs to another catalogue"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn unusual_names_are_stored_under_safe_ones() {
    let env = TestEnv::new();
    let longest = "x".repeat(251) + ".csv";
    let names: [(&[u8], &str); 6] = [
        (b"a\x1b[31m\n\x07.txt", "a__31m__.txt"),
        (b"..hidden", "hidden"),
        (b" -rf", "rf"),
        (b"\xff\xfe.bin", "__.bin"),
        ("数据.csv".as_bytes(), "数据.csv"),
        (longest.as_bytes(), &("x".repeat(196) + ".csv")),
    ];
    for (name, safe) in names {
        let path = env.path(std::ffi::OsStr::from_bytes(name));
        std::fs::write(&path, name).unwrap();
        let put = [
            "files".as_ref(),
            "put".as_ref(),
            "--".as_ref(),
            path.as_os_str(),
        ];
        let put = env.run(put).await;
        assert_eq!(put.code, Some(0), "{put:?}");
        let (id, printed) = put.stdout.trim_end_matches('\n').split_once(' ').unwrap();
        assert_eq!(printed, safe);
        std::fs::remove_file(path).unwrap();
        // The copy gets the safe name in the current directory, wherever the original was.
        assert_eq!(files(&env, &["get", id]).await.stdout, format!("{safe}\n"));
        assert_eq!(std::fs::read(env.path(safe)).unwrap(), name);
    }
}

#[tokio::test]
async fn mistakes_are_named_and_change_nothing() {
    let env = TestEnv::new();
    env.write("a", "x");
    let put = files(&env, &["put", "a"]).await;
    let id = put.stdout.split(' ').next().unwrap();
    let unknown = "00000000-0000-0000-0000-000000000000";
    let owner = "o".repeat(256);
    env.write(
        "open",
        "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=hunter2\n",
    );
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(env.path("open"), mode).unwrap();
    let bucket = ["ls", "--store", "s3://b", "--catalogue", "other.sqlite"];
    let mut cases = vec![
        (vec!["get", "x"], 2, "invalid value 'x' for '<ID>'"),
        (vec!["get", unknown], 2, "File not found"),
        (vec!["get", id, "missing/a"], 1, "failed to write missing/a"),
        (vec!["get", id], 1, "failed to write a: File exists"),
        (vec!["rm", "../a"], 2, "invalid value '../a'"),
        (vec!["rm", unknown, id], 2, "File not found"),
        (vec!["put"], 2, "required arguments"),
        (vec!["put", "missing"], 2, "failed to read missing"),
        (vec!["put", "/dev/zero"], 2, "/dev/zero is not a file"),
        (
            vec!["ls", "--owner", ""],
            2,
            "the owner of a file has 1 to 255 bytes",
        ),
        (
            vec!["ls", "--owner", &owner],
            2,
            "the owner of a file has 1 to 255 bytes",
        ),
        (
            vec!["ls", "--store", "gs://b", "--catalogue", "c"],
            2,
            "`gs://b` is not a store",
        ),
        (
            vec!["ls", "--store", "s3://b"],
            2,
            "a bucket needs a catalogue",
        ),
    ];
    if cfg!(feature = "s3") {
        let credentials = ["--store-credentials", "open"];
        let flags = bucket.into_iter().chain(credentials).collect();
        cases.push((flags, 2, "by every user of this machine: chmod 600 it"));
    } else {
        cases.push((
            bucket.to_vec(),
            2,
            "this build has no S3: build it with `--features s3`",
        ));
    }
    if cfg!(not(feature = "postgres")) {
        let flags = vec![
            "ls",
            "--store",
            "new",
            "--catalogue",
            "postgres://localhost/x",
        ];
        cases.push((flags, 2, "this build has no PostgreSQL"));
    }
    for (args, code, message) in cases {
        let refused = files(&env, &args).await;
        assert_eq!(
            (refused.code, &*refused.stdout),
            (Some(code), ""),
            "{args:?}: {refused:?}"
        );
        assert!(refused.stderr.contains(message), "{args:?}: {refused:?}");
        assert!(!refused.stderr.contains("hunter2"), "{refused:?}");
    }
    assert_eq!(files(&env, &["ls"]).await.stdout.lines().count(), 1);
    // What precedes a mistake is done, and printed.
    let some = files(&env, &["put", "a", "missing"]).await;
    assert_eq!(
        (some.code, some.stdout.lines().count()),
        (Some(2), 1),
        "{some:?}"
    );
    assert_eq!(files(&env, &["ls"]).await.stdout.lines().count(), 2);
}

#[tokio::test]
async fn gc_removes_old_objects_without_a_record() {
    let env = TestEnv::new();
    env.write("a", "x");
    files(&env, &["put", "a"]).await;
    let objects = ".local/state/cantle/files/objects/uploads";
    for (name, age) in [('a', "2 days ago"), ('b', "2 hours ago")] {
        let object = format!("{objects}/{}_x", name.to_string().repeat(32));
        env.write(&object, "12345");
        let mut touch = std::process::Command::new("touch");
        touch.args(["-d", age]).arg(env.path(&object));
        assert!(touch.status().unwrap().success());
    }
    let gc = files(&env, &["gc"]).await;
    assert_eq!(
        (gc.code, &*gc.stdout),
        (Some(0), "removed 1 object (5 B)\n"),
        "{gc:?}"
    );
    assert_eq!(env.list(objects).len(), 2);
}
