//! P51–P59, P65 and R23–R50: policies, their enforcement, tiers and results.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle_core::secret::SecretText;
use cantle_python::compat::mellea::{
    CAPABILITIES, CapabilityPolicy, ExecutionResult, MelleaError, PythonToolOptions, Tier,
    WarningCategory, truncate,
};

use super::{environment, mellea, of, on, seconds, tool};

#[tokio::test]
async fn p51_to_p59_only_tiers_that_enforce_nothing_warn() {
    let readable = tempfile::tempdir().unwrap();
    // P51, P52, P54, P56. Differs: these fields are enforced on `local`, so that nothing warns.
    let policy = CapabilityPolicy {
        filesystem_read_roots: Some(vec![readable.path().to_owned()]),
        filesystem_write_roots: Some(Vec::new()),
        ..CapabilityPolicy::default()
    };
    let local = tool(PythonToolOptions {
        policy: Some(policy.clone()),
        ..on(Tier::Local)
    });
    assert!(local.await.warnings().is_empty());
    // P55, P57: at construction.
    let unsafe_tool = tool(PythonToolOptions {
        policy: Some(policy),
        ..on(Tier::LocalUnsafe)
    })
    .await;
    let warnings = of(unsafe_tool.warnings(), WarningCategory::User);
    let [warning] = warnings[..] else {
        panic!("{warnings:?}");
    };
    for part in [
        "network_access=False",
        "package_installation=False",
        "unenforced",
        "not restrict",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
    // P58: no policy, no such warning.
    let without = tool(on(Tier::LocalUnsafe)).await;
    assert!(!of(without.warnings(), WarningCategory::User)[0].contains("unenforced"));
    // P53, P59.
    let timed = tool(PythonToolOptions {
        policy: Some(seconds(10)),
        ..on(Tier::Docker)
    });
    assert!(timed.await.warnings().is_empty());
}

#[test]
fn r23_to_r28_fields_and_presets() {
    let policy = CapabilityPolicy::default();
    assert_eq!(policy.timeout, Duration::from_secs(30));
    assert_eq!(policy.artifact_export_paths, Vec::<String>::new());
    assert_eq!(
        (policy.stdout_max_bytes, policy.stderr_max_bytes),
        (None, None)
    );
    // R24. Differs: on `local`, every field is enforced.
    assert_eq!(CapabilityPolicy::unenforced_capabilities(), [""; 0]);
    let enforced = CapabilityPolicy::enforced_capabilities();
    for field in [
        "timeout",
        "stdout_max_bytes",
        "stderr_max_bytes",
        "artifact_export_paths",
        "packages",
        "filesystem_read_roots",
        "filesystem_write_roots",
        "network_access",
        "package_installation",
        "subprocess_execution",
        "env_var_access",
    ] {
        assert!(enforced.contains(&field), "{field}");
    }
    let flags = |it: CapabilityPolicy| {
        let flags = [
            it.network_access,
            it.package_installation,
            it.subprocess_execution,
            it.env_var_access,
        ];
        (flags, it.timeout.as_secs())
    };
    assert_eq!(
        flags(CapabilityPolicy::local()),
        ([false, false, true, true], 30)
    );
    assert_eq!(
        flags(CapabilityPolicy::docker()),
        ([false, true, true, true], 60)
    );
}

#[tokio::test]
async fn every_field_is_enforced_on_local() {
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let (readable, writable) = (
        outside.path().join("readable"),
        outside.path().join("writable"),
    );
    for directory in [&readable, &writable] {
        std::fs::create_dir(directory).unwrap();
    }
    let secret = outside.path().join("secret");
    for file in [readable.join("file"), secret.clone()] {
        std::fs::write(file, "content").unwrap();
    }
    let refuses = async |policy: CapabilityPolicy, code: &str| {
        let result = environment(Tier::Local, Some(policy))
            .await
            .execute(code, None)
            .await;
        assert!(!result.success && !result.skipped, "{code}: {result:?}");
        result.stderr.unwrap()
    };
    let allows = async |policy: CapabilityPolicy, code: &str| {
        let result = environment(Tier::Local, Some(policy))
            .await
            .execute(code, None)
            .await;
        assert!(result.success, "{code}: {result:?}");
        result.stdout.unwrap()
    };
    let base = CapabilityPolicy::local;
    let read = |path: &Path| format!("print(open({path:?}).read())");
    refuses(base(), &read(&secret)).await;
    let reading = CapabilityPolicy {
        filesystem_read_roots: Some(vec![readable.clone()]),
        ..base()
    };
    let file = readable.join("file");
    assert_eq!(allows(reading.clone(), &read(&file)).await, "content");
    refuses(reading.clone(), &read(&secret)).await;
    refuses(reading, &format!("open({file:?}, 'w')")).await;
    let made = writable.join("made");
    let write = format!("open({made:?}, 'w').write('x')");
    refuses(base(), &write).await;
    let writing = CapabilityPolicy {
        filesystem_write_roots: Some(vec![writable]),
        ..base()
    };
    allows(writing, &write).await;
    assert!(made.exists());

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("import socket\nsocket.create_connection(('127.0.0.1', {port}))");
    refuses(base(), &connect).await;
    let network = CapabilityPolicy {
        network_access: true,
        ..base()
    };
    allows(network, &connect).await;

    let start = "import subprocess\nprint(subprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout)";
    assert_eq!(allows(base(), start).await, "hi");
    let alone = CapabilityPolicy {
        subprocess_execution: false,
        ..base()
    };
    let stderr = refuses(alone, start).await;
    assert!(stderr.contains("PermissionError"), "{stderr}");

    let mut named = base();
    named
        .environment
        .insert("NAMED".to_owned(), SecretText::from("value".to_owned()));
    let variables =
        "import os\nprint(os.environ.get('NAMED'), os.environ.get('CARGO_MANIFEST_DIR'))";
    assert_eq!(allows(named.clone(), variables).await, "value None");
    named.env_var_access = false;
    assert_eq!(allows(named, variables).await, "None None");
}

#[tokio::test]
async fn r29_to_r32_the_matrix_is_asked_of_the_backends() {
    let matrix = mellea().compatibility_matrix().await;
    assert_eq!(matrix.keys().copied().collect::<Vec<_>>(), Tier::ALL);
    let has = |tier: Tier| {
        let row = &matrix[&tier];
        CAPABILITIES
            .into_iter()
            .filter(|it| row[it])
            .collect::<Vec<_>>()
    };
    assert_eq!(has(Tier::Static), ["import_allowlist"]);
    assert_eq!(
        has(Tier::LocalUnsafe),
        ["execute_code", "timeout_enforcement", "import_allowlist"]
    );
    assert_eq!(
        has(Tier::Local),
        [
            "execute_code",
            "timeout_enforcement",
            "import_allowlist",
            "policy_applied"
        ]
    );
    // Differs: no backend, no capability.
    assert_eq!(has(Tier::Docker), ["import_allowlist"]);
    // Another backend, another answer.
    let with_docker = mellea().docker(cantle_backends_local::LocalBackend::new());
    let matrix = with_docker.compatibility_matrix().await;
    for tier in [Tier::DockerUnsafe, Tier::Docker] {
        assert!(matrix[&tier]["copy_in"] && matrix[&tier]["copy_out"]);
        assert_eq!(matrix[&tier]["policy_applied"], tier == Tier::Docker);
        assert!(!matrix[&tier]["docker_isolation"], "it is no container");
    }
}

#[tokio::test]
async fn r33_to_r42_results() {
    let default = ExecutionResult::default();
    assert_eq!(
        (
            default.exit_code,
            default.timed_out,
            default.artifacts.len()
        ),
        (None, false, 0)
    );
    assert_eq!(default.execution_mode, "unknown");
    assert_eq!(default.to_validationresult_reason(), "");
    for tier in [Tier::Static, Tier::LocalUnsafe, Tier::Local] {
        let result = environment(tier, None).await.execute("x = 1", None).await;
        assert_eq!(result.execution_mode, tier.as_str());
        assert!(result.success);
        assert_eq!(result.working_directory, None);
        if tier == Tier::Static {
            assert!(result.skipped && result.analysis_result.is_some());
            let failed = environment(tier, None).await.execute("x = (", None).await;
            assert_eq!(failed.skip_message.as_deref(), Some("Parse failed."));
            assert!(failed.analysis_result.unwrap().syntax_error.is_some());
            continue;
        }
        assert_eq!(result.exit_code, Some(0));
        let failed = environment(tier, None).await.execute("1 / 0", None).await;
        assert_eq!(failed.exit_code, Some(1));
        assert!(
            failed
                .to_validationresult_reason()
                .contains("ZeroDivisionError")
        );
        let killed = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)";
        let killed = environment(tier, None).await.execute(killed, None).await;
        assert_eq!(killed.exit_code, Some(-9));
        let limit = Some(Duration::from_secs(1));
        let stopped = environment(tier, None)
            .await
            .execute("import time\ntime.sleep(999)", limit)
            .await;
        assert!(stopped.timed_out && stopped.skipped);
        assert_eq!(stopped.to_validationresult_reason(), "Execution timed out.");
    }
}

#[tokio::test]
async fn r43_r44_streams_are_cut() {
    let policy = CapabilityPolicy {
        stdout_max_bytes: Some(30),
        stderr_max_bytes: Some(30),
        ..CapabilityPolicy::local()
    };
    let code = "import sys\nprint('a' * 100)\nprint('b' * 100, file=sys.stderr)";
    let result = environment(Tier::Local, Some(policy))
        .await
        .execute(code, None)
        .await;
    for text in [result.stdout.unwrap(), result.stderr.unwrap()] {
        assert!(
            text.ends_with("... [truncated]") && text.len() == 30,
            "{text}"
        );
    }
    let alphabet = "abcdefghijklmnopqrstuvwxyz";
    assert_eq!(truncate(alphabet, Some(10)), "abcdefghij");
    assert_eq!(truncate(alphabet, Some(16)), "a... [truncated]");
    assert_eq!(truncate("ééééééééééé", Some(18)), "é... [truncated]");
    assert_eq!(truncate(alphabet, None), alphabet);
}

#[tokio::test]
async fn r45_code_runs_in_the_working_directory() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path: PathBuf = directory.path().to_owned();
    for tier in [Tier::LocalUnsafe, Tier::Local] {
        let mellea = mellea();
        let made = mellea.make_execution_environment(tier, None, None, Some(path.clone()));
        let result = made
            .await
            .unwrap()
            .execute("import os\nprint(os.getcwd())", None)
            .await;
        assert_eq!(result.stdout.as_deref(), path.to_str(), "{result:?}");
        assert_eq!(result.working_directory.as_ref(), Some(&path));
    }
}

#[tokio::test]
async fn r47_to_r50_tiers_without_containers_copy_nothing() {
    for tier in [Tier::Static, Tier::Local, Tier::LocalUnsafe] {
        let environment = environment(tier, None).await;
        let path = Path::new("/tmp/x");
        for (copied, name) in [
            (environment.copy_in(path, "x").await, "copy_in"),
            (environment.copy_out("x", path).await, "copy_out"),
        ] {
            let Err(MelleaError::NotImplemented(message)) = copied else {
                panic!("{copied:?}");
            };
            assert!(
                message.contains(&format!("does not support {name}")),
                "{message}"
            );
        }
    }
}

#[test]
fn unknown_tiers_are_named() {
    let error = "x".parse::<Tier>().unwrap_err().to_string();
    let expected = "Unknown execution tier 'x'. Valid tiers: 'static', 'local_unsafe', 'local', 'docker_unsafe', 'docker'.";
    assert_eq!(error, expected);
    for tier in Tier::ALL {
        assert_eq!(tier.as_str().parse(), Ok(tier));
    }
}
