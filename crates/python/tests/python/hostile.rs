//! Bad input, in contexts and in one-shot runs: a clear result, and never a hang.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::Policy;
use cantle_core::sandbox::{SandboxExt as _, SandboxPath, SpawnRequest};
use cantle_python::{ExecutionOutcome, PythonSession};
use tokio::time::timeout;

use crate::interpreter;

/// Executes code both ways.
async fn outcomes(session: &PythonSession, code: &str) -> [ExecutionOutcome; 2] {
    let run = session.run(code).await.expect("the sandbox works");
    let execution = session
        .execute("main", code)
        .await
        .expect("the sandbox works");
    assert!(
        run.exit.is_some() || run.outcome == ExecutionOutcome::Refused,
        "{run:?}"
    );
    [run.outcome, execution.outcome]
}

async fn open(timeout_s: u64, policy: Policy) -> PythonSession {
    let interpreter = interpreter()
        .timeout(Duration::from_secs(timeout_s))
        .policy(policy);
    interpreter.open().await.expect("the sandbox opens")
}

#[tokio::test]
async fn code_that_is_no_program_has_a_clear_result() {
    let session = open(60, Policy::workspace()).await;
    let nested = "(".repeat(20_000) + &")".repeat(20_000);
    let large = format!("x = '{}'", "x".repeat(10_000_000));
    for (code, outcome) in [
        ("x = 'a\0b'", ExecutionOutcome::Raised),
        (&nested, ExecutionOutcome::Raised),
        (&large, ExecutionOutcome::Completed),
        ("def", ExecutionOutcome::Raised),
    ] {
        assert_eq!(outcomes(&session, code).await, [outcome; 2]);
        // The static tier.
        let checked = interpreter().check(code);
        assert_eq!(checked.outcome, ExecutionOutcome::Refused);
    }
    for code in [
        "",
        "\n",
        "# nothing",
        "\u{feff}x = 1",
        "x = 1\r\nif x:\r\n  x = 2\r\n",
    ] {
        assert_eq!(
            outcomes(&session, code).await,
            [ExecutionOutcome::Completed; 2],
            "{code:?}"
        );
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn time_limit_beyond_the_clock_is_none() {
    let interpreter = interpreter().timeout(Duration::MAX);
    let session = interpreter.open().await.unwrap();
    let code = "import time\ntime.sleep(0.1)";
    assert_eq!(
        outcomes(&session, code).await,
        [ExecutionOutcome::Completed; 2]
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn what_never_ends_is_stopped_at_the_time_limit() {
    let session = open(1, Policy::workspace()).await;
    let code = "import sys\nwhile True: sys.stdout.write('x' * 100_000)";
    assert_eq!(
        outcomes(&session, code).await,
        [ExecutionOutcome::TimedOut; 2]
    );
    let code = "while True: display(1)";
    let displayed = session.execute("main", code).await.unwrap();
    assert_eq!(
        (displayed.outcome, displayed.results.len()),
        (ExecutionOutcome::TimedOut, 100)
    );
    let stopped = "import signal, os\nos.kill(os.getpid(), signal.SIGSTOP)";
    let stopped = session.execute("main", stopped).await.unwrap();
    assert_eq!(stopped.outcome, ExecutionOutcome::TimedOut);
    session.close().await.unwrap();
}

#[tokio::test]
async fn code_that_ends_its_process_or_shares_its_pipes_does_not_hang() {
    use ExecutionOutcome::{Completed, Killed, Raised};
    let session = open(30, Policy::workspace()).await;
    for (code, expected) in [
        ("import os\nos._exit(0)", [Completed, Killed]),
        ("import os\nos._exit(3)", [Raised, Killed]),
        ("import os\nos.kill(os.getpid(), 9)", [Killed; 2]),
        ("import os\nos.kill(0, 9)", [Killed; 2]),
        ("import os\nos.close(1); os.close(2)", [Completed; 2]),
        ("import sys\nsys.stdout.close()", [Completed; 2]),
        (
            "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nNone",
            [Completed; 2],
        ),
        (
            "import os, time\nif os.fork() == 0:\n  os.setsid(); time.sleep(1000)",
            [Completed; 2],
        ),
    ] {
        assert_eq!(outcomes(&session, code).await, expected, "{code}");
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_call() {
    let mut policy = Policy::workspace();
    policy.limits.processes = Some(30);
    let session = open(3, policy).await;
    let bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let bombed = [ExecutionOutcome::TimedOut; 2];
    assert_eq!(outcomes(&session, bomb).await, bombed);
    // Nothing of it is left but what nothing waited for.
    let count = "import os, time
def stat(id):
    try: return open(f'/proc/{id}/stat').read()
    except OSError: return ') Z'
deadline = time.monotonic() + 30
while True:
    stats = [stat(it) for it in os.listdir('/proc') if it.isdigit()]
    alive = [it for it in stats if it.rpartition(') ')[2][0] != 'Z']
    if len(alive) < 10 or time.monotonic() > deadline: break
    time.sleep(0.05)
print(len(alive) < 10 or alive)";
    // It has more time than the bomb.
    let patient = interpreter().attach(Arc::clone(session.sandbox()));
    let counted = patient.run(count).await.unwrap();
    assert_eq!(counted.stdout.text(), "True\n", "{counted:?}");
    let next = session.execute("main", "'works'").await.unwrap();
    assert!(next.success(), "{next:?}");
    let refused = session.execute("main", "import os\nwhile True: os.fork()");
    let refused = refused.await.unwrap();
    assert!(!refused.success(), "{refused:?}");
    session.close().await.unwrap();
}

#[tokio::test]
async fn memory_beyond_the_limit_is_explained() {
    let mut policy = Policy::workspace();
    policy.limits.memory_bytes = Some(200 << 20);
    let session = open(60, policy).await;
    let code = "x = bytearray(50 << 20)\nblocks = [bytearray(10 << 20) for _ in range(100)]";
    let executed = session.execute("main", code).await.unwrap();
    let is_named = executed
        .error
        .as_ref()
        .is_some_and(|it| it.name == "MemoryError");
    assert!(
        is_named || executed.notes.concat().contains("memory"),
        "{executed:?}"
    );
    let next = session.execute("main", "'works'").await.unwrap();
    assert_eq!(
        next.results.first().and_then(|it| it.text()),
        Some("'works'"),
        "{executed:?} {next:?}"
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn closed_streams_and_lost_pipes_do_not_hang() {
    let session = open(20, Policy::workspace()).await;
    for code in [
        "import sys\nsys.stdout.close()\nsys.stderr.close()",
        "import os\nos.close(0); os.close(1); os.close(2)",
        "import os, sys\nif os.fork() == 0:\n  import time; time.sleep(60)",
        "import sys\nsys.setrecursionlimit(50)",
        "import builtins\nbuiltins.print = builtins.repr = builtins.len = None",
        "class Bad:\n  def __repr__(self): raise SystemExit(3)\n  __str__ = __repr__\nraise Exception(Bad())",
        "import sys\nsys.meta_path.clear(); sys.modules.clear()",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1,)).start()",
    ] {
        let executed = session.execute("main", code).await.unwrap();
        assert_ne!(
            executed.outcome,
            ExecutionOutcome::TimedOut,
            "{code}: {executed:?}"
        );
        session.restart("main").await;
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn code_that_raises_unprintable_errors_keeps_the_interpreter() {
    let session = open(20, Policy::workspace()).await;
    let bad = "class Bad(Exception):\n  def __str__(self): raise ValueError\n  def __repr__(self): raise KeyboardInterrupt\nkept = 1\nraise Bad()";
    let raised = session.execute("main", bad).await.unwrap();
    assert_eq!(raised.outcome, ExecutionOutcome::Raised, "{raised:?}");
    assert_eq!(raised.error.map(|it| it.name).as_deref(), Some("Bad"));
    let next = session.execute("main", "kept").await.unwrap();
    assert_eq!(
        next.results.first().and_then(|it| it.text()),
        Some("1"),
        "{next:?}"
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn process_without_the_functions_of_the_code_is_explained() {
    let session = open(60, Policy::workspace()).await;
    let code = "import multiprocessing\ndef work(): pass\n\
                process = multiprocessing.get_context('spawn').Process(target=work)\n\
                process.start(); process.join()";
    let run = session.run(code).await.unwrap();
    let executed = session.execute("main", code).await.unwrap();
    for execution in [run, executed] {
        let notes = execution.notes.concat();
        assert!(notes.contains("get_context(\"fork\")"), "{execution:?}");
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn program_that_is_no_kernel_does_not_hang() {
    let session = open(20, Policy::workspace()).await;
    let sandbox = session.sandbox();
    let script = "#!/bin/sh\ncase $2 in\n*cantle-python*) printf 'cantle-python 3.11.0' ;;\n\
                  *) head -c 20000000 /dev/zero; exec sleep 1000 ;;\nesac\n";
    let path = SandboxPath::new("python").unwrap();
    sandbox.write_bytes(&path, script.into()).await.unwrap();
    let chmod = SpawnRequest::argv(["chmod", "+x", "python"]);
    assert!(sandbox.run(chmod).await.unwrap().exit.status.success());
    let program = sandbox.info().working_directory.join("python").unwrap();
    let fake = interpreter().python(program.to_string());
    let fake = fake.attach(Arc::clone(sandbox));
    let executed = timeout(Duration::from_secs(60), fake.execute("main", "1")).await;
    let executed = executed.expect("it ends").unwrap();
    assert_eq!(
        executed.outcome,
        ExecutionOutcome::SetupFailed,
        "{executed:?}"
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn names_of_forged_formats_count_as_memory() {
    let session = open(60, Policy::workspace()).await;
    // Past the parent, which accepts only known names.
    let code = r#"import os
try:
  with open(f'/proc/{os.getppid()}/fd/1', 'wb', 0) as protocol:
    for _ in range(5):
      protocol.write(b'{"type":"result","id":1,"data":{"' + b'x' * (11 << 20) + b'":0}}\n')
except OSError: pass"#;
    let executed = session.execute("main", code).await.unwrap();
    assert!(executed.results.len() <= 2, "{}", executed.results.len());
    session.close().await.unwrap();
}
