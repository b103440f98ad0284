//! Runs every target over its corpus.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cantle_fuzz::TARGETS;

/// The input that a target is parsing.
static INPUT: Mutex<PathBuf> = Mutex::new(PathBuf::new());

#[test]
fn targets_hold_over_their_corpora() {
    // A panic in a task of the server or a client fails, too.
    std::panic::set_hook(Box::new(|info| {
        let input = INPUT.lock().map(|input| input.display().to_string());
        // Not the test's own output, which ends with the process.
        let _ = writeln!(std::io::stderr(), "{input:?}: {info}");
        std::process::abort();
    }));
    for target in TARGETS {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora");
        let files = fs::read_dir(corpora.join(target.name)).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        assert_ne!(files, [""; 0].map(PathBuf::from), "{}", target.name);
        for file in files {
            let data = fs::read(&file).unwrap();
            *INPUT.lock().unwrap() = file;
            (target.run)(&data);
        }
    }
}
