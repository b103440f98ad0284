use super::*;

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn findings_are_consistent() {
    let probe = Probe::run(&LocalBackend::new(), LIMIT).await;
    let all = [
        &probe.whole,
        &probe.namespaces,
        &probe.without_namespaces,
        &probe.filter,
    ];
    let presets = probe.presets.iter().map(|(_, trial)| trial);
    for trial in all.into_iter().chain(presets) {
        assert_eq!(trial.broken, [], "{trial:?}");
    }
    assert!(probe.whole.works(), "{:?}", probe.whole);
    let report = &probe.whole.opened.as_ref().unwrap().enforcement;
    assert_eq!(report.len(), 12, "{report:?}");
    // The unconfined preset works everywhere.
    let names: Vec<Preset> = probe.presets.iter().map(|(preset, _)| *preset).collect();
    assert_eq!(names, Preset::ALL);
    assert!(probe.presets.last().unwrap().1.works());
    // An allow-list of hosts takes a private network.
    let namespaces = |trial: &Trial| trial.mechanism(Mechanism::Namespaces).is_some();
    assert_eq!(probe.namespaces.works(), namespaces(&probe.whole));
    assert!(!namespaces(&probe.without_namespaces));
    assert_eq!(probe.filter.mechanism(Mechanism::Landlock), None);
}

#[tokio::test]
async fn missing_mechanisms_are_found_missing() {
    let all = [
        Mechanism::Namespaces,
        Mechanism::Landlock,
        Mechanism::SystemCalls,
    ];
    let backend = all
        .into_iter()
        .fold(LocalBackend::new(), LocalBackend::without);
    let probe = Probe::run(&backend, LIMIT).await;
    assert!(probe.whole.works(), "{:?}", probe.whole);
    for mechanism in all {
        assert_eq!(probe.whole.mechanism(mechanism), None);
    }
    let refused = |trial: &Trial| trial.opened.clone().unwrap_err().unenforced;
    assert_eq!(refused(&probe.filter), [PolicyField::Network]);
    let works: Vec<bool> = probe
        .presets
        .iter()
        .map(|(_, trial)| trial.works())
        .collect();
    assert_eq!(works, [false, false, false, true]);
}

#[tokio::test]
async fn probe_leaves_nothing_and_keeps_its_time() {
    let parent = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().in_directory(parent.path());
    Probe::run(&backend, LIMIT).await;
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    let probe = Probe::run(&backend, Duration::ZERO).await;
    let refused = probe.whole.opened.unwrap_err();
    assert_eq!(refused.reason, "the probe timed out");
}

#[tokio::test]
async fn failure_to_open_is_explained() {
    let backend = LocalBackend::new().with_shell("/nowhere/bash");
    let probe = Probe::run(&backend, LIMIT).await;
    let expected = ProbeFailure {
        unenforced: Vec::new(),
        reason: "`/nowhere/bash` is not the path of a shell".to_owned(),
    };
    assert_eq!(probe.whole.opened, Err(expected));
}

#[test]
fn only_the_machines_reasons_are_repeated() {
    let error = SandboxError::unenforceable("local", vec![PolicyField::Network])
        .with_advice("Do. This machine: one: no. This machine: two: no.");
    let refusal = Trial::refused(&error).opened.unwrap_err();
    assert_eq!(refusal.reason, "one: no; two: no");
    assert_eq!(refusal.unenforced, [PolicyField::Network]);
}

#[tokio::test]
async fn violated_field_is_found() {
    let bait = Bait::create(&std::env::temp_dir()).unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    // An unconfined sandbox stops none of them.
    let all = [
        PolicyField::ReadRoots,
        PolicyField::WriteRoots,
        PolicyField::WorkingDirectory,
        PolicyField::Network,
    ];
    let output = sandbox
        .run(SpawnRequest::shell(bait.script()))
        .await
        .unwrap();
    let mut expected = vec!["ran".to_owned()];
    expected.extend(all.iter().map(ToString::to_string));
    assert_eq!(output.stdout.text().lines().collect::<Vec<_>>(), expected);
    sandbox.close().await.unwrap();
}
