//! Contexts: variables, results, errors, interrupts and hostile code.

use std::path::PathBuf;
use std::time::Duration;

use cantle_core::policy::Policy;
use cantle_core::sandbox::{Channel, ExitStatus, SandboxExt as _};
use cantle_python::{Execution, ExecutionOutcome, PythonSession, RichResult};
use cantle_testkit::lane::skip;
use tokio_util::sync::CancellationToken;

use crate::{interpreter, other_pythons, session, without_carets};

pub(crate) async fn execute(session: &PythonSession, code: &str) -> Execution {
    session
        .execute("main", code)
        .await
        .expect("the sandbox works")
}

pub(crate) fn texts(execution: &Execution) -> Vec<&str> {
    execution
        .results
        .iter()
        .filter_map(|it| it.text())
        .collect()
}

#[tokio::test]
async fn variables_are_kept_in_each_context() {
    let session = session().await;
    let first = execute(&session, "x = 20\nprint('hello')\nx + 1").await;
    assert_eq!(first.outcome, ExecutionOutcome::Completed, "{first:?}");
    assert_eq!(
        (first.stdout.text(), texts(&first)),
        ("hello\n".into(), vec!["21"])
    );
    assert!(first.results.iter().all(|it| it.is_main));
    assert_eq!(texts(&execute(&session, "_ * x").await), ["420"]);
    assert_eq!(texts(&execute(&session, "x = None; x").await), [""; 0]);
    let other = session.execute("other", "'x' in dir()").await.unwrap();
    assert_eq!(texts(&other), ["False"]);

    session.restart("main").await;
    let lost = execute(&session, "x").await;
    assert_eq!(lost.outcome, ExecutionOutcome::Raised);
    assert_eq!(lost.error.map(|it| it.name).as_deref(), Some("NameError"));
    session.close().await.unwrap();
}

/// Code whose value has one format by an IPython convention, and what the result has beside its text.
const FORMATS: [(&str, &str); 13] = [
    ("_repr_html_", r#"{"html": "<b>é</b>"}"#),
    ("_repr_markdown_", r##"{"markdown": "# é"}"##),
    ("_repr_svg_", r#"{"svg": "<svg/>"}"#),
    ("_repr_png_", r#"{"png": "iVBORw0KGgo="}"#),
    ("_repr_jpeg_", r#"{"jpeg": "/9j/"}"#),
    ("_repr_pdf_", r#"{"pdf": "JVBERi0="}"#),
    ("_repr_latex_", r#"{"latex": "$x^2$"}"#),
    ("_repr_json_", r#"{"json": {"a": [1, null, 0.5]}}"#),
    ("_repr_javascript_", r#"{"javascript": "alert(1)"}"#),
    // What is bytes stays text where the format is text, and text of a format that is bytes is its base64.
    ("text as bytes", r#"{"latex": "$é$"}"#),
    ("bytes as text", r#"{"png": "iVBORw0KGgo="}"#),
    ("with metadata", r#"{"html": "<i>x</i>"}"#),
    (
        "bundle",
        r#"{"html": "<b>x</b>", "json": [1], "jpeg": "/9j/"}"#,
    ),
];

const FORMATS_CODE: &str = r##"
values = {
    "_repr_html_": "<b>é</b>", "_repr_markdown_": "# é", "_repr_svg_": "<svg/>", "_repr_png_": b"\x89PNG\r\n\x1a\n",
    "_repr_jpeg_": b"\xff\xd8\xff", "_repr_pdf_": b"%PDF-", "_repr_latex_": "$x^2$",
    "_repr_json_": {"a": [1, None, 0.5]}, "_repr_javascript_": "alert(1)",
    "text as bytes": ("_repr_latex_", "$é$".encode()), "bytes as text": ("_repr_png_", "iVBORw0KGgo="),
    "with metadata": ("_repr_html_", ("<i>x</i>", {"isolated": True})),
    "bundle": ("_repr_mimebundle_", ({"text/html": "<b>x</b>", "application/json": [1], "image/jpeg": b"\xff\xd8\xff",
                                      "text/plain": "ignored", "application/x-other": "ignored"}, {})),
}
for name, value in values.items():
    method, value = value if type(value) is tuple else (name, value)
    display(type("Rich", (), {method: lambda self, value=value: value, "__repr__": lambda self, name=name: name})())

class DataFrame:
    def to_dict(self, orient): return {"day": ["Mon", "Tue"], "sold": [3, 4], "orient": orient}
    def __repr__(self): return "data"
display(DataFrame())
import sys, types
sys.modules["e2b_charts"] = types.SimpleNamespace(chart_figure_to_dict=lambda figure: {"type": "bar", "elements": []})
Figure = type("Figure", (), {
    "__module__": "matplotlib.figure", "savefig": lambda self, file, **_: file.write(b"\x89PNG"), "__repr__": lambda self: "chart",
})
display(Figure())
"##;

#[tokio::test]
async fn each_format_of_a_result_arrives() {
    let session = session().await;
    let execution = execute(&session, FORMATS_CODE).await;
    assert_eq!(
        execution.outcome,
        ExecutionOutcome::Completed,
        "{execution:?}"
    );
    let more = [
        (
            "data",
            r#"{"data": {"day": ["Mon", "Tue"], "sold": [3, 4], "orient": "list"}}"#,
        ),
        (
            "chart",
            r#"{"png": "iVBORw==", "chart": {"type": "bar", "elements": []}}"#,
        ),
    ];
    let expected = FORMATS.iter().chain(&more).map(|(name, formats)| {
        let mut formats: serde_json::Value = serde_json::from_str(formats).unwrap();
        formats["text"] = (*name).into();
        formats
    });
    let results = execution
        .results
        .iter()
        .map(|it| serde_json::json!(it.formats));
    assert_eq!(results.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    session.close().await.unwrap();
}

#[tokio::test]
async fn results_have_the_formats_of_their_object() {
    let session = session().await;
    let code = "class Rich:\n  def _repr_html_(self): return '<b>x</b>'\n  def _repr_png_(self): return b'png'\n  \
                def _repr_json_(self): return {'a': [1]}\n  def _repr_latex_(self): raise ValueError\n  \
                def __repr__(self): return 'rich'\ndisplay(Rich())\n2";
    let execution = execute(&session, code).await;
    let formats: Vec<_> = execution
        .results
        .iter()
        .map(|it| (it.is_main, serde_json::json!(it.formats)))
        .collect();
    let rich =
        serde_json::json!({"html": "<b>x</b>", "png": "cG5n", "json": {"a": [1]}, "text": "rich"});
    assert_eq!(
        formats,
        [(false, rich), (true, serde_json::json!({"text": "2"}))]
    );

    let awaited = "import asyncio\nasync def f(): return 7\nawait asyncio.sleep(0)\nawait f()";
    assert_eq!(texts(&execute(&session, awaited).await), ["7"]);
    session.close().await.unwrap();
}

#[tokio::test]
async fn values_without_json_keep_their_other_formats() {
    let session = session().await;
    let code = "class DataFrame:\n  size = 2\n  def to_dict(self, orient): return {('price', 'mean'): [1.5], 7: [2]}\n  \
                def __repr__(self): return 'table'\ndisplay(DataFrame())\nDataFrame.size = 1_000_000\ndisplay(DataFrame())\n\
                class Keys:\n  def _repr_json_(self): return {(1, 2): 3}\n  def __repr__(self): return 'keys'\ndisplay(Keys())\n\
                class Long:\n  def _repr_json_(self): return ['x' * 9_000_000]\n  def __repr__(self): return 'long'\nLong()";
    let execution = execute(&session, code).await;
    assert_eq!(
        execution.outcome,
        ExecutionOutcome::Completed,
        "{execution:?}"
    );
    let table =
        serde_json::json!({"data": {"('price', 'mean')": [1.5], "7": [2]}, "text": "table"});
    let texts = ["table", "keys", "long"].map(|text| serde_json::json!({ "text": text }));
    let expected: Vec<_> = std::iter::once(table).chain(texts).collect();
    let formats = execution
        .results
        .iter()
        .map(|it| serde_json::json!(it.formats));
    assert_eq!(formats.collect::<Vec<_>>(), expected);
    session.close().await.unwrap();
}

#[tokio::test]
async fn tracebacks_show_the_users_lines_only() {
    let session = session().await;
    execute(
        &session,
        "import json\ndef load(text):\n    return json.loads(text)",
    )
    .await;
    let failed = execute(&session, "print(1)\nload('{')").await;
    let error = failed.error.unwrap();
    assert_eq!(error.name, "JSONDecodeError");
    let expected = "Traceback (most recent call last):\n  File \"<cell 2>\", line 2, in <module>\n    load('{')\n  \
                    File \"<cell 1>\", line 3, in load\n    return json.loads(text)\n\
                    json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n";
    assert_eq!(without_carets(&error.traceback), expected);
    let refused = execute(&session, "input('name?')").await;
    assert_eq!(refused.error.unwrap().name, "EOFError");
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_file_that_takes_only_a_part_of_the_output_is_named() {
    let unconfined = interpreter().policy(Policy::unconfined());
    let session = unconfined.open().await.unwrap();
    let code = "import os, resource\nparent, size = os.getppid(), resource.RLIMIT_FSIZE\n\
                resource.prlimit(parent, size, (50_000, resource.getrlimit(size)[1]))\n\
                print('x' * 200_000)";
    let printed = execute(&session, code).await;
    let file = printed.stdout_file.unwrap();
    let kept = session.sandbox().read_bytes(&file.path, 1 << 20).await;
    assert_eq!((file.size_bytes, kept.unwrap().len()), (50_000, 50_000));
    session.close().await.unwrap();
}

#[tokio::test]
async fn every_supported_python_works() {
    let pythons = other_pythons();
    if pythons.is_empty() {
        return skip("no Python but the system's; pyenv has others");
    }
    for python in pythons {
        let mut policy = Policy::workspace();
        let root = python.ancestors().nth(2).unwrap().to_owned();
        policy.read_roots = Some(policy.read_roots.take().unwrap().with_paths([root]));
        let interpreter = interpreter()
            .python(python.to_str().unwrap())
            .policy(policy);
        let session = interpreter.open().await.unwrap();
        let first = execute(&session, "import asyncio\nasync def f(): return 7\nx = await f()\ndisplay(x)\nprint('out')\nx + 1").await;
        assert_eq!(
            (texts(&first), first.stdout.text()),
            (vec!["7", "8"], "out\n".into()),
            "{first:?}"
        );
        let failed = execute(&session, "x / 0").await.error.unwrap();
        let traceback = "Traceback (most recent call last):\n  File \"<cell 2>\", line 1, in <module>\n    x / 0\n\
                         ZeroDivisionError: division by zero\n";
        assert_eq!(without_carets(&failed.traceback), traceback);
        let died = execute(&session, "import os; os._exit(3)").await;
        assert_eq!(died.exit, Some(ExitStatus::Code(3)));
        let run = session.run("x = 1\nx / 0").await.unwrap();
        assert!(
            run.stderr
                .text()
                .contains("line 2, in <module>\n    x / 0\n"),
            "{run:?}"
        );
        session.close().await.unwrap();
    }
}

#[tokio::test]
async fn output_is_streamed_and_a_call_can_be_interrupted() {
    let session = session().await;
    execute(&session, "kept = 5").await;
    let cancellation = CancellationToken::new();
    let token = cancellation.clone();
    let mut seen = Vec::new();
    let mut observer = |channel: Channel, bytes: &bytes::Bytes| {
        seen.push((channel, bytes.clone()));
        token.cancel();
    };
    let code = "print('started')\nwhile True: pass";
    let execution = session.execute_with_observer("main", code, cancellation, &mut observer);
    let execution = execution.await.unwrap();
    assert_eq!(execution.outcome, ExecutionOutcome::Cancelled);
    assert_eq!(execution.stdout.text(), "started\n");
    assert_eq!(execution.error.unwrap().name, "KeyboardInterrupt");
    assert_eq!(seen, [(Channel::Stdout, "started\n".into())]);
    assert_eq!(texts(&execute(&session, "kept").await), ["5"]);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_time_limit_keeps_output_and_kills_what_ignores_it() {
    let session = interpreter()
        .timeout(Duration::from_secs(1))
        .open()
        .await
        .unwrap();
    let code = "import signal, time\nprint('a')\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(60)";
    let stopped = execute(&session, code).await;
    assert_eq!(stopped.outcome, ExecutionOutcome::TimedOut);
    assert_eq!(stopped.exit, Some(ExitStatus::Signal(9)));
    assert_eq!(stopped.stdout.text(), "a\n");
    let next = execute(&session, "1").await;
    assert_eq!(next.outcome, ExecutionOutcome::Completed);
    assert!(
        next.notes.concat().contains("variables"),
        "{:?}",
        next.notes
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_dead_interpreter_says_why() {
    let session = session().await;
    for (code, status, reason) in [
        (
            "print('x'); import os; display(1); os._exit(7)",
            ExitStatus::Code(7),
            "exit code 7",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            ExitStatus::Signal(9),
            "memory ran out",
        ),
        ("import os; os.abort()", ExitStatus::Signal(6), "SIGABRT"),
        (
            "import os; os.closerange(3, 100)",
            ExitStatus::Signal(9),
            "SIGKILL",
        ),
        (
            "import os; os.kill(os.getppid(), 9); import time; time.sleep(60)",
            ExitStatus::Signal(9),
            "SIGKILL",
        ),
    ] {
        let died = execute(&session, code).await;
        assert_eq!(
            (died.outcome, died.exit),
            (ExecutionOutcome::Killed, Some(status)),
            "{code}"
        );
        assert!(
            died.notes.concat().contains(reason),
            "{code}: {:?}",
            died.notes
        );
        let next = execute(&session, "'fine'").await;
        assert_eq!(texts(&next), ["'fine'"], "{code}");
        assert!(next.notes.concat().contains("lost"), "{code}");
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn hostile_output_and_frames_are_bounded_data() {
    let session = session().await;
    let code = "for _ in range(3000): print('x' * 1000)";
    let large = execute(&session, code).await;
    assert_eq!(large.stdout.total_bytes(), 3_003_000);
    assert_eq!(large.stdout.head.len() + large.stdout.tail.len(), 80_000);

    let many = execute(&session, "for i in range(300): display(i)").await;
    assert_eq!(many.results.len(), 100);
    assert_eq!(many.notes.len(), 1);
    let huge = execute(
        &session,
        "display('x' * 20_000_000)\nclass A:\n  def _repr_html_(self): return 'x' * 9_000_000\nA()",
    )
    .await;
    assert_eq!(huge.results.len(), 1);
    assert!(huge.notes.concat().contains("9000"), "{:?}", huge.notes);

    // Neither a missing stream, nor values without JSON, nor a lone surrogate loses a result or the end of a call.
    let closed = execute(
        &session,
        "import os, sys; os.close(1); sys.stdout = None; 'closed'",
    )
    .await;
    assert_eq!(texts(&closed), ["'closed'"]);
    let code = "class A:\n  def _repr_json_(self): return [float('nan'), 10**400, '\\ud800']\ndisplay(A())\n\
                raise ValueError('\\udcff')";
    let odd = execute(&session, code).await;
    let values = odd.results.iter().filter_map(|it| it.formats.get("json"));
    let large = format!("1{}", "0".repeat(400));
    assert_eq!(
        values.collect::<Vec<_>>(),
        [&serde_json::json!([null, large, "?"])]
    );
    assert_eq!(odd.error.map(|it| it.value).as_deref(), Some("?"));
    let deep = "class A:\n  def _repr_json_(self):\n    x = []\n    for _ in range(300): x = [x]\n    return x\nA()";
    let deep = execute(&session, deep).await;
    assert_eq!(
        (deep.results.len(), deep.notes.len()),
        (0, 1),
        "{:?}",
        deep.notes
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn forged_frames_are_ignored() {
    let session = session().await;
    let forged = r#"import os
for fd in range(3, 30):
  for text in (b'{"id":1,"type":"result","data":5}', b'{"id":1,"type":"result","main":true,"data":{"html":5}}',
               b'{"id":1,"type":"result","main":true,"data":{"other":"x"}}', b'[' * 100000, b'\xff', b'[]',
               b'{"id":1,"type":"done","error":3}', b'{"id":1,"type":"done","error":{"name":1}}',
               b'{"id":1,"type":"died","code":3}', b'{"id":2,"type":"done","error":null}',
               b'{"id":true,"type":{}}', b'{"id":1,"type":[]}', b'x' * (9 << 20),
               *(b'{"id":1,"type":"result","main":true,"data":{"json":' + b'[' * n + b']' * n + b'}}'
                 for n in range(900, 1000))):
    try: os.write(fd, text + b'\n')
    except OSError: pass
  try: os.write(fd, b'{"id":1,"type":"done"')
  except OSError: pass
'real'"#;
    let execution = execute(&session, forged).await;
    assert_eq!(execution.outcome, ExecutionOutcome::Completed);
    assert_eq!(texts(&execution), ["'real'"]);
    assert_eq!(texts(&execute(&session, "'next'").await), ["'next'"]);

    // One with the right shape ends its call; the next one gets its own results.
    let ended = r#"import os, time
for fd in range(3, 30):
  try: os.write(fd, b'\n{"id":3,"type":"done"}\n')
  except OSError: pass
time.sleep(0.2)
'late'"#;
    // Python takes 5.0 for 5, and the host does not; `self` is also the name of a parameter.
    let equal = ended.replace(r#""id":3"#, r#""self":1,"id":5.0"#);
    // Python writes it as `Infinity`, which is no JSON.
    let infinite = ended.replace(r#""id":3"#, r#""x":1e999,"id":7"#);
    for code in [ended, equal.as_str(), infinite.as_str()] {
        assert!(execute(&session, code).await.success());
        let next = execute(&session, "'own'").await;
        assert_eq!((texts(&next), next.notes.len()), (vec!["'own'"], 0));
    }

    // Past the parent, notes of the host are repeated.
    let started = r#"import os
try:
  with open(f'/proc/{os.getppid()}/fd/1', 'wb', 0) as protocol:
    for _ in range(1000): protocol.write(b'{"type":"started","id":9,"restarted":true}\n')
except OSError: pass"#;
    let repeated = execute(&session, started).await;
    assert!(repeated.notes.len() <= 1, "{}", repeated.notes.len());
    session.close().await.unwrap();
}

#[tokio::test]
async fn processes_that_the_code_forks_have_no_part_in_the_protocol() {
    let session = session().await;
    let forked = execute(
        &session,
        "import os
pid = os.fork()
if pid: os.waitpid(pid, 0)
'once' if pid else None",
    )
    .await;
    assert_eq!(
        (forked.outcome, texts(&forked)),
        (ExecutionOutcome::Completed, vec!["'once'"])
    );
    assert_eq!(texts(&execute(&session, "'next'").await), ["'next'"]);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_child_that_holds_the_pipe_does_not_delay_the_call() {
    let session = session().await;
    let code = "import subprocess\nchild = subprocess.Popen(['sleep', '50'])\n'back'";
    let execution = execute(&session, code).await;
    assert_eq!(texts(&execution), ["'back'"]);
    assert!(execution.duration < Duration::from_secs(40));
    let code =
        "import os\nif os.fork() == 0:\n  import time; time.sleep(50); os._exit(0)\nos._exit(4)";
    let execution = execute(&session, code).await;
    assert_eq!(execution.exit, Some(ExitStatus::Code(4)));
    session.close().await.unwrap();
}

#[tokio::test]
async fn modules_of_the_working_directory_do_not_shadow_the_kernels() {
    let session = session().await;
    session
        .run("open('json.py', 'w').write('x = 1'); open('mine.py', 'w').write('y = 2')")
        .await
        .unwrap();
    assert_eq!(
        texts(&execute(&session, "import mine; mine.y").await),
        ["2"]
    );
    session.close().await.unwrap();
}

/// A matplotlib with what the kernel uses of it.
pub(crate) const MATPLOTLIB: &str = "import os
for path, text in {
    'matplotlib/__init__.py': 'rcParams = {\"backend\": \"auto\"}\\ndef get_backend(): return rcParams[\"backend\"]\\ndef use(name): rcParams[\"backend\"] = name',
    'matplotlib/figure.py': 'class Figure:\\n  def savefig(self, file, **_): file.write(b\"figure\")',
    'matplotlib/pyplot.py': 'from .figure import Figure\\nopened = {}\\ndef figure(n): return opened.setdefault(n, Figure())\\ndef get_fignums(): return list(opened)\\ndef close(_): opened.clear()',
}.items():
    os.makedirs('matplotlib', exist_ok=True)
    open(path, 'w').write(text)
";

#[tokio::test]
async fn figures_are_results_unless_another_backend_is_chosen() {
    let session = session().await;
    session.run(MATPLOTLIB).await.unwrap();
    let plot = "import matplotlib.pyplot as plt\nplt.figure(1)\nNone";
    let execution = execute(&session, plot).await;
    let shown: Vec<_> = execution
        .results
        .iter()
        .map(|it| it.formats.get("png").cloned())
        .collect();
    assert_eq!(shown, [Some("ZmlndXJl".into())]);
    let last = execute(&session, "plt.figure(2)\nplt.figure(1)").await;
    let is_main: Vec<_> = last.results.iter().map(|it| it.is_main).collect();
    assert_eq!(is_main, [true, false], "each figure once");
    let chosen = "import matplotlib; matplotlib.use('Agg')\nplt.figure(1)\nNone";
    assert_eq!(execute(&session, chosen).await.results, []);
    session.close().await.unwrap();
}

#[tokio::test]
async fn figures_of_a_call_that_fails_are_not_left_to_the_next_one() {
    let session = session().await;
    session.run(MATPLOTLIB).await.unwrap();
    for (code, error, figures) in [
        (
            "import matplotlib.pyplot as plt\nplt.figure(1)\nraise ValueError",
            Some("ValueError"),
            1,
        ),
        ("plt.figure(2)\nraise SystemExit", None, 1),
        ("plt.figure(3).savefig = None", Some("TypeError"), 0),
        ("None", None, 0),
    ] {
        let execution = execute(&session, code).await;
        let name = execution.error.as_ref().map(|it| it.name.as_str());
        let found = (name, execution.results.len());
        assert_eq!(found, (error, figures), "{code}: {execution:?}");
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn figures_of_matplotlib_are_pictures() {
    let Some(python) = std::env::var_os("CANTLE_TEST_MATPLOTLIB") else {
        return skip("no CANTLE_TEST_MATPLOTLIB; `cargo xtask test` prepares it");
    };
    let python = PathBuf::from(python);
    // The environment, and the Python that it was made from.
    let roots = [
        python.ancestors().nth(3).unwrap().to_owned(),
        python
            .canonicalize()
            .unwrap()
            .ancestors()
            .nth(2)
            .unwrap()
            .to_owned(),
    ];
    let mut policy = Policy::workspace();
    policy.read_roots = Some(policy.read_roots.take().unwrap().with_paths(roots));
    let interpreter = interpreter()
        .python(python.to_str().unwrap())
        .policy(policy);
    let session = interpreter.open().await.unwrap();

    let plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.figure()\nplt.bar([1], [2])\nNone";
    let shown = execute(&session, plot).await;
    assert_eq!(shown.outcome, ExecutionOutcome::Completed, "{shown:?}");
    let png = |it: &RichResult| Some(it.formats.get("png")?.as_str()?.starts_with("iVBORw0KGgo"));
    assert_eq!(
        shown.results.iter().map(png).collect::<Vec<_>>(),
        [Some(true); 2]
    );
    let again = execute(
        &session,
        "figure, axes = plt.subplots()\naxes.plot([3])\nfigure",
    )
    .await;
    let is_main: Vec<_> = again.results.iter().map(|it| it.is_main).collect();
    assert_eq!(is_main, [true]);
    let chosen = execute(
        &session,
        "import matplotlib; matplotlib.use('Agg')\nplt.plot([1])\nplt.show()",
    )
    .await;
    assert_eq!(
        (chosen.outcome, chosen.results.len()),
        (ExecutionOutcome::Completed, 0),
        "{chosen:?}"
    );
    session.close().await.unwrap();

    let plain = interpreter.without_figures().open().await.unwrap();
    let silent = execute(
        &plain,
        "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\nNone",
    )
    .await;
    assert_eq!(
        (silent.outcome, silent.results.len()),
        (ExecutionOutcome::Completed, 0),
        "{silent:?}"
    );
    plain.close().await.unwrap();
}
