//! `cantle python`, and the tool `python` of `cantle run`.

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
