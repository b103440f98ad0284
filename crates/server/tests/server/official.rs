//! The tests of E2B's own SDK, unchanged, with this server in place of E2B's service.
//!
//! `CANTLE_E2B_CHECKOUT` names a checkout of E2B's repository, for `cargo xtask test --full`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cantle_testkit::lane;
use tokio::process::Command;
use tokio::time::timeout;

use crate::sdk::{KEY, peer};
use crate::support::serve;

/// Time limit of all tests together.
const SUITE_DEADLINE: Duration = Duration::from_secs(1200);

/// The tests of the parts of the SDK that talk to a server.
const TESTS: [&str; 2] = ["tests/sync/sandbox_sync", "tests/async/sandbox_async"];

/// Tests that fail, and why.
const EXPECTED: &str = include_str!("../sdk/expected-failures.txt");

/// Returns the names of tests after a word at the start of a line.
fn names<'t>(report: &'t str, word: &str) -> BTreeSet<&'t str> {
    let lines = report.lines().filter_map(|line| line.strip_prefix(word));
    // The reason of a failure may follow.
    lines
        .filter_map(|line| line.trim().split(" - ").next())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn official_suite_passes_but_for_what_is_different() {
    let Some(checkout) = std::env::var_os("CANTLE_E2B_CHECKOUT").map(PathBuf::from) else {
        return lane::skip("CANTLE_E2B_CHECKOUT does not name a checkout of E2B's repository");
    };
    let Some(peer) = peer() else { return };
    let program = peer.join("python-suite/bin/python");
    if !program.exists() {
        return lane::skip("the full lane has the environment of the suite");
    }
    let server = serve().await;
    let address = format!("http://{}", server.address);
    let mut suite = Command::new(program);
    suite
        .args(["-m", "pytest", "-q", "-n", "4", "--tb=no", "-rA"])
        .args(["-p", "no:cacheprovider", "--timeout", "120"])
        .args(TESTS)
        .current_dir(checkout.join("packages/python-sdk"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("E2B_API_KEY", KEY)
        .env("E2B_API_URL", &address)
        .env("E2B_SANDBOX_URL", &address)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(SUITE_DEADLINE, suite.output());
    let output = output.await.expect("the suite ends in time").unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let mut failed = names(&report, "FAILED ");
    failed.extend(names(&report, "ERROR "));
    let expected: BTreeSet<_> = EXPECTED
        .lines()
        .filter(|line| Path::new(line).starts_with("tests"))
        .collect();
    let passed = names(&report, "PASSED ");
    assert!(passed.len() > 200, "{report}");
    let new: Vec<_> = failed.difference(&expected).collect();
    assert!(new.is_empty(), "{new:#?} failed: {report}");
    let mended: Vec<_> = expected.intersection(&passed).collect();
    assert!(
        mended.is_empty(),
        "{mended:#?} pass: take them off the list"
    );
    server.stop().await;
}
