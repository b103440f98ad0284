use super::*;

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_is_found_fits_together() {
    let probe = Probe::take(&LocalBackend::new(), LIMIT).await;
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
    // The one preset that asks for nothing has it everywhere.
    let names: Vec<Preset> = probe.presets.iter().map(|(preset, _)| *preset).collect();
    assert_eq!(names, Preset::ALL);
    assert!(probe.presets.last().unwrap().1.works());
    // Hosts can be told apart only in a network of the sandbox's own.
    assert_eq!(
        probe.namespaces.works(),
        probe.whole.wall(Wall::Namespaces).is_some()
    );
    assert_eq!(probe.without_namespaces.wall(Wall::Namespaces), None);
    assert_eq!(probe.filter.wall(Wall::Landlock), None);
}

#[tokio::test]
async fn a_wall_that_is_missing_is_found_missing() {
    let backend = LocalBackend::new()
        .without(Wall::Namespaces)
        .without(Wall::Landlock)
        .without(Wall::SystemCalls);
    let probe = Probe::take(&backend, LIMIT).await;
    assert!(probe.whole.works(), "{:?}", probe.whole);
    for wall in [Wall::Namespaces, Wall::Landlock, Wall::SystemCalls] {
        assert_eq!(probe.whole.wall(wall), None);
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
async fn it_leaves_nothing_and_keeps_its_time() {
    let parent = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().in_directory(parent.path());
    Probe::take(&backend, LIMIT).await;
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    let probe = Probe::take(&backend, Duration::ZERO).await;
    let refused = probe.whole.opened.unwrap_err();
    assert_eq!(refused.reason, "it was not found out in time");
}

#[tokio::test]
async fn where_nothing_can_be_opened_it_says_why() {
    let backend = LocalBackend::new().with_shell("/nowhere/bash");
    let probe = Probe::take(&backend, LIMIT).await;
    let expected = Refusal {
        unenforced: Vec::new(),
        reason: "`/nowhere/bash` is not the path of a shell".to_owned(),
    };
    assert_eq!(probe.whole.opened, Err(expected));
}

#[test]
fn the_machines_reasons_are_all_that_is_repeated() {
    let error = SandboxError::unenforceable("local", vec![PolicyField::Network])
        .with_advice("Do. This machine: one: no. This machine: two: no.");
    let refusal = Trial::refused(&error).opened.unwrap_err();
    assert_eq!(refusal.reason, "one: no; two: no");
    assert_eq!(refusal.unenforced, [PolicyField::Network]);
}

#[tokio::test]
async fn a_field_that_is_said_to_be_enforced_and_is_not_is_found() {
    let bait = Bait::lay(&std::env::temp_dir()).unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    // A sandbox that lies about itself.
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
    let mut said = vec!["ran".to_owned()];
    said.extend(all.iter().map(ToString::to_string));
    assert_eq!(output.stdout.text().lines().collect::<Vec<_>>(), said);
    sandbox.close().await.unwrap();
}
