//! Notices of changes in watched directories.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend, ChangeNotice, Sandbox, SandboxContext, SandboxErrorKind, SandboxPath,
};
use tokio::time::timeout;

use crate::support::{eventually, open_under, path, run, stdout, write};

const DEADLINE: Duration = Duration::from_secs(60);

async fn watch(sandbox: &dyn Sandbox, names: &[&str]) -> ChangeNotice {
    let paths: Vec<_> = names.iter().map(|name| path(name)).collect();
    sandbox.watch(&paths).await.unwrap()
}

async fn is_given(notice: &ChangeNotice, what: &str) {
    let given = timeout(DEADLINE, notice.changed().cancelled()).await;
    assert!(given.is_ok(), "no notice of {what}");
}

/// Returns the inode numbers that this process watches, by inotify instance.
fn instances() -> Vec<HashSet<u64>> {
    let numbers = |text: String| -> HashSet<u64> {
        let watches = text.lines().filter(|line| line.starts_with("inotify "));
        let numbers = watches.filter_map(|line| line.split_once("ino:")?.1.split(' ').next());
        numbers
            .map(|it| u64::from_str_radix(it, 16).unwrap())
            .collect()
    };
    let all = fs::read_dir("/proc/self/fdinfo").unwrap();
    // A descriptor may be closed meanwhile.
    let texts = all.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
    texts
        .filter(|text| text.contains("inotify wd:"))
        .map(numbers)
        .collect()
}

/// Returns how many of a sandbox's directories are watched.
async fn watched(sandbox: &dyn Sandbox, names: &str) -> usize {
    let inodes = stdout(sandbox, &format!("stat -c %i {names}")).await;
    let inodes: Vec<u64> = inodes.lines().map(|it| it.parse().unwrap()).collect();
    let instances = instances();
    let is_watched = |inode: &&u64| instances.iter().any(|of| of.contains(*inode));
    inodes.iter().filter(is_watched).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_change_is_noticed() {
    let mut sized = Policy::workspace();
    sized.limits.disk_bytes = Some(50 << 20);
    let backend = LocalBackend::new();
    let open = async |backend: &LocalBackend, policy| {
        let cx = SandboxContext::new(RunId::new(), policy);
        backend.open(cx).await.unwrap()
    };
    let in_memory = open(&backend, sized).await;
    let mapped = backend.clone().without(Mechanism::Namespaces);
    let mut best_effort = Policy::workspace();
    best_effort.strictness = cantle_core::policy::Strictness::BestEffort;
    let without_namespaces = open(&mapped, best_effort).await;
    let plain = open(&backend, Policy::workspace()).await;
    for sandbox in [&*plain, &*in_memory, &*without_namespaces] {
        run(sandbox, "mkdir sub; echo 1 > sub/file; ln -s file sub/link").await;
        for line in [
            "echo > sub/new",
            "echo 2 >> sub/file",
            "chmod 600 sub/file",
            "touch -d yesterday sub/file",
            "mv sub/new sub/renamed",
            "mv sub/renamed .",
            "mv renamed sub/back",
            "rm sub/back",
            "ln sub/file sub/hard",
            "mkdir sub/below",
            "chmod 700 sub",
            "mv sub other; mv other sub",
            "rm -r sub; mkdir sub",
        ] {
            let notice = watch(sandbox, &["sub"]).await;
            run(sandbox, line).await;
            is_given(&notice, line).await;
        }
        let notice = watch(sandbox, &["sub"]).await;
        write(sandbox, "sub/uploaded", "text").await;
        is_given(&notice, "a write through the sandbox").await;
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_gives_no_notice_and_changes_give_one() {
    let sandbox = open_under(Policy::workspace()).await;
    run(&*sandbox, "mkdir -p a/below b; echo 1 > a/file").await;
    let first = watch(&*sandbox, &["a", "b", "missing"]).await;
    let second = watch(&*sandbox, &["a"]).await;
    run(
        &*sandbox,
        "cat a/file; ls -lR; find . -printf %T@; echo > a/below/new",
    )
    .await;
    assert_eq!(watched(&*sandbox, "a a/below b").await, 2);
    // However many changes there are, the kernel keeps one event of a directory.
    run(
        &*sandbox,
        "for i in {1..9000}; do echo > a/$((i % 10)); done",
    )
    .await;
    is_given(&first, "changes in `a`").await;
    is_given(&second, "changes in `a`").await;
    assert_eq!(watched(&*sandbox, "a b").await, 1);
    drop(first);
    assert_eq!(watched(&*sandbox, "a b").await, 0);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_notice_ends_only_its_own_watch() {
    let sandbox = open_under(Policy::workspace()).await;
    run(&*sandbox, "mkdir a").await;
    let (first, second) = (
        watch(&*sandbox, &["a"]).await,
        watch(&*sandbox, &["a"]).await,
    );
    let token = first.changed().clone();
    drop(first);
    assert!(token.is_cancelled());
    assert_eq!(watched(&*sandbox, "a").await, 1);
    run(&*sandbox, "echo > a/new").await;
    is_given(&second, "a change in `a`").await;
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_a_backend_share_one_instance() {
    let backend = LocalBackend::new();
    let mut sandboxes: Vec<Arc<dyn Sandbox>> = Vec::new();
    let (mut notices, mut inodes) = (Vec::new(), HashSet::new());
    for _ in 0..3 {
        let cx = SandboxContext::new(RunId::new(), Policy::workspace());
        let sandbox = backend.open(cx).await.unwrap();
        notices.push(watch(&*sandbox, &["."]).await);
        let inode = stdout(&*sandbox, "stat -c %i .").await;
        inodes.insert(inode.trim().parse::<u64>().unwrap());
        sandboxes.push(sandbox);
    }
    let is_ours = |of: &HashSet<u64>| of.intersection(&inodes).next().is_some();
    let shared: Vec<_> = instances().into_iter().filter(is_ours).collect();
    assert_eq!(shared.len(), 1, "{shared:?}");
    assert!(
        shared.iter().all(|of| of.is_superset(&inodes)),
        "{shared:?}"
    );
    // A closed sandbox keeps nothing, and a notice outlives it.
    for sandbox in &sandboxes {
        sandbox.close().await.unwrap();
    }
    drop(notices);
    eventually("the instance is closed", || {
        !instances().iter().any(is_ours)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watched_directories_of_a_sandbox_are_limited() {
    let sandbox = open_under(Policy::workspace()).await;
    run(&*sandbox, "mkdir {1..4097}").await;
    let all: Vec<SandboxPath> = (1..=4097).map(|name| path(&name.to_string())).collect();
    let refused = sandbox.watch(&all).await.unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::Unavailable, "{refused}");
    let notice = sandbox.watch(&all[1..]).await.unwrap();
    let refused = sandbox.watch(&all[..1]).await.unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::Unavailable, "{refused}");
    drop(notice);
    sandbox.watch(&all[..1]).await.unwrap();
    let outside = sandbox.watch(&[path("/usr")]).await.unwrap_err();
    assert_eq!(outside.kind(), SandboxErrorKind::OutsideSandbox);
    sandbox.close().await.unwrap();
}
