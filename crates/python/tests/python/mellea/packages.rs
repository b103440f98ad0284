//! P05–P07, P13, P15, P16, P18, P19: packages, which a store installs beside the machine's Python.

use cantle_backends_local::LocalBackend;
use cantle_python::compat::mellea::{CapabilityPolicy, Mellea, PythonToolOptions, Tier};
use cantle_python::{PackageRequest, PackageStore};
use cantle_testkit::lane;

use super::{artifact_dir, mellea, on, tool};
use crate::packages::{Place, index_hosts};

pub(super) fn with(
    tier: Tier,
    policy: Option<CapabilityPolicy>,
    packages: &[&str],
) -> PythonToolOptions {
    PythonToolOptions {
        policy,
        packages: packages.iter().map(|it| (*it).to_owned()).collect(),
        ..on(tier)
    }
}

/// A policy with a package, or one that only names it.
fn needing(package: &str, package_installation: bool) -> CapabilityPolicy {
    CapabilityPolicy {
        packages: vec![package.to_owned()],
        package_installation,
        ..CapabilityPolicy::local()
    }
}

#[tokio::test]
async fn p13_p15_p16_p18_packages_are_installed_beside_the_machines_python() {
    let place = Place::new();
    let mellea = mellea().packages(place.store(), place.request(&[]));
    let run = async |options, code| mellea.python_tool(options).await.unwrap().run(code).await;
    let import = "import chartless\nprint(chartless.VALUE)";
    for tier in [Tier::LocalUnsafe, Tier::Local] {
        let result = run(with(tier, None, &["chartless"]), import).await;
        assert_eq!(result.execution_mode, tier.as_str());
        assert_eq!(result.stdout.as_deref(), Some("42"), "{result:?}");
    }
    let result = run(with(Tier::LocalUnsafe, None, &[]), "print('ok')").await;
    assert_eq!(result.stdout.as_deref(), Some("ok"));
    // P16, P18: those of the policy and of the tool are merged.
    let options = with(
        Tier::Local,
        Some(needing("chartless", true)),
        &["chartless"],
    );
    let merged = mellea.python_tool(options).await.unwrap();
    let policy = merged.environment().policy().unwrap();
    assert_eq!(policy.packages, ["chartless"]);
    assert_eq!(merged.run(import).await.stdout.as_deref(), Some("42"));
    // A failed installation stays one: Mellea runs the code at the next call.
    let failing = mellea.python_tool(with(Tier::Local, None, &["missing"]));
    let failing = failing.await.unwrap();
    for _ in 0..2 {
        let failed = failing.run("print('ok')").await;
        let message = failed.skip_message.unwrap();
        let expected = "Package installation failed: missing: ";
        assert!(message.starts_with(expected), "{message}");
        assert!(message.contains("No matching distribution") || message.contains("not found"));
        assert!(failed.skipped && !failed.success);
    }
    let refused = run(
        with(Tier::Local, Some(needing("chartless", false)), &[]),
        "1",
    )
    .await;
    let message = refused.skip_message.unwrap();
    assert!(message.contains("package_installation=False"), "{message}");
    // Nothing was installed into the machine's Python, and without a store nothing is.
    let plain = tool(on(Tier::LocalUnsafe)).await.run(import).await;
    let stderr = plain.stderr.unwrap();
    assert!(stderr.contains("ModuleNotFoundError"), "{stderr}");
    let none = tool(with(Tier::Local, None, &["chartless"])).await;
    let message = none.run("1").await.skip_message.unwrap();
    assert!(message.contains("nothing here installs packages"));
}

/// Mellea's tiers with packages of the index peer.
fn indexed() -> Option<(Place, Mellea)> {
    let hosts = index_hosts()?;
    let place = Place::new();
    let store: PackageStore = place.store();
    let source = PackageRequest::new([]).hosts(hosts);
    Some((
        place,
        Mellea::new()
            .local(LocalBackend::new())
            .packages(store, source),
    ))
}

#[tokio::test]
async fn p19_a_package_comes_from_the_index() {
    let Some((_place, mellea)) = indexed() else {
        return;
    };
    let python = mellea.python_tool(with(Tier::Local, None, &["iniconfig==2.0.0"]));
    let result = python
        .await
        .unwrap()
        .run("import iniconfig\nprint('ok')")
        .await;
    assert_eq!(result.stdout.as_deref(), Some("ok"), "{result:?}");
}

#[tokio::test]
async fn p05_to_p07_charts_and_tables() {
    let Some((_place, mellea)) = indexed() else {
        return;
    };
    if !lane::is_full() {
        return lane::skip("the full lane installs matplotlib and pandas");
    }
    let run = async |packages: &[&str], code: &str| {
        let (kept, directory) = artifact_dir();
        let python = mellea.python_tool(PythonToolOptions {
            artifact_dir: Some(directory),
            ..with(Tier::Local, None, packages)
        });
        (python.await.unwrap().run(code).await, kept)
    };
    let artifact = |result: &cantle_python::compat::mellea::ExecutionResult| {
        let [made] = &result.artifacts[..] else {
            panic!("{result:?}");
        };
        assert!(made.size_bytes > Some(0), "{result:?}");
        let name = made.path.file_name().unwrap().to_str().unwrap();
        (name.to_owned(), made.content_type.clone().unwrap())
    };
    let plot = "import matplotlib.pyplot as plt\nimport numpy as np\nplt.plot(np.arange(3))\nplt.savefig('plot.png')";
    let (result, _kept) = run(&["matplotlib", "numpy"], plot).await;
    assert!(result.success, "{result:?}");
    assert_eq!(
        artifact(&result),
        ("plot.png".to_owned(), "image/png".to_owned())
    );
    let (result, _kept) = run(&["numpy"], "import numpy as np\nprint(np.sqrt(4.0))").await;
    assert_eq!(result.stdout.as_deref(), Some("2.0"), "{result:?}");
    let table = "import pandas as pd\ntable = pd.DataFrame({'a': [1, 2]})\ntable.to_csv('summary.csv')\nprint(len(table))";
    let (result, _kept) = run(&["pandas"], table).await;
    assert_eq!(result.stdout.as_deref(), Some("2"), "{result:?}");
    assert_eq!(
        artifact(&result),
        ("summary.csv".to_owned(), "text/csv".to_owned())
    );
}
