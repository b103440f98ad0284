//! P01–P74: the tool, its results and artifacts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use cantle_backends_local::LocalBackend;
use cantle_core::sandbox::{Backend, Sandbox, SandboxContext, SandboxError, SandboxHandle};
use cantle_python::compat::mellea::{
    CapabilityPolicy, Mellea, MelleaError, MelleaTool, PythonToolOptions, Tier, WarningCategory,
    normalize_export_dir, scan_artifacts, validate_package_names,
};

use super::{artifact_dir, mellea, of, on, seconds, tool};

#[tokio::test]
async fn p01_p02_p08_p09_results_and_names() {
    let python = tool(on(Tier::LocalUnsafe)).await;
    assert_eq!(python.name(), "python");
    let result = python.run("print(1 + 1)").await;
    assert!(result.success, "{result:?}");
    assert_eq!(result.stdout.as_deref(), Some("2"));
    assert_eq!(result.artifacts, []);
    assert!(python.run("x = 42").await.success);
    let named = tool(PythonToolOptions {
        name: Some("my_python".to_owned()),
        ..on(Tier::Local)
    });
    assert_eq!(named.await.name(), "my_python");
}

#[tokio::test]
async fn p03_p04_p11_p45_files_of_a_successful_call_are_artifacts() {
    for tier in [Tier::LocalUnsafe, Tier::Local] {
        let (_kept, directory) = artifact_dir();
        let python = tool(PythonToolOptions {
            artifact_dir: Some(directory.clone()),
            ..on(tier)
        })
        .await;
        let path = directory.join("output.csv");
        let result = python
            .run(&format!("open({path:?}, 'w').write('a,b\\n1,2\\n')"))
            .await;
        assert!(result.success, "{result:?}");
        let [artifact] = &result.artifacts[..] else {
            panic!("{result:?}");
        };
        assert_eq!(artifact.path, path);
        assert_eq!(artifact.size_bytes, Some(8));
        assert_eq!(artifact.content_type.as_deref(), Some("text/csv"));
        // P11. Differs: files of earlier calls are not artifacts of a later one.
        let failed = python.run("raise ValueError('oops')").await;
        assert!(!failed.success && !failed.skipped && failed.artifacts.is_empty());
        // P04, P45.
        let code = "import os\nos.mkdir('sub')\nopen('a.txt', 'w').write('a')\nopen('sub/b.txt', 'w').write('b')";
        let result = python.run(code).await;
        let names: Vec<_> = result
            .artifacts
            .iter()
            .map(|it| it.path.file_name().unwrap())
            .collect();
        assert_eq!(names, ["a.txt", "b.txt"], "{result:?}");
    }
}

#[tokio::test]
async fn p10_p12_failures_and_timeouts() {
    let python = tool(on(Tier::LocalUnsafe)).await;
    let failed = python.run("raise ValueError('oops')").await;
    assert!(
        !failed.success
            && failed
                .stderr
                .as_deref()
                .is_some_and(|it| it.contains("ValueError"))
    );
    let python = tool(PythonToolOptions {
        policy: Some(seconds(3)),
        ..on(Tier::Local)
    });
    let code =
        "import time\nprint('partial', flush=True)\nopen('f', 'w').write('x')\ntime.sleep(600)";
    let stopped = python.await.run(code).await;
    assert!(stopped.timed_out && stopped.skipped && stopped.artifacts.is_empty());
    assert_eq!(
        stopped.skip_message.as_deref(),
        Some("Execution timed out.")
    );
    // Differs: the output so far is kept.
    assert_eq!(stopped.stdout.as_deref(), Some("partial"));
}

#[tokio::test]
async fn p14_p17_tiers_and_policies() {
    let python = tool(on(Tier::Local)).await;
    assert_eq!(python.run("1").await.execution_mode, "local");
    let python = tool(PythonToolOptions {
        policy: Some(CapabilityPolicy::default()),
        ..on(Tier::LocalUnsafe)
    });
    assert!(python.await.run("print('ok')").await.success);
}

#[tokio::test]
async fn p65_there_is_no_script_file() {
    let (_kept, directory) = artifact_dir();
    let python = tool(PythonToolOptions {
        artifact_dir: Some(directory.clone()),
        ..on(Tier::Local)
    });
    let code = "import os, sys\nsecret = 'in the source'\nwords = open('/proc/self/cmdline').read()\n\
                print(os.listdir('.'), sys.argv, secret in words)";
    let result = python.await.run(code).await;
    // Differs: the source is passed by a pipe, which no other user can read.
    assert_eq!(
        result.stdout.as_deref(),
        Some("[] ['-c'] False"),
        "{result:?}"
    );
    assert_eq!(scan_artifacts(&directory), []);
}

#[test]
fn p20_to_p22_p44_scans() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(scan_artifacts(directory.path()), []);
    fs::create_dir(directory.path().join("sub")).unwrap();
    for (name, content) in [
        ("data.json", "{\"a\": 1}"),
        ("sub/nested.txt", "x"),
        ("z.unknownext", "y"),
    ] {
        fs::write(directory.path().join(name), content).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).unwrap();
    let found = scan_artifacts(directory.path());
    let found: Vec<_> = found
        .iter()
        .map(|it| {
            let path = it.path.strip_prefix(directory.path()).unwrap();
            (
                path.to_str().unwrap(),
                it.size_bytes,
                it.content_type.as_deref(),
            )
        })
        .collect();
    let expected = [
        ("data.json", Some(8), Some("application/json")),
        ("sub/nested.txt", Some(1), Some("text/plain")),
        ("z.unknownext", Some(1), None),
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn p23_p24_deprecated_tools_warn() {
    for tool in [
        mellea().code_interpreter().await,
        mellea().local_code_interpreter().await,
    ] {
        let tool = tool.unwrap();
        let warnings = of(tool.warnings(), WarningCategory::Deprecation);
        assert!(warnings[0].contains("python_tool"), "{warnings:?}");
    }
}

#[test]
fn p26_to_p32_matplotlib_is_found() {
    for (code, expected) in [
        ("import matplotlib", true),
        ("import matplotlib.pyplot as plt", true),
        ("import matplotlib.backends.backend_agg", true),
        ("from matplotlib import pyplot", true),
        ("from matplotlib.pyplot import savefig", true),
        ("import numpy", false),
        ("import matplotlib (", false),
    ] {
        assert_eq!(
            MelleaTool::needs_matplotlib_preamble(code),
            expected,
            "{code}"
        );
    }
}

#[tokio::test]
async fn p33_agg_is_selected_by_the_environment() {
    let code = "import os\nprint(os.environ.get('MPLBACKEND'))";
    let selected = tool(on(Tier::Local)).await.run(code).await;
    assert_eq!(selected.stdout.as_deref(), Some("agg"));
    let suppressed = tool(PythonToolOptions {
        suppress_agg: true,
        ..on(Tier::Local)
    });
    assert_eq!(
        suppressed.await.run(code).await.stdout.as_deref(),
        Some("None")
    );
}

#[tokio::test]
async fn p34_to_p40_package_names() {
    let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        validate_package_names(&names(&["numpy", "pandas>=1.0", "scipy==1.10.0"])),
        Ok(())
    );
    for (given, expected) in [
        (names(&[""]), "non-empty"),
        (names(&["   "]), "non-empty"),
        (names(&["-r", "requirements.txt"]), "flag-style"),
        (
            names(&["--index-url", "http://evil.example.com/"]),
            "flag-style",
        ),
        (names(&["-r"]), "flag-style"),
    ] {
        let error = validate_package_names(&given).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let options = PythonToolOptions {
            packages: given,
            ..on(Tier::Local)
        };
        let made = mellea().python_tool(options).await;
        assert!(matches!(made, Err(MelleaError::Value(_))), "{made:?}");
    }
}

#[test]
fn p41_p42_export_directories() {
    assert_eq!(normalize_export_dir(Some(PathBuf::new())), None);
    assert_eq!(normalize_export_dir(Some(PathBuf::from("."))), None);
    let real = PathBuf::from("/srv/out");
    assert_eq!(normalize_export_dir(Some(real.clone())), Some(real));
}

#[tokio::test]
async fn p43_p66_artifacts_without_a_directory_live_as_long_as_the_result() {
    let python = tool(on(Tier::Local)).await;
    let result = python.run("open('made.txt', 'w').write('content')").await;
    let path = result.artifacts[0].path.clone();
    assert_eq!(fs::read_to_string(&path).unwrap(), "content");
    let mode = fs::metadata(path.parent().unwrap())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    drop(result);
    assert!(!path.exists());
}

#[tokio::test]
async fn p46_p47_docker_needs_export_paths_for_a_directory() {
    let (_kept, directory) = artifact_dir();
    let options = |paths: &[&str]| PythonToolOptions {
        artifact_dir: Some(directory.clone()),
        policy: Some(CapabilityPolicy {
            artifact_export_paths: paths.iter().map(|it| (*it).to_owned()).collect(),
            ..CapabilityPolicy::docker()
        }),
        ..on(Tier::Docker)
    };
    let without = tool(options(&[])).await;
    let warnings = of(without.warnings(), WarningCategory::Runtime);
    assert!(
        warnings[0].contains("artifact_export_paths"),
        "{warnings:?}"
    );
    let with = container().python_tool(options(&["/tmp/x"])).await.unwrap();
    assert!(of(with.warnings(), WarningCategory::Runtime).is_empty());
}

#[tokio::test]
async fn p48_to_p50_tiers_that_enforce_nothing_must_be_named() {
    let python = tool(on(Tier::LocalUnsafe)).await;
    assert_eq!(python.environment().policy(), None);
    // P49, P50. Differs: without a tier it is `local`, and the named unsafe tier warns.
    let warnings = of(python.warnings(), WarningCategory::User);
    assert!(warnings[0].contains("local_unsafe"), "{warnings:?}");
    let default = tool(PythonToolOptions::default()).await;
    assert_eq!(default.environment().tier(), Tier::Local);
    assert!(default.warnings().is_empty());
}

/// A Docker backend without an engine: sandboxes of this machine, listed.
#[derive(Clone, Debug, Default)]
struct Container(Arc<Mutex<Vec<Weak<dyn Sandbox>>>>);

#[async_trait]
impl Backend for Container {
    fn name(&self) -> &'static str {
        "docker"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let opened = LocalBackend::new().open(cx).await?;
        let mut all = self.0.lock().expect("not poisoned");
        all.push(Arc::downgrade(&opened));
        Ok(opened)
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        LocalBackend::new().reattach(handle, cx).await
    }
}

fn container() -> Mellea {
    Mellea::new().docker(Container::default())
}

/// A policy that exports the paths below the working directory.
fn exporting(paths: &[&str]) -> CapabilityPolicy {
    CapabilityPolicy {
        artifact_export_paths: paths.iter().map(|it| (*it).to_owned()).collect(),
        ..CapabilityPolicy::docker()
    }
}

#[tokio::test]
async fn p60_p67_to_p74_files_of_a_container_are_exported() {
    let backend = Container::default();
    let mellea = Mellea::new().docker(backend.clone());
    let (_kept, directory) = artifact_dir();
    let options = |artifact_dir| PythonToolOptions {
        policy: Some(exporting(&["out.csv", "made", "missing"])),
        artifact_dir,
        ..on(Tier::Docker)
    };
    let python = mellea
        .python_tool(options(Some(directory.clone())))
        .await
        .unwrap();
    let code = "import os\nos.makedirs('made/sub', exist_ok=True)\nopen('out.csv', 'w').write('1,2')\n\
                open('made/a', 'w').write('a')\nopen('made/sub/b', 'w').write('b')\nprint(1 + 1)";
    // P73.
    let failed = python
        .run("open('out.csv', 'w').write('1')\nraise SystemExit(1)")
        .await;
    assert!(!failed.success && failed.artifacts.is_empty());
    assert!(!directory.exists());
    // P60, P67–P70, P74.
    let result = python.run(code).await;
    assert_eq!(result.stdout.as_deref(), Some("2"));
    let [file, tree] = &result.artifacts[..] else {
        panic!("{result:?}");
    };
    let exported = file.path.parent().unwrap().to_owned();
    assert_eq!(exported.parent(), Some(&*directory));
    let mode = fs::metadata(&exported).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(fs::read_to_string(&file.path).unwrap(), "1,2");
    assert_eq!(file.path.file_name().unwrap(), "out.csv");
    assert_eq!(tree.size_bytes, None);
    assert_eq!(fs::read_to_string(tree.path.join("sub/b")).unwrap(), "b");
    assert_eq!(fs::read_to_string(tree.path.join("a")).unwrap(), "a");
    drop(result);
    assert!(directory.join(exported.file_name().unwrap()).exists());
    python.run(code).await;
    let containers = backend.0.lock().unwrap().clone();
    assert_eq!(containers.len(), 1, "one container for all calls");
    // P71: dropping the tool drops its sandbox, which removes it.
    assert!(containers[0].upgrade().is_some());
    drop(python);
    assert!(containers[0].upgrade().is_none());
    // P72.
    let python = mellea.python_tool(options(None)).await.unwrap();
    let result = python.run(code).await;
    let path = result.artifacts[0].path.clone();
    assert!(path.exists());
    drop(result);
    assert!(!path.exists());
}

#[tokio::test]
async fn files_of_a_single_call_are_exported_before_its_container_is_closed() {
    let policy = Some(exporting(&["out.csv"]));
    let mellea = container();
    let environment = mellea.make_execution_environment(Tier::Docker, policy, None, None);
    let environment = environment.await.unwrap();
    // Differs: Mellea exports files of an entered environment only, and warns.
    let code = "open('out.csv', 'w').write('1,2')";
    let result = environment.execute(code, None).await;
    let [file] = &result.artifacts[..] else {
        panic!("{result:?}");
    };
    assert_eq!(fs::read_to_string(&file.path).unwrap(), "1,2");
    let failed = format!("{code}\n1 / 0");
    let failed = environment.execute(&failed, None).await;
    assert_eq!(failed.artifacts, [], "{failed:?}");
}

#[tokio::test]
async fn files_are_copied_into_and_out_of_an_entered_container() {
    let mellea = container();
    let environment = mellea.make_execution_environment(Tier::Docker, None, None, None);
    let environment = environment.await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (given, taken) = (
        directory.path().join("given"),
        directory.path().join("taken"),
    );
    fs::write(&given, "content").unwrap();
    let early = environment.copy_in(&given, "in.txt").await.unwrap_err();
    assert!(early.to_string().contains("context manager"), "{early}");
    environment.enter().await.unwrap();
    assert!(environment.container_id().await.is_some());
    environment.copy_in(&given, "in.txt").await.unwrap();
    let result = environment
        .execute(
            "open('out.txt', 'w').write(open('in.txt').read() * 2)",
            None,
        )
        .await;
    assert!(result.success, "{result:?}");
    environment.copy_out("out.txt", &taken).await.unwrap();
    assert_eq!(fs::read_to_string(taken).unwrap(), "contentcontent");
    environment.exit().await.unwrap();
}
