//! `cantle python`, and the tool `python` of `cantle run`.

use cantle_testkit::lane::skip;
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
    assert_eq!(exited.code, Some(1), "{exited:?}");
    assert!(exited.stderr.contains("SyntaxError: "), "{exited:?}");
    let checked = env.run(["python", "--check", "wrong.py"]).await;
    let message = "cantle: Syntax error: '(' was never closed (line 2, column 5).\n";
    assert_eq!((checked.code, &*checked.stderr), (Some(1), message));
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
    let exited = env.run(["python", "--timeout", "3", "endless.py"]).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(124), "so far\n"));
}

#[tokio::test]
async fn a_missing_container_engine_is_explained() {
    let env = TestEnv::new().set("DOCKER_HOST", "unix:///nowhere/engine.sock");
    env.write("program.py", "1");
    let args = ["python", "--backend", "docker:debian", "program.py"];
    for packages in [vec![], vec!["--package", "six"]] {
        let exited = env.run(args.iter().chain(&packages)).await;
        assert_eq!(exited.code, Some(125), "{exited:?}");
        assert!(exited.stderr.contains("set DOCKER_HOST"), "{exited:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_program_is_refused() {
    let env = TestEnv::new();
    let nested = "(".repeat(20_000) + &")".repeat(20_000);
    for (content, code, message) in [
        (&b"x = '\xff'"[..], 2, "no.py is not UTF-8"),
        (&[b'x'; 10_000_000], 2, "no.py has more than 1048576 bytes"),
        (b"x = 'a\0b'", 1, "cannot contain null bytes"),
        (nested.as_bytes(), 1, "too many nested parentheses"),
    ] {
        env.write("no.py", content);
        for args in [&["python", "no.py"][..], &["python", "--check", "no.py"]] {
            let exited = env.run(args).await;
            assert_eq!(exited.code, Some(code), "{exited:?}");
            assert!(exited.stderr.contains(message), "{exited:?}");
        }
    }
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
        skip("script(1) is not installed");
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

/// Writes a wheel of the module `chartless`, and what kernels use of matplotlib, into the current directory.
const WHEEL: &str = r#"
import zipfile
info = "chartless-1.0.dist-info"
FIGURE = """
import struct, zlib
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
class Figure:
    def __repr__(self): return "chart"
    def savefig(self, file, **_):
        rows = b"".join(b"\\0" + bytes(255 * (at < bar) for at in range(8)) for bar in self.bars)
        head = struct.pack(">2I5B", 8, len(self.bars), 8, 0, 0, 0, 0)
        file.write(b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
"""
PYPLOT = """
from .figure import Figure
opened = {}
def figure(number): return opened.setdefault(number, Figure())
def get_fignums(): return list(opened)
def close(_): opened.clear()
"""
with zipfile.ZipFile("chartless-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("chartless.py", "VALUE = 42\n")
    wheel.writestr("matplotlib/__init__.py", "rcParams = {}\ndef get_backend(): return rcParams['backend']\n")
    wheel.writestr("matplotlib/figure.py", FIGURE)
    wheel.writestr("matplotlib/pyplot.py", PYPLOT)
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: chartless\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
"#;

/// Adds the wheel, and lets packages come from nowhere else.
pub(crate) fn with_wheel(env: TestEnv) -> TestEnv {
    let mut wheel = std::process::Command::new("python3");
    let written = wheel.args(["-c", WHEEL]).current_dir(env.path("")).status();
    assert!(written.unwrap().success());
    let directory = env.path("").display().to_string();
    env.set("PIP_NO_INDEX", "1")
        .set("PIP_FIND_LINKS", directory)
}

#[tokio::test]
async fn packages_are_installed_once_for_programs_and_runs() {
    let env = TestEnv::new();
    env.write("program.py", "import chartless\nprint(chartless.VALUE)\n");
    let env = with_wheel(env);
    let program = ["python", "--package", "chartless", "program.py"];
    let exited = env.run(program).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "42\n"),
        "{exited:?}"
    );
    assert_eq!(exited.stderr, "cantle: Installing packages: chartless\n");
    let exited = env.run(program).await;
    assert_eq!((exited.code, &*exited.stderr), (Some(0), ""));

    let code = json!({ "code": "import chartless, subprocess, os\nchartless.VALUE" });
    let commands = json!({ "cmd": "$VIRTUAL_ENV/bin/python -c 'import chartless; print(chartless.VALUE + 1)'" });
    let script = Script::new()
        .turn(Turn::tool(ToolCall::new("python", code)))
        .turn(Turn::tool(ToolCall::new("code_exec", commands)))
        .turn(finish("done", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.with_server(&server.url());
    let exited = env
        .run(["run", "Go", "--tools", "python", "--package", "chartless"])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let messages = server.requests()[2].body()["messages"].to_string();
    assert!(messages.contains("<result>42</result>"), "{messages}");
    assert!(messages.contains("43"), "{messages}");
    let tools = server.requests()[0].body()["tools"].to_string();
    assert!(
        tools.contains("These packages are installed: chartless 1.0"),
        "{tools}"
    );

    let exited = env.run(["run", "Go", "--package", "chartless"]).await;
    assert_eq!(exited.code, Some(2));
    assert!(exited.stderr.contains("add --tools python"), "{exited:?}");
    let missing = env
        .run(["python", "--package", "none-such", "program.py"])
        .await;
    assert_eq!(missing.code, Some(125), "{missing:?}");
    assert!(
        missing.stderr.contains("No matching distribution found"),
        "{missing:?}"
    );
    let option = env.run(["python", "--package=--pre", "program.py"]).await;
    assert_eq!(option.code, Some(2), "{option:?}");
}

#[tokio::test]
async fn packages_that_nothing_used_for_a_month_are_garbage() {
    let env = with_wheel(TestEnv::new());
    env.write("program.py", "import chartless\nprint(chartless.VALUE)\n");
    let program = ["python", "--package", "chartless", "program.py"];
    assert_eq!(env.run(program).await.stdout, "42\n");
    let sets = ".local/state/cantle/packages/sets";
    let is_set = |name: &String| !name.contains('.');
    let installed = || {
        env.list(sets)
            .into_iter()
            .filter(is_set)
            .collect::<Vec<_>>()
    };
    let [set] = &installed()[..] else {
        panic!("{:?}", env.list(sets));
    };
    assert_eq!(env.run(["gc"]).await.code, Some(0));
    assert_eq!(installed(), std::slice::from_ref(set));
    let marker = env.path(sets).join(format!("{set}.json"));
    let used = std::fs::File::options().write(true).open(marker);
    let month = std::time::Duration::from_secs(31 * 24 * 60 * 60);
    let then = std::time::SystemTime::now() - month;
    used.unwrap().set_modified(then).unwrap();
    let removed = env.run(["gc", "--verbose"]).await;
    assert!(removed.stdout.contains(set), "{removed:?}");
    assert_eq!(installed(), [""; 0]);
    assert_eq!(env.run(program).await.stdout, "42\n");
}

#[tokio::test]
async fn only_the_user_allows_packages_from_a_private_network() {
    let env = with_wheel(TestEnv::new());
    env.write("program.py", "");
    env.write(
        "cantle.toml",
        "package_host = [\"files.example.org,private\"]\n",
    );
    let program = ["python", "--package", "chartless", "program.py"];
    // Also in a directory that is trusted.
    assert_eq!(env.run(["trust"]).await.code, Some(0));
    let refused = env.run(program).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let reason = "only a flag, a variable or your own settings can allow private addresses";
    assert!(refused.stderr.contains(reason), "{refused:?}");
    let flag = ["--package-host", "files.example.org,private"];
    let allowed = env.run(program.iter().chain(&flag)).await;
    assert_eq!(allowed.code, Some(0), "{allowed:?}");
}

/// P25 of Mellea's tests: pip installs packages where uv is absent.
#[tokio::test]
async fn uv_installs_packages_where_it_is_and_pip_elsewhere() {
    let missing = async |uv: Option<&str>| {
        let env = with_wheel(TestEnv::new());
        if let Some(uv) = uv {
            std::os::unix::fs::symlink(uv, env.path("uv")).unwrap();
        }
        let path = format!("{}:/usr/bin:/bin", env.path("").display());
        let env = env.set("PATH", path);
        env.write("program.py", "import chartless\nprint(chartless.VALUE)\n");
        let program = ["python", "--package", "chartless", "program.py"];
        let exited = env.run(program).await;
        assert_eq!(&*exited.stdout, "42\n", "{exited:?}");
        let missing = ["python", "--package", "none-such", "program.py"];
        env.run(missing).await.stderr
    };
    let stderr = missing(None).await;
    assert!(
        stderr.contains("No matching distribution found for none-such"),
        "{stderr}"
    );
    let Ok(uv) = std::env::var("CANTLE_TEST_UV") else {
        return skip("no CANTLE_TEST_UV; `cargo xtask test` prepares it");
    };
    let stderr = missing(Some(&uv)).await;
    assert!(
        stderr.contains("none-such was not found in the provided package locations"),
        "{stderr}"
    );
}

/// Runs a table's sum, a failure, and a chart by a package without network in a kind of sandbox. Returns what the model
/// saw, and the chart.
async fn seen_on(backend: &str, env: TestEnv) -> (Vec<String>, Vec<u8>) {
    let python = |code: &str| Turn::tool(ToolCall::new("python", json!({ "code": code })));
    let script = Script::new()
        .turn(python(
            "import csv\nrows = [int(row['sold']) for row in csv.DictReader(open('sales.csv'))]\nprint(len(rows))",
        ))
        .turn(python("sum(rows) / 0"))
        .turn(python("import chartless\nchartless.VALUE + sum(rows)"))
        .turn(python(
            "import socket, matplotlib.pyplot as plt\nplt.figure(1).bars = rows\n\
             with open('chart.png', 'wb') as file: plt.figure(1).savefig(file)\n\
             try: socket.create_connection(('192.0.2.1', 80), 10)\nexcept OSError: print('offline')",
        ))
        .turn(finish("done", &["chart.png"]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = with_wheel(env).with_server(&server.url());
    env.write("sales.csv", "day,sold\nMon,3\nTue,4\n");
    let flags = [
        "--tools",
        "python",
        "--package",
        "chartless",
        "--input",
        "sales.csv",
        "--output-dir",
        "out",
    ];
    let run = ["run", "Sum", "--backend", backend];
    let exited = env.run(run.iter().chain(&flags)).await;
    assert_eq!(exited.code, Some(0), "{backend}: {exited:?}");
    let chart = std::fs::read(env.path("out/chart.png")).unwrap();
    let body = server.requests()[4].body();
    let messages = body["messages"].as_array().unwrap().iter();
    let results = messages.filter(|it| it["role"] == "tool");
    let text = |it: &serde_json::Value| match it["content"].as_str() {
        Some(text) => text.to_owned(),
        None => it["content"][0]["text"].as_str().unwrap().to_owned(),
    };
    let results = results.map(text);
    let seen: Vec<String> = results.collect();
    if backend != "remote" {
        return (seen, chart);
    }
    let copied = "\n<advice>The packages were copied into the sandbox; there they are not protected from writing.</advice>";
    assert!(seen[0].contains(copied), "{seen:?}");
    let seen = seen.iter().map(|text| text.replace(copied, ""));
    (seen.collect(), chart)
}

#[tokio::test]
async fn the_same_code_has_the_same_result_on_local_docker_and_remote() {
    let on_local = seen_on("local", TestEnv::new()).await;
    let (local, chart) = &on_local;
    assert!(local[0].contains("<stdout>2</stdout>"), "{local:?}");
    assert!(
        local[1].contains("ZeroDivisionError: division by zero"),
        "{local:?}"
    );
    assert!(local[2].contains("<result>49</result>"), "{local:?}");
    assert!(local[3].contains("<stdout>offline</stdout>"), "{local:?}");
    assert!(chart.starts_with(b"\x89PNG"), "{chart:?}");

    let served = TestEnv::new();
    let (server, client) = crate::serve::serve(&served, "local").await;
    assert_eq!(seen_on("remote", client).await, on_local);
    drop(server);

    let variable = |name| std::env::var(name).ok();
    let engine = variable("CANTLE_TEST_DOCKER_HOST").zip(variable("CANTLE_TEST_DOCKER_IMAGE"));
    let Some((host, image)) = engine else {
        return skip("no CANTLE_TEST_DOCKER_HOST; `cargo xtask test` starts an engine");
    };
    let env = TestEnv::new().set("DOCKER_HOST", host);
    assert_eq!(seen_on(&format!("docker:{image}"), env).await, on_local);
}

#[tokio::test]
async fn packages_are_in_a_derived_image_whatever_the_name_of_the_state_directory() {
    let variable = |name| std::env::var(name).ok();
    let engine = variable("CANTLE_TEST_DOCKER_HOST").zip(variable("CANTLE_TEST_DOCKER_IMAGE"));
    let Some((host, image)) = engine else {
        return skip("no CANTLE_TEST_DOCKER_HOST; `cargo xtask test` starts an engine");
    };
    let env = with_wheel(TestEnv::new()).set("DOCKER_HOST", host);
    let state = env.path("my \"$HOME\" state").display().to_string();
    let env = env.set("CANTLE_STATE_DIR", state);
    let code = json!({"code": "import chartless\nchartless.__file__, chartless.VALUE"});
    let script = Script::new()
        .turn(Turn::tool(ToolCall::new("python", code.to_string())))
        .turn(finish("done", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.with_server(&server.url());
    let backend = format!("docker:{image}");
    let args = [
        "run",
        "Go",
        "--tools",
        "python",
        "--package",
        "chartless",
        "--backend",
        &backend,
    ];
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let seen = server.requests()[1].body()["messages"].to_string();
    assert!(
        seen.contains("42") && seen.contains("packages/sets"),
        "{seen}"
    );
}
