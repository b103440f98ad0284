//! `cantle demo`: every number of its report is counted again here, from the files alone.

use std::os::unix::fs::symlink;

use crate::report::{Counted, chart_of, report_of};
use crate::support::Place;

/// A directory with one of everything the report knows.
fn varied(place: &Place) {
    place.write("d/README.md", "# Title\n\nText without an end");
    place.write("d/src/main.rs", "fn main() {}\n".repeat(120));
    place.write("d/src/copy of main.rs", "fn main() {}\n".repeat(120));
    place.write("d/src/deep/er/and/deeper/x.RS", "// x\n");
    place.write("d/a-b/f", "1\n");
    place.write("d/a/f", "1\n");
    place.write("d/Makefile", "all:\n\ttrue\n");
    place.write("d/.hidden", "dot file\n");
    place.write("d/archive.tar.gz", [0x1f, 0x8b, 0, 0, 1, b'\n', 2]);
    place.write("d/nul-at-end.bin", b"text\0");
    place.write("d/empty.txt", "");
    place.write("d/also-empty", "");
    place.write("d/tick`s|pipe.txt", "x\n");
    place.write("d/tab\there\nand newline.txt", "y\n");
    place.write("d/ünïcödé.txt", "z\n");
    for (index, name) in ["b", "c", "h", "py", "js", "ts", "go", "java", "rb", "sh"]
        .iter()
        .enumerate()
    {
        place.write(format!("d/many/{index}.{name}"), "line\n".repeat(index + 1));
    }
    place.write("d/report.md", "brought along\n");
    std::fs::create_dir_all(place.path("d/nothing/in/here")).unwrap();
    symlink("main.rs", place.path("d/src/link.rs")).unwrap();
    symlink("/etc/passwd", place.path("d/outside")).unwrap();
    // Not counted at all.
    place.write("d/.git/config", "[core]\n");
    place.write("d/src/target/debug/x", "built\n");
    place.write("d/node_modules/left-pad/index.js", "pad\n");
}

fn uniform(place: &Place) {
    for index in 0..14 {
        place.write(
            format!("d/data/part-{index:02}.csv"),
            format!("n\n{}\n", index % 4),
        );
    }
    place.write("d/big.log", "an event of no importance\n".repeat(3000));
}

async fn surveyed(fill: fn(&Place)) -> (Place, String, String) {
    let place = Place::new();
    fill(&place);
    let ended = place.run(["demo", "d"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(
        place.list("cantle-demo"),
        ["cantle-result.json", "chart.svg", "report.md"]
    );
    let (report, chart) = (
        place.read("cantle-demo/report.md"),
        place.read("cantle-demo/chart.svg"),
    );
    (place, report, chart)
}

#[tokio::test]
async fn every_number_can_be_counted_again() {
    let mut reports = Vec::new();
    for fill in [varied as fn(&Place), uniform] {
        let (place, report, chart) = surveyed(fill).await;
        let counted = Counted::of(&place.path("d"));
        assert_eq!(report, report_of(&counted));
        assert_eq!(bars(&chart), chart_of(&counted));
        reports.push((report, chart));
    }
    assert_ne!(reports[0].0, reports[1].0);
    assert_ne!(reports[0].1, reports[1].1);
}

/// The texts and bars of a chart, in order: what stands in `<text>`, and the width of each bar.
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
async fn it_says_that_the_model_is_a_recording_and_what_was_left_out() {
    let place = Place::new();
    varied(&place);
    place.write("d/out/old-report.md", "from before");
    let ended = place.run(["demo", "d", "--output-dir", "d/out"]).await;
    assert_eq!(ended.code, Some(0));
    let said: Vec<&str> = ended.stderr.lines().take(2).collect();
    insta::assert_snapshot!(said.join("\n"));
    let reason =
        "Surveyed the files: report.md describes them, chart.svg shows what takes the space.\n";
    assert_eq!(ended.stdout, reason);
    assert!(!place.read("d/out/report.md").contains("old-report.md"));
}

#[tokio::test]
async fn an_empty_directory_has_a_report_too() {
    let (place, report, chart) = surveyed(|place| place.write("d/.git/HEAD", "ref")).await;
    let counted = Counted::of(&place.path("d"));
    assert_eq!((counted.files(), &report), (0, &report_of(&counted)));
    assert_eq!(bars(&chart), chart_of(&counted));
}

#[tokio::test]
async fn the_current_directory_is_the_default_and_its_own_output_is_left_out() {
    let place = Place::new();
    uniform(&place);
    for _ in 0..2 {
        let ended = place.run(["demo", "-q"]).await;
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
        assert!(
            place
                .read("cantle-demo/report.md")
                .contains("| Files | 15 |")
        );
    }
}

#[tokio::test]
async fn too_much_is_refused_with_the_limit() {
    let place = Place::new();
    place.write("large/a", "");
    let file = std::fs::File::create(place.path("large/b")).unwrap();
    file.set_len(100_000_001).unwrap();
    let ended = place.run(["demo", "large"]).await;
    assert!(!place.path("cantle-demo").exists());
    insta::assert_snapshot!(ended.told(&place));
    for n in 0..=20_000 {
        place.write(format!("many/{}/{n}", n % 100), "");
    }
    let ended = place.run(["demo", "many"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("at most 20000 files"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn what_is_no_directory_is_refused() {
    let place = Place::new();
    place.write("file", "x");
    for (path, said) in [
        ("file", "is not a directory"),
        ("missing", "missing can't be read"),
    ] {
        let ended = place.run(["demo", path]).await;
        assert_eq!(ended.code, Some(2));
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
}
