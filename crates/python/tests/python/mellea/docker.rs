//! P60–P64, R15–R17 and what Docker can't enforce, in containers of a real engine.

use std::fs;
use std::time::Duration;

use cantle_backends_docker::DockerBackend;
use cantle_backends_local::LocalBackend;
use cantle_python::compat::mellea::{
    CapabilityPolicy, LegacyExecutionOptions, Mellea, MelleaError, PythonExecutionReq,
    PythonToolOptions, Requirement, Tier,
};
use cantle_testkit::lane::skip;

use super::packages::with;
use super::{artifact_dir, on};
use crate::packages::Place;

/// Mellea's tiers with an engine.
fn containers() -> Option<Mellea> {
    let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
    let [Ok(host), Ok(image)] = names.map(std::env::var) else {
        skip("no CANTLE_TEST_DOCKER_HOST; `cargo xtask test` starts an engine");
        return None;
    };
    let backend = DockerBackend::from_image(image).with_host(host);
    Some(Mellea::new().local(LocalBackend::new()).docker(backend))
}

#[tokio::test]
async fn p60_p64_code_and_export_paths() {
    let Some(mellea) = containers() else { return };
    let (_kept, directory) = artifact_dir();
    let python = mellea.python_tool(PythonToolOptions {
        artifact_dir: Some(directory.clone()),
        policy: Some(CapabilityPolicy {
            artifact_export_paths: vec!["/tmp/out.txt".to_owned()],
            ..CapabilityPolicy::docker()
        }),
        ..on(Tier::Docker)
    });
    let code = "open('/tmp/out.txt', 'w').write('content')\nprint(1 + 1)";
    let result = python.await.unwrap().run(code).await;
    assert_eq!(result.stdout.as_deref(), Some("2"), "{result:?}");
    let [artifact] = &result.artifacts[..] else {
        panic!("{result:?}");
    };
    assert!(artifact.path.starts_with(&directory));
    assert_eq!(fs::read_to_string(&artifact.path).unwrap(), "content");
}

#[tokio::test]
async fn exports_are_bounded_and_have_safe_names() {
    let Some(mellea) = containers() else { return };
    let python = mellea.python_tool(PythonToolOptions {
        policy: Some(CapabilityPolicy {
            artifact_export_paths: ["/tmp/d", "/tmp/holes", "/tmp/e/d"]
                .map(str::to_owned)
                .into(),
            ..CapabilityPolicy::docker()
        }),
        ..on(Tier::Docker)
    });
    let code = "import os\nos.makedirs('/tmp/d/.git'); os.makedirs('/tmp/e'); os.symlink('/etc', '/tmp/d/etc')\n\
                for name in ['d/.git/config', 'd/kept', 'e/d']: open('/tmp/' + name, 'w').write(name)\n\
                for name in ['d/holes', 'holes']: open('/tmp/' + name, 'w').truncate(5 << 30)";
    let result = python.await.unwrap().run(code).await;
    let [directory, file] = &result.artifacts[..] else {
        panic!("{result:?}");
    };
    assert_eq!((directory.size_bytes, file.size_bytes), (None, Some(3)));
    let names = fs::read_dir(&directory.path)
        .unwrap()
        .map(|it| it.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["kept"]);
    assert_eq!(fs::read_to_string(&file.path).unwrap(), "e/d");
    assert_eq!(file.path.file_name(), directory.path.file_name());
}

#[tokio::test]
async fn p61_to_p63_packages_in_containers() {
    let Some(mellea) = containers() else { return };
    let place = Place::new();
    let mellea = mellea.packages(place.store(), place.request(&[]));
    let code = "import chartless\nprint(chartless.VALUE)";
    // P61, P63: each call has a container of its own.
    let python = mellea.python_tool(with(Tier::Docker, None, &["chartless"]));
    let python = python.await.unwrap();
    for _ in 0..2 {
        let result = python.run(code).await;
        assert_eq!(result.stdout.as_deref(), Some("42"), "{result:?}");
    }
    // P62: one container, in which the packages stay.
    let policy = python.environment().policy().cloned();
    let environment = mellea.make_execution_environment(Tier::Docker, policy, None, None);
    let environment = environment.await.unwrap();
    environment.enter().await.unwrap();
    let result = environment.execute(code, None).await;
    assert_eq!(result.stdout.as_deref(), Some("42"), "{result:?}");
    let again = "import chartless, os\nprint(os.path.getmtime(chartless.__file__))";
    let first = environment.execute(again, None).await.stdout.unwrap();
    let second = environment.execute(again, None).await.stdout.unwrap();
    assert_eq!(first, second);
    environment.exit().await.unwrap();
}

#[tokio::test]
async fn r15_to_r17_the_requirement_executes_in_containers() {
    let Some(mellea) = containers() else { return };
    let legacy = |timeout: Option<u64>| LegacyExecutionOptions {
        timeout: timeout.map(Duration::from_secs),
        allow_unsafe_execution: false,
        use_sandbox: true,
    };
    let sandboxed = |timeout| PythonExecutionReq::with_legacy(Tier::Static, None, legacy(timeout));
    let validate = async |requirement: PythonExecutionReq, code: &str| {
        let text = format!("```python\n{code}\n```");
        let requirement = Requirement::PythonExecution(Box::new(requirement));
        requirement.validate(&mellea, &text.as_str().into()).await
    };
    let valid = validate(sandboxed(None), "print('hi')").await;
    assert!(valid.is_met, "{valid:?}");
    let allowed = Some(vec!["os".to_owned()]);
    let code = "import os\nprint(os.name)";
    let valid = validate(sandboxed(None).allowed_imports(allowed), code).await;
    assert!(valid.is_met, "{valid:?}");
    let endless = validate(sandboxed(Some(2)), "while True:\n    pass").await;
    assert!(
        !endless.is_met && endless.reason.contains("timed out"),
        "{endless:?}"
    );
}

#[tokio::test]
async fn docker_refuses_what_only_local_enforces() {
    let Some(mellea) = containers() else { return };
    let policy = CapabilityPolicy {
        subprocess_execution: false,
        ..CapabilityPolicy::docker()
    };
    let made = mellea.make_execution_environment(Tier::Docker, Some(policy), None, None);
    let Err(MelleaError::Value(message)) = made.await else {
        panic!("it is refused");
    };
    let expected = "The tier 'local' enforces subprocess_execution=False.";
    assert!(message.ends_with(expected), "{message}");
}

#[tokio::test]
async fn r29_to_r32_the_matrix_of_an_engine() {
    let Some(mellea) = containers() else { return };
    let matrix = mellea.compatibility_matrix().await;
    for tier in [Tier::DockerUnsafe, Tier::Docker] {
        let row = &matrix[&tier];
        for (name, has) in row {
            let expected = match *name {
                "policy_applied" => tier == Tier::Docker,
                "package_installation" => false,
                _ => true,
            };
            assert_eq!(*has, expected, "{tier} {name}");
        }
    }
}
