//! One-shot runs, the static tier, artifacts and the search for a Python.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{
    ArtifactLimits, Backend as _, ExitStatus, MemorySink, SandboxContext, SandboxExt as _,
};
use cantle_python::{Execution, ExecutionOutcome, one_shot};
use cantle_testkit::lane::skip;

use crate::{interpreter, without_carets};

#[tokio::test]
async fn code_is_checked_without_running() {
    let python = interpreter().allowed_imports(["math"]);
    assert_eq!(
        python.check("import math").outcome,
        ExecutionOutcome::NotExecuted
    );
    let refused = python.check("import math\nimport os\n");
    assert_eq!(refused.outcome, ExecutionOutcome::Refused);
    let note = "Imports that are not allowed: `os` (line 2). Allowed are math.";
    assert_eq!(refused.notes, [note]);
    let refused = python.run("x = (").await.unwrap();
    assert_eq!(refused.outcome, ExecutionOutcome::Refused);
    assert_eq!(
        refused.notes,
        ["Syntax error: '(' was never closed (line 1, column 5)."]
    );
}

#[tokio::test]
async fn a_run_has_both_streams_and_its_exit() {
    let session = interpreter().open().await.unwrap();
    let run = session.run("from __future__ import annotations\nimport sys\nprint('  out')\nprint('err', file=sys.stderr)\nsys.exit(3)");
    let run = run.await.unwrap();
    assert_eq!(run.outcome, ExecutionOutcome::Raised);
    assert_eq!(run.exit, Some(ExitStatus::Code(3)));
    assert_eq!(
        (run.stdout.text(), run.stderr.text()),
        ("  out\n".into(), "err\n".into())
    );
    assert!(
        run.enforcement
            .iter()
            .any(|it| it.field == PolicyField::Network)
    );

    let run = session.run("def f():\n    1 / 0\nf()").await.unwrap();
    let traceback = "Traceback (most recent call last):\n  File \"<script>\", line 3, in <module>\n    f()\n  \
                     File \"<script>\", line 2, in f\n    1 / 0\nZeroDivisionError: division by zero\n";
    assert_eq!(without_carets(&run.stderr.text()), traceback);
    if run.stderr.text().contains('^') {
        assert!(
            run.stderr.text().contains("\n    1 / 0\n    ~~^~~\n"),
            "{run:?}"
        );
    }

    let nested = "def f():\n    exec('def g():\\n  raise KeyError(1)\\ng()')\ntry:\n    f()\n\
                  except KeyError as error:\n    raise ValueError(2) from error";
    let run = session.run(nested).await.unwrap();
    let traceback = "Traceback (most recent call last):\n  File \"<script>\", line 4, in <module>\n    f()\n  \
                     File \"<script>\", line 2, in f\n    exec('def g():\\n  raise KeyError(1)\\ng()')\n  \
                     File \"<string>\", line 3, in <module>\n  File \"<string>\", line 2, in g\nKeyError: 1\n\n\
                     The above exception was the direct cause of the following exception:\n\n\
                     Traceback (most recent call last):\n  File \"<script>\", line 6, in <module>\n    \
                     raise ValueError(2) from error\nValueError: 2\n";
    assert_eq!(without_carets(&run.stderr.text()), traceback);
    let run = session.run("return 1").await.unwrap();
    assert!(
        run.stderr.text().contains("\"<script>\", line 1"),
        "{run:?}"
    );

    let run = session
        .run("import sys; sys.stdout.buffer.write(b'\\xff'); input()")
        .await
        .unwrap();
    assert_eq!(run.stdout.head.as_ref(), b"\xff");
    assert!(
        run.stderr
            .text()
            .ends_with("EOFError: EOF when reading a line\n")
    );
    let run = session
        .run("import os; os.kill(os.getpid(), 9)")
        .await
        .unwrap();
    assert_eq!(run.outcome, ExecutionOutcome::Killed);
    session.close().await.unwrap();
}

#[tokio::test]
async fn output_is_kept_at_the_time_limit() {
    // It includes the start of Python.
    let python = interpreter().timeout(Duration::from_secs(3));
    let code = "import time; print('so far', flush=True)\ntime.sleep(600)";
    let run = python.run(code).await.unwrap();
    assert_eq!(run.outcome, ExecutionOutcome::TimedOut);
    assert_eq!(run.stdout.text(), "so far\n");
}

#[tokio::test]
async fn a_limit_of_the_policy_ends_the_code_and_output_is_kept() {
    let mut policy = Policy::workspace();
    policy.limits.disk_bytes = Some(10 << 20);
    // Where it is measured; the kernel's limit is an error of the code.
    let backend = LocalBackend::new().without(Mechanism::DiskImages);
    let code = "print('so far', flush=True)\nimport time\nfile = open('large', 'wb', 0)\n\
                for _ in range(1000):\n  file.write(bytes(1 << 20))\n  time.sleep(0.01)";
    for one_shot in [true, false] {
        let context = SandboxContext::new(RunId::new(), policy.clone()).durable();
        let session = interpreter().attach(backend.open(context).await.unwrap());
        let run = match one_shot {
            true => session.run(code).await.unwrap(),
            false => session.execute("main", code).await.unwrap(),
        };
        assert_eq!(run.outcome, ExecutionOutcome::LimitReached, "{run:?}");
        assert_eq!(run.stdout.text(), "so far\n");
        session.close().await.unwrap();
    }
}

#[tokio::test]
async fn artifacts_are_what_a_call_changed() {
    let sink = Arc::new(MemorySink::default());
    let python = interpreter().artifacts(ArtifactLimits::default(), Arc::clone(&sink));
    let session = python.open().await.unwrap();
    let code = "open('old.txt', 'w').write('x'); import os; os.makedirs('a/b')";
    session.run(code).await.unwrap();
    assert_eq!(
        sink.take(),
        [("old.txt".parse().unwrap(), "x".into())].into()
    );
    let code = "open('a/b/t.csv', 'w').write('1,2\\n'); raise ValueError('later')";
    for one_shot in [true, false] {
        let run = match one_shot {
            true => session.run(code).await.unwrap(),
            false => session.execute("main", code).await.unwrap(),
        };
        assert_eq!(run.outcome, ExecutionOutcome::Raised);
        let files = run.artifacts.files.iter();
        let files: Vec<_> = files
            .map(|it| (it.path.to_string(), it.size_bytes, it.media_type.as_deref()))
            .collect();
        assert_eq!(files, [("a/b/t.csv".to_owned(), 4, Some("text/csv"))]);
        let stored = [("a/b/t.csv".parse().unwrap(), "1,2\n".into())];
        assert_eq!(sink.take(), stored.into());
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn what_changes_between_two_calls_is_an_artifact_of_the_second() {
    let sink = Arc::new(MemorySink::default());
    let python = interpreter().artifacts(ArtifactLimits::default(), Arc::clone(&sink));
    let session = python.open().await.unwrap();
    let write = async |name: &str| {
        let path = name.parse().unwrap();
        let written = session.sandbox().write_bytes(&path, "x".into());
        written.await.unwrap();
    };
    write("before.txt").await;
    session.run("1").await.unwrap();
    assert!(sink.take().is_empty());
    write("between.txt").await;
    session.run("1").await.unwrap();
    let stored = [("between.txt".parse().unwrap(), "x".into())];
    assert_eq!(sink.take(), stored.into());
    session.close().await.unwrap();
}

#[tokio::test]
async fn artifacts_are_listed_also_after_a_timeout_and_a_death() {
    let python = interpreter().artifacts(ArtifactLimits::default(), ());
    let session = python.timeout(Duration::from_secs(3)).open().await.unwrap();
    session
        .run("open('before.txt', 'w').write('x')")
        .await
        .unwrap();
    let endless = "import os, time\nopen('late.txt', 'w').write('x'); os.symlink('/etc', 'etc')\ntime.sleep(600)";
    let killed = "import os\nopen('last.txt', 'w').write('x'); os.kill(os.getpid(), 9)";
    let names = |run: &Execution| {
        let files = run.artifacts.files.iter();
        files.map(|it| it.path.to_string()).collect::<Vec<_>>()
    };
    let late = session.run(endless).await.unwrap();
    assert_eq!(
        (late.outcome, names(&late)),
        (ExecutionOutcome::TimedOut, vec!["late.txt".to_owned()])
    );
    let last = session.execute("main", killed).await.unwrap();
    assert_eq!(
        (last.outcome, names(&last)),
        (ExecutionOutcome::Killed, vec!["last.txt".to_owned()])
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_python_that_was_missing_is_looked_for_again() {
    let place = tempfile::tempdir().unwrap();
    let python = place.path().join("python");
    let unconfined = interpreter().policy(Policy::unconfined());
    let session = unconfined.python(python.to_str().unwrap()).open().await;
    let session = session.unwrap();
    let missing = session.execute("main", "1").await.unwrap();
    assert_eq!(missing.outcome, ExecutionOutcome::SetupFailed);
    std::os::unix::fs::symlink("/usr/bin/python3", &python).unwrap();
    let found = session.execute("main", "1").await.unwrap();
    assert_eq!(found.outcome, ExecutionOutcome::Completed, "{found:?}");
    session.close().await.unwrap();
}

#[tokio::test]
async fn an_unusable_python_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let old = place.path().join("old-python");
    fs::write(&old, "#!/bin/sh\nprintf 'cantle-python 3.8.18'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    let explain = async |python: &str, policy: Policy| {
        let interpreter = interpreter().python(python).policy(policy);
        let run = interpreter.run("1").await.unwrap();
        assert_eq!(run.outcome, ExecutionOutcome::SetupFailed);
        let session = interpreter.open().await.unwrap();
        let executed = session.execute("main", "1").await.unwrap();
        session.close().await.unwrap();
        assert_eq!(
            (executed.outcome, &executed.notes),
            (run.outcome, &run.notes)
        );
        run.notes.concat()
    };
    let missing = explain("python9", Policy::workspace()).await;
    assert_eq!(missing, "There is no Python `python9` in the sandbox.");

    // A visible shim whose programs are below a private directory, as pyenv's.
    let private = tempfile::tempdir().unwrap();
    let private = private.path().canonicalize().unwrap();
    fs::create_dir_all(private.join("tool/libexec")).unwrap();
    let program = private.join("tool/libexec/tool");
    fs::write(&program, "").unwrap();
    let shim = place.path().join("shim");
    fs::write(
        &shim,
        format!("#!/bin/sh\nexec \"{}\" \"$@\"\n", program.display()),
    )
    .unwrap();
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    let mut policy = Policy::workspace();
    let roots = policy.read_roots.take().unwrap();
    policy.read_roots = Some(roots.with_paths([place.path().to_owned()]));
    let shim = explain(shim.to_str().unwrap(), policy).await;
    let flag = format!("allow `--read {}` and", private.join("tool").display());
    assert!(shim.contains(&flag), "{shim}");

    let old = old.to_str().unwrap();
    let hidden = explain(old, Policy::workspace()).await;
    assert!(hidden.contains("--read "), "{hidden}");
    let mut policy = Policy::workspace();
    let roots = policy.read_roots.take().unwrap();
    policy.read_roots = Some(roots.with_paths([place.path().to_owned()]));
    let found = explain(old, policy).await;
    assert!(
        found.contains("is Python 3.8.18, and at least 3.9 is needed."),
        "{found}"
    );

    // pyenv's own: its programs are hidden with the home directory, and so is what they start.
    let pyenv = std::env::home_dir().unwrap_or_default().join(".pyenv");
    let shim = pyenv.join("shims/python3");
    if !shim.exists() || !pyenv.join("versions/3.8.18/bin/python").exists() {
        return skip("pyenv has no Python 3.8.18");
    }
    let hidden = explain(shim.to_str().unwrap(), Policy::workspace()).await;
    let flag = format!("allow `--read {}` and", pyenv.display());
    assert!(hidden.contains(&flag), "{hidden}");
    let mut policy = Policy::workspace();
    let roots = policy.read_roots.take().unwrap();
    policy.read_roots = Some(roots.with_paths([pyenv.clone()]));
    let old = pyenv.join("versions/3.8.18/bin/python");
    let found = explain(old.to_str().unwrap(), policy).await;
    assert!(
        found.contains("is Python 3.8.18, and at least 3.9 is needed."),
        "{found}"
    );
}

#[tokio::test]
async fn an_error_in_source_that_declares_an_encoding_has_its_lines() {
    let session = interpreter().open().await.unwrap();
    let source: &'static [u8] = b"# coding: latin-1\nprint('\xe9')\n1 / 0";
    let run = session.sandbox().run(one_shot("python3", source)).await;
    let run = run.unwrap();
    let traceback = "Traceback (most recent call last):\n  File \"<script>\", line 3, in <module>\n    1 / 0\n\
                     ZeroDivisionError: division by zero\n";
    assert_eq!(
        (run.stdout.text(), without_carets(&run.stderr.text())),
        ("é\n".to_owned(), traceback.to_owned())
    );
    session.close().await.unwrap();
}
