//! Random trees of symbolic links: only files inside are read, and all of them can be.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_core::sandbox::{ByteRange, Sandbox, SandboxErrorKind, SandboxExt as _, SandboxPath};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};
use tokio::runtime::Runtime;

use crate::support::{new_runtime, on_host, open};

/// One preparation of the sandbox's files.
#[derive(Clone, Debug)]
enum Step {
    Directory(String),
    File(String),
    Link { at: String, to: String },
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(str::to_owned)
}

fn relative() -> impl Strategy<Value = String> {
    vec(name(), 1..4).prop_map(|names| names.join("/"))
}

/// The target of a symbolic link: up, down, inside by an absolute path, or outside in several ways.
fn target() -> impl Strategy<Value = String> {
    let part = prop_oneof![4 => name(), 2 => Just("..".to_owned()), 1 => Just(".".to_owned())];
    let start = prop_oneof![
        5 => Just(""),
        3 => Just("WORK/"),
        1 => Just("ROOT/"),
        1 => Just("/"),
        1 => Just("OUTSIDE/"),
        1 => Just("/proc/self/root/"),
        1 => Just("/proc/self/cwd/"),
    ];
    (start, vec(part, 1..5)).prop_map(|(start, parts)| format!("{start}{}", parts.join("/")))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        relative().prop_map(Step::Directory),
        relative().prop_map(Step::File),
        (relative(), target()).prop_map(|(at, to)| Step::Link { at, to }),
    ]
}

struct Place {
    runtime: Runtime,
    sandbox: Arc<dyn Sandbox>,
    work: PathBuf,
    outside: tempfile::TempDir,
}

impl Place {
    fn prepare(steps: &[Step]) -> Self {
        let runtime = new_runtime();
        let sandbox = runtime.block_on(open());
        let work = on_host(&*sandbox, "");
        let outside = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(outside.path().join(name), "outside").unwrap();
        }
        let place = Self {
            runtime,
            sandbox,
            work,
            outside,
        };
        for step in steps {
            // Many fail, such as a file below a file. A link that leads out must not be followed here.
            let _ = match step {
                Step::Directory(at) => place.inside(at).map(fs::create_dir),
                Step::File(at) => place.inside(at).map(|at| fs::write(at, "inside")),
                Step::Link { at, to } => place.inside(at).map(|at| symlink(place.target(to), at)),
            };
        }
        place
    }

    /// Returns an unused path whose parent is inside.
    fn inside(&self, at: &str) -> Option<PathBuf> {
        let path = self.work.join(at);
        let parent = path.parent()?.canonicalize().ok()?;
        let path = parent.join(path.file_name()?);
        (parent.starts_with(self.root()) && fs::symlink_metadata(&path).is_err()).then_some(path)
    }

    fn root(&self) -> &Path {
        self.work.parent().unwrap()
    }

    fn target(&self, to: &str) -> String {
        to.replace("WORK", &self.work.to_string_lossy())
            .replace("ROOT", &self.root().to_string_lossy())
            .replace("OUTSIDE", &self.outside.path().to_string_lossy())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_path_escapes(steps in vec(step(), 1..14), asked in vec(relative(), 1..6)) {
        let place = Place::prepare(&steps);
        for asked in asked {
            let path: SandboxPath = asked.parse().unwrap();
            let found = place.runtime.block_on(place.sandbox.read_bytes(&path, 100));
            let truth = place.work.join(&asked).canonicalize();
            match (found, truth) {
                (Ok(content), truth) => {
                    assert_eq!(content, "inside", "{asked}");
                    assert!(truth.unwrap().starts_with(place.root()), "{asked}");
                }
                (Err(error), Ok(truth)) if truth.starts_with(place.root()) && truth.is_file() => {
                    // The path leaves the sandbox and comes back.
                    assert_eq!(error.kind(), SandboxErrorKind::OutsideSandbox, "{asked}: {error}");
                    assert!(leaves(&place, &steps), "{asked}: {error}");
                }
                (Err(_), _) => {}
            }
            // Nor is anything written outside.
            let _ = place.runtime.block_on(place.sandbox.write_bytes(&path, "inside".into()));
            let _ = place.runtime.block_on(place.sandbox.mkdir(&path));
            let _ = place.runtime.block_on(place.sandbox.remove(&path));
            let _ = place.runtime.block_on(place.sandbox.read(&path, ByteRange::all()));
            for name in ["a", "b", "c"] {
                let content = fs::read_to_string(place.outside.path().join(name)).unwrap();
                assert_eq!(content, "outside", "{asked}");
            }
            assert_eq!(fs::read_dir(place.outside.path()).unwrap().count(), 3);
        }
        place.runtime.block_on(place.sandbox.close()).unwrap();
    }
}

/// Whether a symbolic link passes through a directory outside.
fn leaves(place: &Place, steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Link { to, .. } => {
            let to = place.target(to);
            to.contains("..") || !to.starts_with(&*place.root().to_string_lossy())
        }
        _ => false,
    })
}
