//! `cantle files`.

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
