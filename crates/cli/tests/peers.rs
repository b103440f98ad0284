//! `cantle run` against third-party servers: aimock, LiteLLM in front of it and of a scripted server, and
//! llama.cpp's server. `cargo xtask test` starts them and sets their addresses.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "clippy exempts test functions only, not their helpers"
)]

#[path = "support/mod.rs"]
#[expect(dead_code, reason = "this test uses only some helpers")]
mod support;

use std::path::Path;

use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn, Usage, serve_until};
use serde_json::json;
use tokio::net::TcpListener;

use self::support::{Exited, TestEnv, peer};

const WAYS: [&[&str]; 2] = [&[], &["--no-stream"]];

fn aimock(model: &str) -> Option<TestEnv> {
    let [url] = peer("aimock", ["CANTLE_TEST_AIMOCK_URL"])?;
    let env = TestEnv::new().set("CANTLE_BASE_URL", url);
    Some(
        env.set("CANTLE_MODEL", model)
            .set("CANTLE_API_KEY", "sk-any"),
    )
}

fn litellm(model: &str) -> Option<TestEnv> {
    let variables = ["CANTLE_TEST_LITELLM_URL", "CANTLE_TEST_LITELLM_KEY"];
    let [url, key] = peer("litellm", variables)?;
    let env = TestEnv::new().set("CANTLE_BASE_URL", url);
    Some(env.set("CANTLE_MODEL", model).set("CANTLE_API_KEY", key))
}

fn llama() -> Option<TestEnv> {
    let variables = ["CANTLE_TEST_LLAMA_URL", "CANTLE_TEST_LLAMA_KEY"];
    let [url, key] = peer("llama", variables)?;
    let env = TestEnv::new().set("CANTLE_BASE_URL", url);
    Some(
        env.set("CANTLE_MODEL", "tiny-random")
            .set("CANTLE_API_KEY", key),
    )
}

async fn run(env: &TestEnv, task: &str, flags: &[&str]) -> Exited {
    let usual = ["run", task, "--retry-for", "2"];
    env.run(usual.iter().chain(flags)).await
}

/// Runs the trip report: commands on real files, an output file and token counts.
async fn trip_report(env: &TestEnv, flags: &[&str]) {
    report(env, "Write a trip report", flags).await;
}

/// Runs the trip report where aimock counts every text and every call as a turn.
async fn journey_report(env: &TestEnv, flags: &[&str]) {
    report(env, "Write a report of the journey", flags).await;
}

async fn report(env: &TestEnv, task: &str, flags: &[&str]) {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/trip");
    let input = format!("--input={}/", files.display());
    let usual = [&*input, "--output-dir", "out"];
    let recorded = ["--record", "calls"];
    let flags: Vec<&str> = usual
        .iter()
        .chain(&recorded)
        .chain(flags)
        .copied()
        .collect();
    let exited = run(env, task, &flags).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "The trip report is written.\n"),
        "{exited:?}"
    );
    let sums = "- food 54.85\n- hotel 224.00\n- total 339.75\n- train 60.90\n";
    let diary = std::fs::read_to_string(files.join("diary.md")).unwrap();
    let report = env.read("out/trip-report.md");
    assert_eq!(report, format!("# Trip report\n\n{sums}\n{diary}"));
    let result = env.result("out");
    let commands = result.pointer("/ledger/tools/code_exec/calls").unwrap();
    assert_eq!(
        (result.pointer("/turns").unwrap(), commands),
        (&json!(4), &json!(4))
    );
    assert!(
        exited.stderr.contains("I look at the files first."),
        "{}",
        exited.stderr
    );

    // The recording replays the same run without the server.
    let again = [&*input, "--output-dir", "again", "--replay", "calls"];
    let played = run(env, task, &again).await;
    assert_eq!(
        (played.code, &played.stdout),
        (Some(0), &exited.stdout),
        "{played:?}"
    );
    assert_eq!(env.read("again/trip-report.md"), report);
    assert!(!played.stderr.contains("differed"), "{}", played.stderr);
}

fn tokens(env: &TestEnv) -> (u64, u64) {
    let result = env.result("out");
    let count = |name| {
        result
            .pointer(&format!("/dotted/token_usage/0/{name}"))
            .unwrap()
            .as_u64()
    };
    (count("input").unwrap(), count("answer").unwrap())
}

#[tokio::test]
async fn aimock_trip_report() {
    for flags in WAYS {
        let Some(env) = aimock("gpt-5") else { return };
        trip_report(&env, flags).await;
        assert_eq!(tokens(&env), (310 + 420 + 500 + 560, 42 + 55 + 38 + 21));
    }
}

#[tokio::test]
async fn aimock_trip_report_in_every_dialect() {
    for flags in WAYS {
        let Some(env) = aimock("claude-sonnet-4-5") else {
            return;
        };
        trip_report(&env.set("CANTLE_API", "messages"), flags).await;
        let Some(env) = aimock("gpt-5") else { return };
        journey_report(&env.set("CANTLE_API", "responses"), flags).await;
    }
}

#[tokio::test]
async fn aimock_failures_in_every_dialect() {
    for (api, model) in [("messages", "claude-sonnet-4-5"), ("responses", "gpt-5")] {
        for flags in WAYS {
            for (task, code, expected) in [
                ("rate limit always", 5, "Rate limit reached"),
                ("server error", 5, "The server had an error"),
                (
                    "context overflow",
                    3,
                    "maximum context length is 8192 tokens",
                ),
                (
                    "hit the output limit",
                    3,
                    "cut off at the model's output limit",
                ),
                ("malformed arguments", 0, "The arguments could not be read."),
            ] {
                let Some(env) = aimock(model) else { return };
                let exited = run(&env.set("CANTLE_API", api), task, flags).await;
                assert_eq!(exited.code, Some(code), "{api}, {task}: {exited:?}");
                let output = exited.stdout + &exited.stderr;
                assert!(output.contains(expected), "{api}, {task}: {output}");
            }
        }
    }
}

#[tokio::test]
async fn aimock_limits_the_rate_once() {
    for (task, flags) in ["streamed", "whole"].into_iter().zip(WAYS) {
        let Some(env) = aimock("gpt-4o") else {
            return;
        };
        let exited = run(&env, &format!("rate limit once, {task}"), flags).await;
        let expected = (Some(0), "It worked the second time.\n");
        assert_eq!((exited.code, &*exited.stdout), expected, "{exited:?}");
        assert!(exited.stderr.contains("attempt 2 in"), "{}", exited.stderr);
    }
}

#[tokio::test]
async fn aimock_failures_have_exit_codes() {
    for flags in WAYS {
        for (task, code, expected) in [
            ("rate limit always", 5, "Rate limit reached"),
            ("server error", 5, "The server had an error"),
            (
                "context overflow",
                3,
                "maximum context length is 8192 tokens",
            ),
            (
                "hit the output limit",
                3,
                "cut off at the model's output limit",
            ),
            ("malformed arguments", 0, "The arguments could not be read."),
        ] {
            let Some(env) = aimock("gpt-4o") else {
                return;
            };
            let exited = run(&env, task, flags).await;
            assert_eq!(exited.code, Some(code), "{task}: {exited:?}");
            let output = exited.stdout + &exited.stderr;
            assert!(output.contains(expected), "{task}: {output}");
        }
    }
}

#[tokio::test]
async fn aimock_breaks_streams() {
    for task in ["disconnect mid-stream", "cut the connection"] {
        let Some(env) = aimock("gpt-4o") else {
            return;
        };
        let exited = run(&env, task, &[]).await;
        assert_eq!(
            (exited.code, &*exited.stdout),
            (Some(5), ""),
            "{task}: {exited:?}"
        );
    }
}

#[tokio::test]
async fn aimock_answers_with_text() {
    for flags in WAYS {
        for (task, expected) in [
            ("say hello", "Hello! What shall we do?"),
            ("slow first token", "Sorry to keep you waiting."),
        ] {
            let Some(env) = aimock("gpt-4o") else {
                return;
            };
            let flags: Vec<&str> = flags.iter().copied().chain(["--max-turns", "1"]).collect();
            let exited = run(&env, task, &flags).await;
            assert_eq!(
                (exited.code, &*exited.stdout),
                (Some(3), ""),
                "{task}: {exited:?}"
            );
            assert!(exited.stderr.contains(expected), "{}", exited.stderr);
        }
    }
}

#[tokio::test]
async fn litellm_serves_models_of_both_dialects() {
    for model in ["aimock-gpt5", "aimock-claude"] {
        for flags in WAYS {
            let Some(env) = litellm(model) else { return };
            trip_report(&env, flags).await;
        }
    }
}

#[tokio::test]
async fn litellm_serves_messages_and_responses() {
    for flags in WAYS {
        let Some(env) = litellm("aimock-claude") else {
            return;
        };
        trip_report(&env.set("CANTLE_API", "messages"), flags).await;
        let Some(env) = litellm("aimock-gpt5") else {
            return;
        };
        journey_report(&env.set("CANTLE_API", "responses"), flags).await;
    }
}

#[tokio::test]
async fn litellm_reports_prices() {
    for flags in WAYS {
        let Some(env) = litellm("mock-text") else {
            return;
        };
        let env = env.set("CANTLE_PROVIDER", "litellm");
        let flags: Vec<&str> = flags
            .iter()
            .copied()
            .chain(["--max-turns", "1", "--json"])
            .collect();
        let exited = run(&env, "Hello", &flags).await;
        assert_eq!(exited.code, Some(3), "{exited:?}");
        let answered = exited
            .stdout
            .lines()
            .find(|line| line.contains("\"model_answered\""))
            .unwrap();
        let answered: serde_json::Value = serde_json::from_str(answered).unwrap();
        // Streams report no cost, so it is computed from the proxy's prices.
        let cost = answered.get("cost_usd").unwrap().as_f64().unwrap();
        assert!(cost > 0.0 && cost < 0.001, "{answered}");
    }
}

#[tokio::test]
async fn litellm_forwards_to_a_scripted_server() {
    let Some([port]) = peer("litellm", ["CANTLE_TEST_SCRIPTED_PORT"]) else {
        return;
    };
    let port: u16 = port.parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let usage = Usage::new(200, 30).cached(128);
    let command = |cmd| ToolCall::new("code_exec", json!({ "cmd": cmd }));
    let both = Turn::text("Both at once.")
        .call(command("echo one > a"))
        .call(command("echo two > b"));
    let finish = ToolCall::new("finish", json!({"reason": "Done.", "paths": ["a", "b"]}));
    let script = Script::new()
        .turn(both.usage(usage))
        .turn(Turn::tool(finish).usage(usage));
    let test = async {
        for flags in WAYS {
            let Some(env) = litellm("scripted") else {
                return;
            };
            let flags: Vec<&str> = flags
                .iter()
                .copied()
                .chain(["--output-dir", "out"])
                .collect();
            let exited = run(&env, "Make two files", &flags).await;
            assert_eq!(
                (exited.code, &*exited.stdout),
                (Some(0), "Done.\n"),
                "{exited:?}"
            );
            assert_eq!(env.list("out"), ["a", "b", "cantle-result.json"]);
            assert_eq!(tokens(&env), (400, 60));
        }
    };
    let (done, finished) = tokio::sync::oneshot::channel::<()>();
    let serve = serve_until(listener, script, async {
        let _ = finished.await;
    });
    let test = async {
        test.await;
        drop(done);
    };
    tokio::join!(serve, test).0.unwrap();
}

#[tokio::test]
async fn litellm_failures_have_exit_codes() {
    for flags in WAYS {
        for (model, code) in [
            ("mock-cwe", 3),
            ("mock-rate", 5),
            ("mock-internal", 5),
            ("mock-timeout", 5),
            ("no-such-model", 5),
        ] {
            let Some(env) = litellm(model) else { return };
            // The proxy repeats calls by itself.
            let exited = run(&env.set("CANTLE_NO_RETRY", "1"), "Hello", flags).await;
            assert_eq!(
                (exited.code, &*exited.stdout),
                (Some(code), ""),
                "{model}: {exited:?}"
            );
        }
    }
}

#[tokio::test]
async fn litellm_refuses_missing_and_wrong_keys() {
    // Without a database, the proxy can't check keys and reports that.
    for (key, expected) in [
        ("", "Set CANTLE_API_KEY in the environment."),
        ("sk-wrong-0123456789", "No connected db."),
    ] {
        let Some(env) = litellm("mock-text") else {
            return;
        };
        let exited = run(&env.set("CANTLE_API_KEY", key), "Hello", &[]).await;
        assert_eq!((exited.code, &*exited.stdout), (Some(5), ""), "{exited:?}");
        assert!(exited.stderr.contains(expected), "{}", exited.stderr);
        assert!(
            key.is_empty() || !exited.stderr.contains(key),
            "{}",
            exited.stderr
        );
    }
}

#[tokio::test]
async fn llama_runs_until_a_limit() {
    for flags in WAYS {
        let Some(env) = llama() else { return };
        let limits = [
            "--max-turns",
            "2",
            "--max-tokens",
            "8",
            "--output-dir",
            "out",
        ];
        let flags: Vec<&str> = flags.iter().chain(&limits).copied().collect();
        let exited = run(&env, "Hello", &flags).await;
        assert_eq!((exited.code, &*exited.stdout), (Some(3), ""), "{exited:?}");
        assert!(exited.stderr.contains("· 8 out"), "{}", exited.stderr);
    }
}

#[tokio::test]
async fn llama_refuses_a_wrong_key_and_a_long_prompt() {
    for flags in WAYS {
        let Some(env) = llama() else { return };
        let long = "many words ".repeat(4000);
        let exited = run(&env, &long, flags).await;
        assert_eq!(exited.code, Some(3), "{}", exited.stderr);
        let env = env.set("CANTLE_API_KEY", "sk-wrong");
        let exited = run(&env, "Hello", flags).await;
        assert_eq!(exited.code, Some(5), "{exited:?}");
        assert!(exited.stderr.contains("(HTTP 401)"), "{}", exited.stderr);
    }
}

/// A CSV is loaded in one call and plotted in the next, with packages that the machine lacks and without a network.
#[tokio::test]
async fn a_model_plots_a_table_with_packages_that_the_machine_lacks() {
    let variables = ["CANTLE_TEST_INDEX", "CANTLE_TEST_INDEX_FILES"];
    let Some([index, files]) = peer("index", variables) else {
        return;
    };
    if !lane::is_full() {
        return lane::skip("the full lane installs pandas and matplotlib");
    }
    let python = |code: &str| Turn::tool(ToolCall::new("python", json!({ "code": code })));
    let done = json!({ "reason": "done", "paths": ["chart.png"] });
    let script = Script::new()
        .turn(python(
            "import pandas as pd\ntable = pd.read_csv('sales.csv')\nint(table['sold'].sum())",
        ))
        .turn(python(
            "import matplotlib.pyplot as plt\ntable.plot.bar(x='day', y='sold')\nplt.savefig('chart.png')",
        ))
        .turn(python(
            "import socket\nsocket.create_connection(('192.0.2.1', 80), 5)",
        ))
        .turn(Turn::tool(ToolCall::new("finish", done)));
    let server = ScriptedServer::start(script).await.unwrap();
    let host = url::Url::parse(&index)
        .unwrap()
        .host_str()
        .unwrap()
        .to_owned();
    let env = TestEnv::new()
        .set("PIP_INDEX_URL", index)
        .set(
            "CANTLE_PACKAGE_HOST",
            format!("{host},private,{files},private"),
        )
        .with_server(&server.url());
    env.write("sales.csv", "day,sold\nMon,3\nTue,4\n");
    let flags = [
        "run",
        "Chart the sales",
        "--tools",
        "python",
        "--package",
        "pandas",
        "--package",
        "matplotlib",
        "--vision",
        "on",
        "--input",
        "sales.csv",
        "--output-dir",
        "out",
    ];
    let exited = env.run(flags).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let png = std::fs::read(env.path("out/chart.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG") && png.len() > 1000);
    let requests = server.requests();
    let messages = |turn: usize| requests[turn].body()["messages"].to_string();
    assert!(
        messages(1).contains("<result>7</result>"),
        "{}",
        messages(1)
    );
    // The figure is shown to the model, too.
    assert!(messages(2).contains("data:image/png;base64,"));
    assert!(
        messages(3).contains("Network is unreachable"),
        "{}",
        messages(3)
    );
}

/// Under the default policy, with the index's hosts, and without a trace in the working directory.
#[tokio::test]
async fn packages_are_installed_from_an_allowed_index() {
    let variables = [
        "CANTLE_TEST_INDEX",
        "CANTLE_TEST_INDEX_FILES",
        "CANTLE_TEST_REGISTRY",
        "CANTLE_TEST_UV",
    ];
    let Some([index, files, registry, uv]) = peer("index", variables) else {
        return;
    };
    let host = |url: &str| url::Url::parse(url).unwrap().host_str().unwrap().to_owned();
    let hosts = format!(
        "{},private,{files},private,{},private",
        host(&index),
        host(&registry)
    );
    let env = TestEnv::new()
        .set("PIP_INDEX_URL", &index)
        .set("UV_DEFAULT_INDEX", index)
        .set("npm_config_registry", registry);
    let line = "set -e; pip install --quiet iniconfig==2.0.0 && python3 -c 'import iniconfig' && \
        npm install --global --silent is-number@7.0.0 && ls -A && test -d /tmp/.local/lib/node_modules/is-number && \
        npm install --silent is-number@7.0.0 && ls -A && cd /tmp && \
        $0 venv --quiet env && $0 pip install --quiet --python env iniconfig==2.0.0 && env/bin/python -c 'import iniconfig' && \
        $0 run --quiet --with iniconfig==2.0.0 python -c 'import iniconfig'";
    let flags = [
        "exec",
        "--read",
        &uv,
        "--allow-host",
        &hosts,
        "--env",
        "PIP_INDEX_URL",
        "--env",
        "UV_DEFAULT_INDEX",
        "--env",
        "npm_config_registry",
    ];
    let exited = env
        .run(flags.iter().chain(&["--", "bash", "-c", line, &uv]))
        .await;
    let listed = "node_modules\npackage-lock.json\npackage.json\n";
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), listed),
        "{exited:?}"
    );

    // Without the mark, an address that is not public is refused.
    let unmarked = hosts.replace(",private", "");
    let flags = ["exec", "--allow-host", &unmarked, "--env", "PIP_INDEX_URL"];
    let refused = [
        "--",
        "pip",
        "download",
        "--retries",
        "0",
        "iniconfig==2.0.0",
    ];
    let refused = env.run(flags.iter().chain(&refused)).await;
    if refused.code != Some(0) {
        assert!(refused.stderr.contains(",private`"), "{refused:?}");
    }
}
