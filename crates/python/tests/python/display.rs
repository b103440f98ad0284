//! Values, figures and errors that are shown as IPython shows them, or that resist being shown.

use std::time::{Duration, Instant};

use cantle_core::sandbox::{Channel, SandboxExt as _, SandboxPath};
use cantle_python::ExecutionOutcome;
use tokio_util::sync::CancellationToken;

use crate::kernel::{MATPLOTLIB, execute, texts};
use crate::{interpreter, session, without_carets};

#[tokio::test]
async fn a_semicolon_hides_the_value_of_the_last_expression() {
    let session = session().await;
    for (code, shown) in [
        ("x = 5\nx;", None),
        ("(\n  'é'  \n) ;  # quiet", None),
        ("'a'; 'b'", Some("'b'")),
        ("';'", Some("';'")),
        ("x  # no end;", Some("5")),
        ("x\r\n", Some("5")),
    ] {
        let execution = execute(&session, code).await;
        let expected: Vec<_> = shown.into_iter().collect();
        assert_eq!(texts(&execution), expected, "{code}");
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn objects_with_any_attribute_are_text() {
    let session = session().await;
    let code = r#"
from unittest.mock import MagicMock
class Mock(MagicMock):
  def __repr__(self): return 'mock'
class Broken:
  def __getattr__(self, name): raise RuntimeError(name)
  def __repr__(self): return 'broken'
class Bundle:
  def _repr_mimebundle_(self, include, exclude): return {'text/html': '<b>'}
  def __repr__(self): return 'bundle'
display(Mock(), Broken(), Bundle())"#;
    let execution = execute(&session, code).await;
    let expected = [
        serde_json::json!({"text": "mock"}),
        serde_json::json!({"text": "broken"}),
        serde_json::json!({"text": "bundle", "html": "<b>"}),
    ];
    let formats = execution
        .results
        .iter()
        .map(|it| serde_json::json!(it.formats));
    assert_eq!(formats.collect::<Vec<_>>(), expected, "{execution:?}");
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_table_with_equal_columns_is_shown_without_a_warning() {
    let session = session().await;
    let code = "import warnings\nclass DataFrame:\n  def to_dict(self, orient):\n    warnings.warn('columns are not unique')\n    \
                return {'a': [1]}\n  def __repr__(self): return 'table'\nDataFrame()";
    let execution = execute(&session, code).await;
    let data = execution.results[0].formats.get("data");
    assert_eq!(data, Some(&serde_json::json!({"a": [1]})));
    assert_eq!(execution.stderr.text(), "");
    session.close().await.unwrap();
}

#[tokio::test]
async fn figures_of_a_stopped_call_are_its_results() {
    let session = interpreter().timeout(Duration::from_secs(3));
    let session = session.open().await.unwrap();
    session.run(MATPLOTLIB).await.unwrap();
    let derived = "import matplotlib.pyplot as plt\nfrom matplotlib.figure import Figure\nclass Derived(Figure): pass\n\
                   plt.opened[1] = Derived()\nwhile True: pass";
    let stopped = execute(&session, derived).await;
    assert_eq!(stopped.outcome, ExecutionOutcome::TimedOut, "{stopped:?}");
    let shown = stopped
        .results
        .iter()
        .map(|it| it.formats.get("png").cloned());
    assert_eq!(shown.collect::<Vec<_>>(), [Some("ZmlndXJl".into())]);
    assert_eq!(execute(&session, "None").await.results, []);
    // What takes too long to draw costs no variables.
    let slow = "import time\nplt.figure(1)\nFigure.savefig = lambda *_, **__: time.sleep(60)\nkept = 5\nwhile True: pass";
    let stopped = execute(&session, slow).await;
    assert_eq!(stopped.outcome, ExecutionOutcome::TimedOut, "{stopped:?}");
    assert_eq!(texts(&execute(&session, "kept").await), ["5"]);
    let failed = execute(&session, "plt.figure(2).savefig = None\n1 / 0").await;
    assert_eq!(failed.error.unwrap().name, "ZeroDivisionError");
    session.close().await.unwrap();
}

#[tokio::test]
async fn tasks_start_in_the_event_loop_of_the_line_that_awaits_them() {
    let session = session().await;
    let code = "import asyncio\nasync def seven(): return 7\ntask = asyncio.create_task(seven())\nawait task";
    let execution = execute(&session, code).await;
    assert_eq!(texts(&execution), ["7"], "{execution:?}");
    // Code that awaits nothing can run a loop of its own.
    let own = execute(&session, "asyncio.run(seven())").await;
    assert_eq!(texts(&own), ["7"], "{own:?}");
    session.close().await.unwrap();
}

#[tokio::test]
async fn an_interrupt_names_the_line_that_waited() {
    let session = session().await;
    let cancellation = CancellationToken::new();
    let token = cancellation.clone();
    let mut observer = |_: Channel, _: &bytes::Bytes| token.cancel();
    let code = "import asyncio\nasyncio.get_running_loop().call_soon(print, 'waits')\nawait asyncio.sleep(60)";
    let execution = session.execute_with_observer("main", code, cancellation, &mut observer);
    let execution = execution.await.unwrap();
    assert_eq!(execution.outcome, ExecutionOutcome::Cancelled);
    let error = execution.error.unwrap();
    assert_eq!(error.name, "KeyboardInterrupt");
    let line = "File \"<cell 1>\", line 3, in <module>\n    await asyncio.sleep(60)\n";
    assert!(error.traceback.contains(line), "{}", error.traceback);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_forked_process_ends_as_a_script_does() {
    let session = session().await;
    let code = r"import os, sys
for number in range(4):
  pid = os.fork()
  if pid == 0:
    display('no result')
    break
  print(os.waitpid(pid, 0)[1] >> 8)
if pid == 0:
  if number == 0: sys.exit()
  if number == 1: sys.exit(3)
  if number == 2: sys.exit('text')
  1 / 0";
    let execution = execute(&session, code).await;
    assert_eq!(execution.stdout.text(), "0\n3\n1\n1\n", "{execution:?}");
    let errors = "text\nTraceback (most recent call last):\n  File \"<cell 1>\", line 12, in <module>\n    1 / 0\n\
                  ZeroDivisionError: division by zero\n";
    assert_eq!(without_carets(&execution.stderr.text()), errors);
    assert!(
        texts(&execution).is_empty() && execution.success(),
        "{execution:?}"
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn signal_handlers_of_an_earlier_call_do_not_end_the_interpreter() {
    let session = session().await;
    let code = "import signal\ndef ring(*_):\n  open('rang', 'w').close()\n  raise TimeoutError\n\
                signal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 1)\nkept = 5";
    assert!(execute(&session, code).await.success());
    let file = SandboxPath::new("rang").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !session.sandbox().is_file(&file).await.unwrap() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let next = execute(&session, "kept").await;
    assert_eq!((texts(&next), next.notes.len()), (vec!["5"], 0));
    session.close().await.unwrap();
}

#[tokio::test]
async fn an_error_without_text_keeps_the_variables() {
    let session = session().await;
    let code =
        "class Bad(Exception):\n  def __str__(self): raise SystemExit(3)\nkept = 5\nraise Bad";
    let raised = execute(&session, code).await;
    assert_eq!(raised.error.map(|it| it.name).as_deref(), Some("Bad"));
    assert_eq!(texts(&execute(&session, "kept").await), ["5"]);
    // A part of a line is output, too, after the stream was replaced.
    let replaced = "import io, sys\nprint('part', end='')\nsys.stdout = io.StringIO()";
    assert_eq!(execute(&session, replaced).await.stdout.text(), "part");
    let closed = "sys.stdout = sys.__stdout__\nsys.stdout.close()";
    assert!(execute(&session, closed).await.success());
    let next = execute(&session, "print('next')").await;
    assert_eq!(next.stdout.text(), "next\n", "{next:?}");
    session.close().await.unwrap();
}
