//! `cantle python`, and the tool `python` of `cantle run`.

use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;

use crate::finish;
use crate::support::{Exited, TestEnv};

#[tokio::test]
async fn a_program_is_run_with_its_streams_and_exit_code() {
    let env = TestEnv::new();
    env.write(
        "program.py",
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)\n",
    );
    let exited = env.run(["python", "program.py"]).await;
    let expected = Exited {
        code: Some(7),
        stdout: "out\n".to_owned(),
        stderr: "err\n".to_owned(),
    };
    assert_eq!(exited, expected);
    let exited = env.run(["python", "--check", "program.py"]).await;
    assert_eq!((exited.code, &*exited.stderr), (Some(0), ""));

    env.write("wrong.py", "x = 1\ny = (\n");
    let exited = env.run(["python", "wrong.py"]).await;
    let message = "cantle: Syntax error: '(' was never closed (line 2, column 5).\n";
    assert_eq!((exited.code, &*exited.stderr), (Some(1), message));
    let exited = env.run(["python", "none.py"]).await;
    assert_eq!(exited.code, Some(2), "{exited:?}");
    let exited = env
        .run(["python", "--python", "python9", "program.py"])
        .await;
    let message = "cantle: There is no Python `python9` in the sandbox.\n";
    assert_eq!((exited.code, &*exited.stderr), (Some(125), message));
    env.write(
        "endless.py",
        "print('so far', flush=True)\nwhile True: pass\n",
    );
    let exited = env.run(["python", "--timeout", "1", "endless.py"]).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(124), "so far\n"));
}

#[tokio::test]
async fn a_model_keeps_variables_from_call_to_call() {
    let python = |code: &str| Turn::tool(ToolCall::new("python", json!({ "code": code })));
    let script = Script::new()
        .turn(python("import csv\nrows = [1, 2, 3]"))
        .turn(python(
            "open('sum.txt', 'w').write(str(sum(rows)))\nsum(rows)",
        ))
        .turn(finish("done", &["sum.txt"]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env
        .run(["run", "Sum", "--tools", "python", "--output-dir", "out"])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(env.read("out/sum.txt"), "6");
    let messages = server.requests()[2].body()["messages"].to_string();
    assert!(messages.contains("<result>6</result>"), "{messages}");

    let refused = env.run(["run", "Sum", "--tools", "pyhton"]).await;
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("python"), "{refused:?}");
}

#[tokio::test]
async fn lines_at_a_terminal_keep_their_variables() {
    let env = TestEnv::new()
        .set("TERM", "dumb")
        .set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let mut script = env.command_of("script");
    let line = "\"$PROGRAM\" python; echo \"code $?\"";
    script.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    script.stdin(std::process::Stdio::piped());
    let Ok(mut child) = script.spawn() else {
        lane::skip("script(1) is not installed");
        return;
    };
    let typed = "x = 20\nx + 1\ndef f():\n    return x * 2\n\nf()\n1 / 0\nprint('after')\n\u{4}";
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, typed.as_bytes())
        .await
        .unwrap();
    let exited = crate::support::wait_for_exit(child).await;
    // Without a real terminal's keys, prompts stand before the answers.
    for expected in [
        ">>> 21\r\n",
        ">>> 40\r\n",
        "ZeroDivisionError: division by zero\r\n>>> after\r\n",
        "code 0\r\n",
    ] {
        assert!(exited.stdout.contains(expected), "{expected}: {exited:?}");
    }
}
