//! `cantle demo`: every number of its report is recomputed from the files.

use std::os::unix::fs::symlink;

use crate::demo_report::{Counted, chart_of, report_of};
use crate::support::TestEnv;

/// Creates a directory with every case that the report distinguishes.
fn varied(env: &TestEnv) {
    env.write("d/README.md", "# Title\n\nText without an end");
    env.write("d/src/main.rs", "fn main() {}\n".repeat(120));
    env.write("d/src/copy of main.rs", "fn main() {}\n".repeat(120));
    env.write("d/src/deep/er/and/deeper/x.RS", "// x\n");
    env.write("d/a-b/f", "1\n");
    env.write("d/a/f", "1\n");
    env.write("d/Makefile", "all:\n\ttrue\n");
    env.write("d/.hidden", "dot file\n");
    env.write("d/archive.tar.gz", [0x1f, 0x8b, 0, 0, 1, b'\n', 2]);
    env.write("d/nul-at-end.bin", b"text\0");
    env.write("d/empty.txt", "");
    env.write("d/also-empty", "");
    env.write("d/tick`s|pipe.txt", "x\n");
    env.write("d/tab\there\nand newline.txt", "y\n");
    env.write("d/ünïcödé.txt", "z\n");
    for (index, name) in ["b", "c", "h", "py", "js", "ts", "go", "java", "rb", "sh"]
        .iter()
        .enumerate()
    {
        env.write(format!("d/many/{index}.{name}"), "line\n".repeat(index + 1));
    }
    env.write("d/report.md", "brought along\n");
    std::fs::create_dir_all(env.path("d/nothing/in/here")).unwrap();
    symlink("main.rs", env.path("d/src/link.rs")).unwrap();
    symlink("/etc/passwd", env.path("d/outside")).unwrap();
    // Not copied.
    env.write("d/.git/config", "[core]\n");
    env.write("d/src/target/debug/x", "built\n");
    env.write("d/node_modules/left-pad/index.js", "pad\n");
}

fn uniform(env: &TestEnv) {
    for index in 0..14 {
        env.write(
            format!("d/data/part-{index:02}.csv"),
            format!("n\n{}\n", index % 4),
        );
    }
    env.write("d/big.log", "an event of no importance\n".repeat(3000));
}

async fn surveyed(fill: fn(&TestEnv)) -> (TestEnv, String, String) {
    let env = TestEnv::new();
    fill(&env);
    let exited = env.run(["demo", "d"]).await;
    assert_eq!(exited.code, Some(0), "{}", exited.stderr);
    assert_eq!(
        env.list("cantle-demo"),
        ["cantle-result.json", "chart.svg", "report.md"]
    );
    let (report, chart) = (
        env.read("cantle-demo/report.md"),
        env.read("cantle-demo/chart.svg"),
    );
    (env, report, chart)
}

#[tokio::test]
async fn report_matches_the_files() {
    let mut reports = Vec::new();
    for fill in [varied as fn(&TestEnv), uniform] {
        let (env, report, chart) = surveyed(fill).await;
        let counted = Counted::of(&env.path("d"));
        assert_eq!(report, report_of(&counted));
        assert_eq!(bars(&chart), chart_of(&counted));
        reports.push((report, chart));
    }
    assert_ne!(reports[0].0, reports[1].0);
    assert_ne!(reports[0].1, reports[1].1);
}

/// Returns the texts and the widths of bars in a chart, in order.
fn bars(chart: &str) -> Vec<String> {
    let (_, body) = chart.split_once("</style>").unwrap();
    let mut found = Vec::new();
    for element in body.split('<').skip(1) {
        if let Some(rest) = element.strip_prefix("text ") {
            found.push(rest.split_once('>').unwrap().1.to_owned());
        } else if element.starts_with("rect class=\"bar\"") {
            let width = element.split_once(" width=\"").unwrap().1;
            found.push(width.split_once('"').unwrap().0.to_owned());
        }
    }
    found
}

#[tokio::test]
async fn notice_and_excluded_directories_are_displayed() {
    let env = TestEnv::new();
    varied(&env);
    env.write("d/out/old-report.md", "from before");
    let exited = env.run(["demo", "d", "--output-dir", "d/out"]).await;
    assert_eq!(exited.code, Some(0));
    let expected: Vec<&str> = exited.stderr.lines().take(2).collect();
    insta::assert_snapshot!(expected.join("\n"));
    let reason =
        "Surveyed the files: report.md describes them, chart.svg shows what takes the space.\n";
    assert_eq!(exited.stdout, reason);
    assert!(!env.read("d/out/report.md").contains("old-report.md"));
}

#[tokio::test]
async fn empty_directory_has_a_report() {
    let (env, report, chart) = surveyed(|env| env.write("d/.git/HEAD", "ref")).await;
    let counted = Counted::of(&env.path("d"));
    assert_eq!((counted.files(), &report), (0, &report_of(&counted)));
    assert_eq!(bars(&chart), chart_of(&counted));
}

#[tokio::test]
async fn current_directory_is_the_default() {
    let env = TestEnv::new();
    uniform(&env);
    for _ in 0..2 {
        let exited = env.run(["demo", "-q"]).await;
        assert_eq!((exited.code, &*exited.stderr), (Some(0), ""));
        assert!(env.read("cantle-demo/report.md").contains("| Files | 15 |"));
    }
}

#[tokio::test]
async fn large_directory_is_refused() {
    let env = TestEnv::new();
    env.write("large/a", "");
    let file = std::fs::File::create(env.path("large/b")).unwrap();
    file.set_len(100_000_001).unwrap();
    let exited = env.run(["demo", "large"]).await;
    assert!(!env.path("cantle-demo").exists());
    insta::assert_snapshot!(exited.transcript(&env));
    for n in 0..=20_000 {
        env.write(format!("many/{}/{n}", n % 100), "");
    }
    let exited = env.run(["demo", "many"]).await;
    assert_eq!(exited.code, Some(2));
    assert!(
        exited.stderr.contains("at most 20000 files"),
        "{}",
        exited.stderr
    );
}

#[tokio::test]
async fn non_directory_is_refused() {
    let env = TestEnv::new();
    env.write("file", "x");
    for (path, expected) in [
        ("file", "is not a directory"),
        ("missing", "failed to read missing"),
    ] {
        let exited = env.run(["demo", path]).await;
        assert_eq!(exited.code, Some(2));
        assert!(exited.stderr.contains(expected), "{}", exited.stderr);
    }
}
