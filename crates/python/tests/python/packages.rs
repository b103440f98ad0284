//! Package sets: installed once, read-only in sandboxes, and never installed into the machine's Python.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{HostPattern, Policy};
use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxExt as _, SandboxPath};
use cantle_core::tool::{OpenContext, Progress, ToolProvider as _};
use cantle_python::{
    ExecutionOutcome, Interpreter, NodeRequest, PackageError, PackageErrorKind, PackageIndex,
    PackageRequest, PackageSet, PackageStore, PythonTarget, PythonTool,
};
use cantle_testkit::lane::skip;
use tempfile::TempDir;

use crate::interpreter;

/// Writes a wheel: NAME VERSION SOURCE REQUIREMENT…, and a program for the command line.
const WHEEL: &str = r#"
import sys, zipfile
name, version, source, *requirements = sys.argv[1:]
required = "".join(f"Requires-Dist: {it}\n" for it in requirements)
info = f"{name}-{version}.dist-info"
with zipfile.ZipFile(f"{name}-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr(f"{name}.py", source)
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
    wheel.writestr(f"{info}/RECORD", "")
"#;
const SOURCE: &str = "VALUE = 42\ndef main(): print(VALUE)\n";

/// Keeps what it receives.
#[derive(Debug, Default)]
struct Lines(Mutex<String>);

impl Progress for Lines {
    fn output(&self, text: &str) {
        self.0.lock().expect("no panic").push_str(text);
    }
}

impl Lines {
    fn count(&self, text: &str) -> usize {
        self.0.lock().expect("no panic").matches(text).count()
    }
}

/// A store, and a directory of wheels in place of an index.
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // The user that runs commands enters it.
        let mode = fs::Permissions::from_mode(0o711);
        fs::set_permissions(directory.path(), mode).expect("permissions");
        fs::create_dir(directory.path().join("wheels")).expect("a directory");
        let place = Self { directory };
        place.add("chartless", "1.0", SOURCE);
        place
    }

    fn wheels(&self) -> std::path::PathBuf {
        self.directory.path().join("wheels")
    }

    fn add(&self, name: &str, version: &str, source: &str) {
        self.add_requiring(name, version, source, &[]);
    }

    fn add_requiring(&self, name: &str, version: &str, source: &str, requirements: &[&str]) {
        let mut write = Command::new("python3");
        write.args(["-c", WHEEL, name, version, source]);
        write.args(requirements);
        let written = write.current_dir(self.wheels()).status();
        assert!(written.expect("Python starts").success());
    }

    pub(crate) fn store(&self) -> PackageStore {
        PackageStore::new(self.directory.path().join("store"), LocalBackend::new())
    }

    pub(crate) fn request(&self, specifiers: &[&str]) -> PackageRequest {
        let specifiers = specifiers.iter().map(|it| it.parse().expect("a specifier"));
        PackageRequest::new(specifiers).index(PackageIndex::directory(self.wheels()))
    }

    async fn try_prepare(&self, request: PackageRequest) -> Result<PackageSet, PackageError> {
        self.store().prepare(&request, &Lines::default()).await
    }

    async fn prepare(&self, specifiers: &[&str]) -> PackageSet {
        let prepared = self.try_prepare(self.request(specifiers)).await;
        prepared.expect("the packages are installed")
    }
}

#[tokio::test]
async fn packages_are_installed_once_and_read_only_in_sandboxes() {
    let place = Place::new();
    let (store, another, lines) = (place.store(), place.store(), Lines::default());
    let request = place.request(&["chartless"]);
    let both = tokio::join!(
        store.prepare(&request, &lines),
        another.prepare(&request, &lines)
    );
    let (set, other) = (both.0.expect("a set"), both.1.expect("a set"));
    assert_eq!(set.path(), other.path());
    assert_eq!(lines.count("Installing packages: chartless\n"), 1);
    let packages: Vec<_> = set.packages().collect();
    assert_eq!(packages, [("chartless", "1.0")]);

    let python = interpreter().packages(set.clone());
    let session = python.open().await.expect("a sandbox");
    let code = "import chartless, subprocess, sys\n\
                chartless.VALUE, subprocess.run([sys.prefix + '/bin/chartless'], capture_output=True, text=True).stdout";
    let execution = session.execute("main", code).await.expect("a result");
    assert_eq!(
        execution.results[0].text(),
        Some("(42, '42\\n')"),
        "{execution:?}"
    );
    assert_eq!(execution.notes, [""; 0]);
    let write = "open(chartless.__file__, 'w')";
    let refused = session.execute("main", write).await.expect("a result");
    assert_eq!(refused.error.expect("an error").name, "OSError");
    let one_shot = session
        .run("import chartless; print(chartless.VALUE)")
        .await;
    assert_eq!(one_shot.expect("a result").stdout.text(), "42\n");
    session.close().await.expect("it closes");

    // The machine's Python has nothing of it.
    let plain = interpreter().missing_module_advice("Install it.");
    let plain = plain.open().await.expect("a sandbox");
    let missing = plain.execute("main", "import chartless").await;
    let missing = missing.expect("a result");
    assert_eq!(missing.outcome, ExecutionOutcome::Raised);
    assert_eq!(missing.notes, ["Install it."]);
    store.name("mine", &set).await.expect("it can be written");
    let found = store.named("mine").await.expect("it can be read");
    assert_eq!(found.expect("a set").key(), set.key());
}

#[tokio::test]
async fn a_set_stays_until_it_is_refreshed_and_its_replacement_is_another_one() {
    let place = Place::new();
    let first = place.prepare(&["chartless"]).await;
    place.add("chartless", "1.1", SOURCE);
    assert_eq!(place.prepare(&["chartless"]).await.key(), first.key());
    let request = place.request(&["chartless"]).refresh(true);
    let refreshed = place.try_prepare(request).await;
    let refreshed = refreshed.expect("the packages are installed");
    assert_ne!(refreshed.key(), first.key());
    let pinned = place.prepare(&["chartless==1.0"]).await;
    assert_eq!(pinned.key(), first.key());

    // Garbage collection leaves sets that are in use.
    let old = first.path().to_owned();
    drop((first, pinned));
    let collected = place.store().collect_garbage(Duration::ZERO).await;
    assert_eq!((collected.removed, collected.failed), (vec![old], vec![]));
    let again = place.prepare(&["chartless==1.0"]).await;
    assert!(Path::new(&again.python()).exists());
}

#[tokio::test]
async fn a_package_that_cannot_be_installed_is_an_error_with_the_installers_output() {
    let place = Place::new();
    for _ in 0..2 {
        let request = place.request(&["chartless", "no-such-package"]);
        let error = place.try_prepare(request).await;
        let error = error.expect_err("there is no such package");
        assert_eq!(error.kind(), PackageErrorKind::Failed);
        let text = error.to_string();
        assert!(
            text.contains("No matching distribution found for no-such-package"),
            "{text}"
        );
    }
    let url = "tool @ https://files.example.org/tool-1.0-py3-none-any.whl";
    let error = place.try_prepare(place.request(&[url]));
    let error = error.await.expect_err("its host is not allowed");
    assert_eq!(error.kind(), PackageErrorKind::Invalid);
    assert!(error.to_string().contains("files.example.org"), "{error}");
    // A package that changed after it was found is not installed.
    let set = place.prepare(&["chartless"]).await;
    drop(set);
    place.store().collect_garbage(Duration::ZERO).await;
    place.add("chartless", "1.0", "VALUE = 'another'\n");
    let error = place.try_prepare(place.request(&["chartless"]));
    let text = error.await.expect_err("its digest differs").to_string();
    assert!(text.contains("DO NOT MATCH THE HASHES"), "{text}");
}

#[tokio::test]
async fn dependencies_of_another_python_are_those_of_its_version() {
    let place = Place::new();
    let requirements = [
        "chartless; python_version < '3.10' and platform_machine == 'other'",
        "missing; python_version >= '3.10'",
    ];
    place.add_requiring("older", "1.0", SOURCE, &requirements);
    let target = serde_json::json!({
        "executable": "/usr/bin/python3", "version": [3, 9, 1], "tag": "cpython-39", "platform": "linux-other",
        "libc": "glibc 2.36",
    });
    let target: PythonTarget = serde_json::from_value(target).expect("a Python");
    let request = place.request(&["older"]).target(target);
    let set = place.try_prepare(request).await.expect("a set");
    let packages: Vec<_> = set.packages().collect();
    assert_eq!(packages, [("chartless", "1.0"), ("older", "1.0")]);
}

#[tokio::test]
async fn packages_are_read_only_without_namespaces_too() {
    let place = Place::new();
    let backend = LocalBackend::new().without(Mechanism::Namespaces);
    let policy = Policy::workspace();
    let store = PackageStore::new(place.directory.path().join("store"), backend.clone());
    let (request, lines) = (place.request(&["chartless"]), Lines::default());
    let set = store.prepare(&request, &lines).await;
    let set = set.expect("the packages are installed");
    let python = Interpreter::new(backend).policy(policy).packages(set);
    let code = "import chartless\nprint(chartless.VALUE)\nopen(chartless.__file__, 'w')";
    let execution = python.run(code).await.expect("a result");
    assert_eq!(execution.stdout.text(), "42\n", "{execution:?}");
    let error = execution.stderr.text();
    assert!(error.contains("Permission denied"), "{error}");
}

#[tokio::test]
async fn a_sandbox_that_does_not_show_the_packages_gets_a_copy_and_says_so() {
    let place = Place::new();
    let set = place.prepare(&["chartless"]).await;
    let context = SandboxContext::new(RunId::new(), Policy::workspace());
    let sandbox = LocalBackend::new().open(context).await.expect("a sandbox");
    // What a copy that broke off left.
    let partial = format!(".cantle/packages/{}.part/bin/python", set.key());
    let partial = SandboxPath::new(partial).expect("a path");
    let written = sandbox.write_bytes(&partial, bytes::Bytes::new()).await;
    written.expect("it can be written");
    let python = interpreter().packages(set.clone());
    let session = python.attach(std::sync::Arc::clone(&sandbox));
    let code = "import chartless; chartless.VALUE";
    let copied = session.execute("main", code).await.expect("a result");
    assert_eq!(copied.results[0].text(), Some("42"), "{copied:?}");
    let note =
        "The packages were copied into the sandbox; there they are not protected from writing.";
    assert_eq!(copied.notes, [note]);
    let later = session.execute("main", code).await.expect("a result");
    assert_eq!(later.notes, [""; 0]);

    // A tool in the same sandbox uses the same copy, and names it.
    let mut cx = OpenContext::new(RunId::new());
    cx.sandbox = Some(sandbox);
    let provider = PythonTool::new(python);
    assert_eq!(provider.identity()["packages"], set.key());
    assert_eq!(provider.requirements().read_roots, [set.path()]);
    let tools = provider.open(cx).await.expect("the tools");
    let description = tools.tools()[0].spec().description().to_owned();
    let named = "These packages are installed: chartless 1.0; commands reach them with `/workspace/.cantle/packages/";
    assert!(description.contains(named), "{description}");
    session.close().await.expect("it closes");
}

/// Returns the hosts of the index peer and of its files, if it was prepared.
pub(crate) fn index_hosts() -> Option<[HostPattern; 2]> {
    let variables = ["CANTLE_TEST_INDEX", "CANTLE_TEST_INDEX_FILES"];
    let [Ok(index), Ok(files)] = variables.map(std::env::var) else {
        skip("no CANTLE_TEST_INDEX; `cargo xtask test` prepares it");
        return None;
    };
    let host = url::Url::parse(&index).expect("a URL");
    let host = host.host_str().expect("a host");
    Some([host, &*files].map(|it| format!("{it},private").parse().expect("a host")))
}

/// From a real index, through a proxy that reaches nothing else.
#[tokio::test]
async fn packages_come_from_the_configured_index_and_the_hosts_of_its_files() {
    let Some(hosts) = index_hosts() else { return };
    let place = Place::new();
    let specifier = "iniconfig==2.0.0".parse().expect("a specifier");
    let request = PackageRequest::new([specifier]).hosts(hosts);
    let set = place.try_prepare(request).await;
    let set = set.expect("the package is installed");
    let execution = interpreter().packages(set).run("import iniconfig").await;
    assert!(execution.expect("a result").success());
}

#[tokio::test]
async fn a_package_of_npm_stays_until_it_is_refreshed_or_node_is_replaced() {
    let Ok(registry) = std::env::var("CANTLE_TEST_REGISTRY") else {
        return skip("the peer index is not available");
    };
    let host = registry.split('/').nth(2).expect("a host");
    let host: HostPattern = format!("{host},private").parse().expect("a host");
    let (place, lines) = (Place::new(), Lines::default());
    let prepare = async |specifier: &str, refresh| {
        let request = NodeRequest::new(specifier).expect("a specifier");
        let request = request.hosts([host.clone()]).refresh(refresh);
        let prepared = place.store().prepare_node(&request, &lines).await;
        prepared.expect("the package is installed")
    };
    let first = prepare("semver@7.6.x", false).await;
    assert!(first.program(None).expect("a program").exists());
    let again = prepare("semver@7.6.x", false).await;
    assert_eq!(again.path(), first.path());
    assert_eq!(lines.count("Installing"), 1);

    // Another specifier of the same version is the same set.
    let refreshed = prepare("semver@7.6.x", true).await;
    assert_eq!(lines.count("Installing"), 2);
    let same = prepare("semver@>=7.6.0 <7.7", false).await;
    assert_eq!(lines.count("Installing"), 3);
    let key =
        |package: &cantle_python::NodePackage| package.path().file_name().map(ToOwned::to_owned);
    assert_eq!(key(&refreshed), key(&first));
    assert_eq!(key(&same), key(&first));

    // As an upgrade leaves it: another file at Node's path.
    let requests = place.directory.path().join("store/requests");
    for entry in fs::read_dir(requests).expect("requests") {
        let path = entry.expect("a request").path();
        let text = fs::read_to_string(&path).expect("a request");
        fs::write(&path, text.replace("\"bytes\":", "\"bytes\":1")).expect("it is written");
    }
    prepare("semver@7.6.x", false).await;
    assert_eq!(lines.count("Installing"), 4);
}
