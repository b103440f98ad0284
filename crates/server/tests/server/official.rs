//! The tests of E2B's own SDKs, unchanged, with this server in place of E2B's service.
//!
//! `CANTLE_E2B_CHECKOUT` and `CANTLE_E2B_INTERPRETER_CHECKOUT` name checkouts of E2B's repositories `e2b` and
//! `code-interpreter`, for `cargo xtask test --full`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_core::policy::{HostPattern, Policy};
use cantle_core::tool::NoProgress;
use cantle_python::{Interpreter, PackageRequest, PackageStore};
use cantle_testkit::lane;
use tokio::process::Command;
use tokio::time::timeout;

use crate::sdk::{KEY, peer};
use crate::support::{TestServer, serve, serve_with, shared_tempdir};

/// Time limit of all tests of a suite together.
const SUITE_DEADLINE: Duration = Duration::from_secs(1200);

/// A suite of tests of a checkout.
struct Suite {
    /// Python with what the tests need besides the SDK, which is that of the checkout.
    program: PathBuf,
    /// The directory where they run.
    directory: PathBuf,
}

impl Suite {
    /// Returns the suite in a directory of a checkout that a variable names.
    fn find(variable: &str, directory: &str) -> Option<Self> {
        let Some(checkout) = std::env::var_os(variable).map(PathBuf::from) else {
            lane::skip(&format!(
                "{variable} does not name a checkout of E2B's repository"
            ));
            return None;
        };
        let program = peer()?.join("python-suite/bin/python");
        if !program.exists() {
            lane::skip("the full lane has the environment of the suite");
            return None;
        }
        let directory = checkout.join(directory);
        Some(Self { program, directory })
    }

    /// Runs tests, and checks that as many pass, and that those fail that a list with reasons names.
    async fn run(self, server: &TestServer, tests: &[&str], least: usize, expected: &str) {
        let address = format!("http://{}", server.address);
        let mut suite = Command::new(self.program);
        suite
            .args(["-m", "pytest", "-q", "-n", "4", "--tb=no", "-rA"])
            .args(["-p", "no:cacheprovider", "--timeout", "120"])
            .args(tests)
            .current_dir(self.directory)
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
        let expected: BTreeSet<_> = expected
            .lines()
            .filter(|line| Path::new(line).starts_with("tests"))
            .collect();
        let passed = names(&report, "PASSED ");
        assert!(passed.len() > least, "{report}");
        let new: Vec<_> = failed.difference(&expected).collect();
        assert!(new.is_empty(), "{new:#?} failed: {report}");
        let mended: Vec<_> = expected.intersection(&passed).collect();
        assert!(
            mended.is_empty(),
            "{mended:#?} pass: take them off the list"
        );
    }
}

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
    let Some(suite) = Suite::find("CANTLE_E2B_CHECKOUT", "packages/python-sdk") else {
        return;
    };
    let server = serve().await;
    // Those of the parts of the SDK that talk to a server.
    let tests = ["tests/sync/sandbox_sync", "tests/async/sandbox_async"];
    let expected = include_str!("../sdk/expected-failures.txt");
    suite.run(&server, &tests, 200, expected).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn official_interpreter_suite_passes_but_for_what_is_different() {
    let Some(suite) = Suite::find("CANTLE_E2B_INTERPRETER_CHECKOUT", "python") else {
        return;
    };
    let variables = ["CANTLE_TEST_INDEX", "CANTLE_TEST_INDEX_FILES"];
    let [Ok(index), Ok(files)] = variables.map(std::env::var) else {
        return lane::skip("no CANTLE_TEST_INDEX; `cargo xtask test` prepares it");
    };
    let index = url::Url::parse(&index).unwrap();
    let hosts = [index.host_str().unwrap(), &*files];
    let hosts = hosts.map(|it| format!("{it},private").parse::<HostPattern>().unwrap());
    let directory = shared_tempdir();
    let store = PackageStore::new(directory.path().join("packages"), LocalBackend::new());
    // Those of `cantle serve --prepare code-interpreter`.
    let packages = ["e2b-charts", "matplotlib<3.11", "numpy", "pandas"];
    let packages = packages.map(|it| it.parse().unwrap());
    let request = PackageRequest::new(packages).hosts(hosts);
    let set = store.prepare(&request, &NoProgress).await.unwrap();
    let interpreter = Interpreter::new(LocalBackend::new()).packages(set);
    let mut policy = Policy::workspace();
    interpreter.requirements().add_to(&mut policy);
    let serve = serve_with(|it| it.policy(policy).interpreter(Arc::new(interpreter)));
    let server = serve.await;
    let expected = include_str!("../sdk/expected-interpreter-failures.txt");
    suite.run(&server, &["tests"], 90, expected).await;
    server.stop().await;
}
