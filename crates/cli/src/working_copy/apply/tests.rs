use std::fs;

use cantle::agent::InputOptions;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::super::changes::Change;
use super::super::review;
use super::*;

/// Returns the copy of a directory with two links of a file, both of which a run has changed.
fn changed() -> (TempDir, WorkingCopy, Changes) {
    let directory = tempfile::tempdir().unwrap();
    let origin = directory.path().join("origin");
    fs::create_dir(&origin).unwrap();
    fs::write(origin.join("a"), "old").unwrap();
    fs::hard_link(origin.join("a"), origin.join("b")).unwrap();
    let options = InputOptions::default();
    let copy = WorkingCopy::new(&origin, directory.path(), &options).unwrap();
    copy.take(&options, &CancellationToken::new()).unwrap();
    fs::create_dir(copy.new_files()).unwrap();
    let change = |name: &str| {
        let new = copy.content(Tree::New, name);
        fs::write(&new, "new").unwrap();
        let version = |path: &Path| Version::of(File::open(path).unwrap()).unwrap();
        Change {
            path: name.to_owned(),
            old: Some(version(&origin.join(name))),
            new: Some(version(&new)),
        }
    };
    let changes = Changes {
        files: ["a", "b"].map(change).into(),
        ..Changes::default()
    };
    (directory, copy, changes)
}

/// Returns names and contents of the user's files.
fn files(copy: &WorkingCopy) -> Vec<(String, String)> {
    let entries = fs::read_dir(&copy.origin).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn both(content: &str) -> Vec<(String, String)> {
    ["a", "b"]
        .map(|name| (name.to_owned(), content.to_owned()))
        .into()
}

#[test]
fn links_of_a_file_are_changed_and_restored() {
    let (_directory, copy, mut changes) = changed();
    assert_eq!(copy.apply(&mut changes, &BTreeSet::new()).unwrap(), 2);
    assert_eq!(files(&copy), both("new"));
    assert_eq!(copy.revert(&mut changes).unwrap(), 2);
    assert_eq!(files(&copy), both("old"));
}

#[test]
fn nothing_is_left_if_the_state_cannot_be_kept() {
    let (_directory, copy, mut changes) = changed();
    // No file can take its place.
    fs::create_dir(copy.directory.join("changes.json")).unwrap();
    let error = copy.apply(&mut changes, &BTreeSet::new()).unwrap_err();
    assert!(
        error.to_string().starts_with("nothing was written"),
        "{error}"
    );
    assert_eq!(files(&copy), both("old"));
}

#[test]
fn other_contents_than_recorded_are_not_applied() {
    let (_directory, copy, mut changes) = changed();
    fs::write(copy.content(Tree::New, "b"), "of a later comparison").unwrap();
    let error = copy.apply(&mut changes, &BTreeSet::new()).unwrap_err();
    assert!(
        format!("{error:#}").contains("another content"),
        "{error:#}"
    );
    assert_eq!(files(&copy), both("old"));
}

#[test]
fn directories_above_missing_ones_are_removed_if_they_are_empty() {
    let origin = tempfile::tempdir().unwrap();
    fs::create_dir_all(origin.path().join("kept/new/directory")).unwrap();
    fs::write(origin.path().join("kept/file"), "").unwrap();
    let root = open(origin.path(), DIRECTORY, Mode::empty()).unwrap();
    remove_empty_directories(&root, "kept/new/directory/missing/file", |_| true);
    assert!(origin.path().join("kept/file").exists());
    assert!(!origin.path().join("kept/new").exists());
}

/// Returns the copy of a directory with an empty subdirectory, and changes with new files there and in other directories.
fn with_new_files() -> (TempDir, WorkingCopy, Changes) {
    let (directory, copy, mut changes) = changed();
    fs::create_dir(copy.origin.join("empty")).unwrap();
    for name in ["empty/new", "fresh/deep/new"] {
        let new = copy.content(Tree::New, name);
        fs::create_dir_all(new.parent().unwrap()).unwrap();
        fs::write(&new, "new").unwrap();
        changes.files.push(Change {
            path: name.to_owned(),
            old: None,
            new: Some(Version::of(File::open(&new).unwrap()).unwrap()),
        });
    }
    (directory, copy, changes)
}

#[track_caller]
fn assert_only_created_directories_are_gone(copy: &WorkingCopy) {
    assert!(copy.origin.join("empty").exists());
    assert!(!copy.origin.join("fresh").exists());
}

#[test]
fn empty_directory_of_the_user_stays_if_changes_are_reverted() {
    let (_directory, copy, mut changes) = with_new_files();
    assert_eq!(copy.apply(&mut changes, &BTreeSet::new()).unwrap(), 4);
    assert!(copy.origin.join("fresh/deep/new").exists());
    assert_eq!(copy.revert(&mut changes).unwrap(), 4);
    assert_only_created_directories_are_gone(&copy);
}

#[test]
fn files_of_the_user_stay_if_changes_that_are_not_applied_are_reverted() {
    let (_directory, copy, mut changes) = with_new_files();
    let own = copy.origin.join("empty/new");
    fs::write(&own, "new").unwrap();
    for status in [Status::Pending, Status::Rejected, Status::Reverted] {
        changes.status = status;
        let text = review::revert(&copy, &mut changes).unwrap();
        assert_eq!(text, "Nothing was reverted: no changes are applied.\n");
        assert_eq!(changes.status, status);
        assert!(own.exists());
    }
}

#[test]
fn empty_directory_of_the_user_stays_if_changes_cannot_be_applied() {
    let (_directory, copy, mut changes) = with_new_files();
    fs::write(copy.content(Tree::New, "fresh/deep/new"), "of another run").unwrap();
    copy.apply(&mut changes, &BTreeSet::new()).unwrap_err();
    assert_only_created_directories_are_gone(&copy);
}

#[test]
fn empty_directory_of_the_user_stays_after_a_crash() {
    let (_directory, copy, mut changes) = with_new_files();
    fs::create_dir_all(copy.origin.join("fresh/deep")).unwrap();
    changes.created = ["fresh", "fresh/deep"].map(str::to_owned).into();
    for (number, change) in changes.files.iter().enumerate().skip(2) {
        let place = copy.origin.join(&change.path);
        fs::write(place.with_file_name(copy.temporary(number)), "").unwrap();
    }
    copy.sweep(&changes);
    assert_only_created_directories_are_gone(&copy);
    assert_eq!(fs::read_dir(copy.origin.join("empty")).unwrap().count(), 0);
}
