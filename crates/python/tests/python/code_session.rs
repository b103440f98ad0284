//! Python through the traits of `cantle_core::code`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_backends_local::LocalBackend;
use cantle_core::code::{
    CodeEnd, CodeInterpreter as _, CodeObserver, CodeRequest, CodeSession, RichResult,
};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, Channel, Sandbox, SandboxContext, SandboxExt as _, SandboxPath,
};
use cantle_python::Interpreter;
use tokio_util::sync::CancellationToken;

/// The output and results of a call, in order.
#[derive(Default)]
struct Seen {
    events: Vec<String>,
    refuses_buffers: bool,
}

#[async_trait]
impl CodeObserver for Seen {
    async fn output(&mut self, _: Channel, bytes: Bytes) {
        self.events
            .push(String::from_utf8_lossy(&bytes).into_owned());
    }

    async fn result(&mut self, result: RichResult) {
        self.events
            .push(format!("={}", result.text().unwrap_or_default()));
    }

    fn may_buffer(&mut self, _: usize) -> bool {
        !self.refuses_buffers
    }
}

async fn open() -> (Arc<dyn Sandbox>, Arc<dyn CodeSession>) {
    let context = SandboxContext::new(RunId::new(), Policy::workspace());
    let sandbox = LocalBackend::new()
        .open(context)
        .await
        .expect("the sandbox opens");
    let interpreter = Interpreter::new(LocalBackend::new());
    let session = interpreter.open_session(Arc::clone(&sandbox));
    (sandbox, session)
}

fn request(context: &str, code: &str) -> CodeRequest {
    CodeRequest::new(
        context,
        code,
        Duration::from_secs(60),
        CancellationToken::new(),
    )
}

async fn execute(session: &dyn CodeSession, request: CodeRequest) -> (Vec<String>, CodeEnd) {
    let mut seen = Seen::default();
    let end = session.execute(request, &mut seen).await;
    let end = end.expect("the sandbox works");
    (seen.events, end)
}

fn error_name(end: &CodeEnd) -> Option<&str> {
    end.error.as_ref().map(|error| error.name.as_str())
}

#[tokio::test]
async fn output_precedes_the_results_that_follow_it() {
    let (sandbox, session) = open().await;
    let code = "print('before')\ndisplay(1)\n2";
    let (events, end) = execute(&*session, request("a", code)).await;
    assert_eq!(events, ["before\n", "=1", "=2"]);
    assert_eq!(end, CodeEnd::default());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn both_streams_keep_their_order() {
    let (sandbox, session) = open().await;
    let code = "import sys\nfor i in range(20):\n  print(i)\n  print('e', i, file=sys.stderr)\n\
                sys.stderr.close()\nprint('last')";
    let (events, end) = execute(&*session, request("a", code)).await;
    let expected = (0..20).map(|i| format!("{i}\ne {i}\n"));
    assert_eq!(events.concat(), expected.collect::<String>() + "last\n");
    assert_eq!(end, CodeEnd::default());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn long_output_leaves_no_files() {
    let (sandbox, session) = open().await;
    let long = request("a", "print('x' * 200_000)");
    let (events, _) = execute(&*session, long).await;
    assert_eq!(events.concat().len(), 200_001);
    let code = "import os\nos.listdir()";
    assert_eq!(execute(&*session, request("a", code)).await.0, ["=[]"]);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn variables_of_one_call_do_not_outlive_it() {
    let (sandbox, session) = open().await;
    let code = "import os\nprint(os.environ.get('HOME') == '/x', os.environ.get('ONE'))";
    let mut with_variables = request("a", code);
    let pairs = [("HOME", "/x"), ("ONE", "1")];
    with_variables.environment = pairs.map(|(a, b)| (a.into(), b.into())).into();
    assert_eq!(
        execute(&*session, with_variables).await.0,
        ["True 1\n"],
        "in the call"
    );
    assert_eq!(
        execute(&*session, request("a", code)).await.0,
        ["False None\n"]
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn context_starts_in_its_directory() {
    let (sandbox, session) = open().await;
    let code = "import os\nprint(os.getcwd())";
    let mut elsewhere = request("a", code);
    elsewhere.directory = Some("/usr".into());
    assert_eq!(execute(&*session, elsewhere).await.0, ["/usr\n"]);

    let mut missing = request("b", code);
    missing.directory = Some("/usr/no-such-directory".into());
    let (events, end) = execute(&*session, missing).await;
    assert_eq!(events, [""; 0]);
    assert_eq!(error_name(&end), Some("InterpreterNotStarted"));
    let message = end.error.unwrap().value;
    assert!(message.contains("no-such-directory"), "{message}");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn syntax_errors_are_pythons() {
    let (sandbox, session) = open().await;
    let (_, end) = execute(&*session, request("a", "x = 1\ny = = 2")).await;
    assert_eq!(error_name(&end), Some("SyntaxError"));
    assert!(end.error.unwrap().traceback.contains("y = = 2"));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn ended_context_starts_anew() {
    let (sandbox, session) = open().await;
    execute(&*session, request("a", "x = 1")).await;
    session.end("a").await;
    let (_, end) = execute(&*session, request("a", "x")).await;
    assert_eq!(error_name(&end), Some("NameError"));
    assert_eq!(end.notes, [""; 0]);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_does_not_begin() {
    let (sandbox, session) = open().await;
    execute(&*session, request("a", "import os, time")).await;
    let running = request("a", "while not os.path.exists('go'): time.sleep(0.01)");
    let cancellation = CancellationToken::new();
    let code = "open('begun', 'w').close()";
    let waiting = CodeRequest::new("a", code, Duration::from_secs(60), cancellation.clone());
    let cancelled = async {
        let ended = execute(&*session, waiting).await;
        let go = SandboxPath::new("go").unwrap();
        sandbox.write_bytes(&go, Bytes::new()).await.unwrap();
        ended
    };
    let cancel = async { cancellation.cancel() };
    let running = execute(&*session, running);
    let ((_, first), (_, second), ()) = tokio::join!(running, cancelled, cancel);
    assert_eq!(first, CodeEnd::default());
    assert_eq!(error_name(&second), Some("KeyboardInterrupt"));
    let listed = execute(&*session, request("a", "os.listdir()")).await;
    assert_eq!(listed.0, ["=['go']"]);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_buffer_that_is_refused_ends_the_interpreter() {
    let (sandbox, session) = open().await;
    let mut seen = Seen {
        refuses_buffers: true,
        ..Seen::default()
    };
    // A frame longer than a pipe holds, so that it can't arrive at once.
    let long = request("a", "'x' * 1_000_000");
    let end = session.execute(long, &mut seen).await.unwrap();
    assert_eq!(error_name(&end), Some("InterpreterEnded"));
    let (events, _) = execute(&*session, request("a", "1")).await;
    assert_eq!(events, ["=1"], "the next call starts a new one");
    sandbox.close().await.unwrap();
}
