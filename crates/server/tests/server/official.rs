//! The tests of E2B's own SDKs, unchanged, with this server in place of E2B's service.
//!
//! `CANTLE_E2B_CHECKOUT` and `CANTLE_E2B_INTERPRETER_CHECKOUT` name checkouts of E2B's repositories `e2b` and
//! `code-interpreter`, for `cargo xtask test --full`.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_core::policy::{HostPattern, Policy};
use cantle_core::tool::NoProgress;
use cantle_python::{Interpreter, PackageRequest, PackageStore};
use cantle_testkit::lane;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::sdk::{KEY, peer};
use crate::support::{TestServer, serve, serve_with, shared_tempdir};

/// Time limit of all tests of a suite together.
const SUITE_DEADLINE: Duration = Duration::from_secs(1200);

/// The language of an SDK.
#[derive(Clone, Copy)]
enum Language {
    Python,
    JavaScript,
}

/// A suite of tests of a checkout.
struct Suite {
    language: Language,
    /// The packages that the tests need besides the SDK. The SDK is that of the checkout.
    environment: PathBuf,
    /// The directory of the SDK.
    directory: PathBuf,
}

impl Suite {
    /// Returns the suite in a directory of a checkout that a variable names.
    fn find(variable: &str, directory: &str, language: Language) -> Option<Self> {
        let Some(checkout) = std::env::var_os(variable).map(PathBuf::from) else {
            lane::skip(&format!(
                "{variable} does not name a checkout of E2B's repository"
            ));
            return None;
        };
        let environment = peer()?.join(match language {
            Language::Python => "python-suite",
            Language::JavaScript => "js-suite",
        });
        if !environment.exists() {
            lane::skip("the full lane has the environment of the suite");
            return None;
        }
        Some(Self {
            language,
            environment,
            directory: checkout.join(directory),
        })
    }

    /// Runs tests, and checks that more than `least` pass, and that those fail that a list with reasons names, alone or by
    /// their file.
    async fn run(self, server: &TestServer, tests: &[&str], least: usize, expected: &str) {
        let report = match self.language {
            Language::Python => self.run_python(server, tests).await,
            Language::JavaScript => self.run_javascript(server, tests).await,
        };
        let mut failed = names(&report, "FAILED ");
        failed.extend(names(&report, "ERROR "));
        let expected: BTreeSet<_> = expected
            .lines()
            .filter(|line| Path::new(line).starts_with("tests"))
            .collect();
        let passed = names(&report, "PASSED ");
        assert!(passed.len() > least, "{report}");
        let is_new = |name: &&str| {
            let file = name.split("::").next().unwrap_or_default();
            !expected.contains(name) && !expected.contains(file)
        };
        let new: Vec<_> = failed.into_iter().filter(is_new).collect();
        assert!(new.is_empty(), "{new:#?} failed: {report}");
        let mended: Vec<_> = expected.intersection(&passed).collect();
        assert!(
            mended.is_empty(),
            "{mended:#?} pass: take them off the list"
        );
    }

    async fn run_python(&self, server: &TestServer, tests: &[&str]) -> String {
        let mut suite = Command::new(self.environment.join("bin/python"));
        suite
            .args(["-m", "pytest", "-q", "-n", "4", "--tb=no", "-rA"])
            .args(["-p", "no:cacheprovider", "--timeout", "120"])
            .args(tests)
            .current_dir(&self.directory)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        run(server, suite).await
    }

    /// Runs the tests in a copy, because packages are found beside the sources. Returns a report as pytest's.
    async fn run_javascript(&self, server: &TestServer, tests: &[&str]) -> String {
        let copy = tempfile::tempdir().unwrap();
        let packages = self.environment.join("node_modules");
        symlink(&packages, copy.path().join("node_modules")).unwrap();
        let entries = std::fs::read_dir(&self.directory).unwrap();
        let entries = entries.map(|entry| entry.unwrap().path());
        let sources = entries.filter(|path| !path.ends_with("node_modules"));
        let mut copying = std::process::Command::new("cp");
        copying.arg("-r").args(sources).arg(copy.path());
        assert!(copying.status().unwrap().success());
        let results = copy.path().join("results.json");
        let mut suite = Command::new("node");
        suite
            .arg(packages.join("vitest/vitest.mjs"))
            .args(["run", "--maxWorkers=4", "--reporter=json"])
            .arg(format!("--outputFile={}", results.display()))
            .args(tests)
            .current_dir(copy.path());
        let output = run(server, suite).await;
        let results = std::fs::read(&results).expect(&output);
        let results: Value = serde_json::from_slice(&results).unwrap();
        let mut report = String::new();
        for file in results["testResults"].as_array().unwrap() {
            let path = Path::new(file["name"].as_str().unwrap());
            let path = path.strip_prefix(copy.path()).unwrap().display();
            let tests = file["assertionResults"].as_array().unwrap();
            for test in tests {
                let status = test["status"].as_str().unwrap().to_uppercase();
                let name = test["fullName"].as_str().unwrap();
                let reason = test["failureMessages"][0].as_str().unwrap_or_default();
                report += &format!("{status} {path}::{name} - {reason}\n");
            }
            if tests.is_empty() {
                report += &format!("ERROR {path} - {}\n", file["message"]);
            }
        }
        report
    }
}

/// Runs a suite as a client of the server, and returns its output.
async fn run(server: &TestServer, mut suite: Command) -> String {
    let address = format!("http://{}", server.address);
    suite
        .env("E2B_API_KEY", KEY)
        .env("E2B_API_URL", &address)
        .env("E2B_SANDBOX_URL", &address)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(SUITE_DEADLINE, suite.output());
    let output = output.await.expect("the suite ends in time").unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
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
async fn official_python_suite_passes_but_for_what_is_different() {
    let (variable, directory) = ("CANTLE_E2B_CHECKOUT", "packages/python-sdk");
    let Some(suite) = Suite::find(variable, directory, Language::Python) else {
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
async fn official_javascript_suite_passes_but_for_what_is_different() {
    let (variable, directory) = ("CANTLE_E2B_CHECKOUT", "packages/js-sdk");
    let Some(suite) = Suite::find(variable, directory, Language::JavaScript) else {
        return;
    };
    let server = serve().await;
    let tests = ["--project", "unit", "tests/sandbox", "tests/api"];
    let expected = include_str!("../sdk/expected-javascript-failures.txt");
    suite.run(&server, &tests, 250, expected).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn official_interpreter_suites_pass_but_for_what_is_different() {
    let variable = "CANTLE_E2B_INTERPRETER_CHECKOUT";
    let Some(python) = Suite::find(variable, "python", Language::Python) else {
        return;
    };
    let Some(javascript) = Suite::find(variable, "js", Language::JavaScript) else {
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
    let serve = serve_with(|it| it.policy(policy).interpreter(interpreter));
    let server = serve.await;
    let expected = include_str!("../sdk/expected-interpreter-failures.txt");
    python.run(&server, &["tests"], 90, expected).await;
    let expected = include_str!("../sdk/expected-javascript-interpreter-failures.txt");
    javascript.run(&server, &[], 50, expected).await;
    server.stop().await;
}
