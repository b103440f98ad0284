//! `cantle run` against software that nobody here wrote: aimock, LiteLLM in front of it and of a
//! scripted server, and llama.cpp's server. `cargo xtask test` starts them and says where they are.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

#[path = "support/mod.rs"]
#[expect(dead_code, reason = "this program uses a part of it")]
mod support;

use std::path::Path;

use cantle_testkit::openai::{Script, ToolCall, Turn, Usage, serve_until};
use serde_json::json;
use tokio::net::TcpListener;

use self::support::{Ended, Place, peer};

const WAYS: [&[&str]; 2] = [&[], &["--no-stream"]];

fn aimock(model: &str) -> Option<Place> {
    let [url] = peer("aimock", ["CANTLE_TEST_AIMOCK_URL"])?;
    let place = Place::new().set("CANTLE_BASE_URL", url);
    Some(
        place
            .set("CANTLE_MODEL", model)
            .set("CANTLE_API_KEY", "sk-any"),
    )
}

fn litellm(model: &str) -> Option<Place> {
    let variables = ["CANTLE_TEST_LITELLM_URL", "CANTLE_TEST_LITELLM_KEY"];
    let [url, key] = peer("litellm", variables)?;
    let place = Place::new().set("CANTLE_BASE_URL", url);
    Some(place.set("CANTLE_MODEL", model).set("CANTLE_API_KEY", key))
}

fn llama() -> Option<Place> {
    let variables = ["CANTLE_TEST_LLAMA_URL", "CANTLE_TEST_LLAMA_KEY"];
    let [url, key] = peer("llama", variables)?;
    let place = Place::new().set("CANTLE_BASE_URL", url);
    Some(
        place
            .set("CANTLE_MODEL", "tiny-random")
            .set("CANTLE_API_KEY", key),
    )
}

async fn run(place: &Place, task: &str, flags: &[&str]) -> Ended {
    place.run(["run", task].iter().chain(flags)).await
}

/// The whole trip report: commands over real files, a file back, and the tokens counted.
async fn trip_report(place: &Place, flags: &[&str]) {
    report(place, "Write a trip report", flags).await;
}

/// The same, where aimock counts turns by items: each text and each call is one.
async fn journey_report(place: &Place, flags: &[&str]) {
    report(place, "Write a report of the journey", flags).await;
}

async fn report(place: &Place, task: &str, flags: &[&str]) {
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
    let ended = run(place, task, &flags).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "The trip report is written.\n"),
        "{ended:?}"
    );
    let sums = "- food 54.85\n- hotel 224.00\n- total 339.75\n- train 60.90\n";
    let diary = std::fs::read_to_string(files.join("diary.md")).unwrap();
    let report = place.read("out/trip-report.md");
    assert_eq!(report, format!("# Trip report\n\n{sums}\n{diary}"));
    let result = place.result("out");
    let commands = result.pointer("/ledger/tools/code_exec/calls").unwrap();
    assert_eq!(
        (result.pointer("/turns").unwrap(), commands),
        (&json!(4), &json!(4))
    );
    assert!(
        ended.stderr.contains("I look at the files first."),
        "{}",
        ended.stderr
    );

    // What was recorded with it is the same run without it.
    let again = [&*input, "--output-dir", "again", "--replay", "calls"];
    let played = run(place, task, &again).await;
    assert_eq!(
        (played.code, &played.stdout),
        (Some(0), &ended.stdout),
        "{played:?}"
    );
    assert_eq!(place.read("again/trip-report.md"), report);
    assert!(!played.stderr.contains("differed"), "{}", played.stderr);
}

fn tokens(place: &Place) -> (u64, u64) {
    let result = place.result("out");
    let count = |name| {
        result
            .pointer(&format!("/dotted/token_usage/0/{name}"))
            .unwrap()
            .as_u64()
    };
    (count("input").unwrap(), count("answer").unwrap())
}

#[tokio::test]
async fn aimock_has_a_trip_report_written() {
    for flags in WAYS {
        let Some(place) = aimock("gpt-5") else { return };
        trip_report(&place, flags).await;
        assert_eq!(tokens(&place), (310 + 420 + 500 + 560, 42 + 55 + 38 + 21));
    }
}

#[tokio::test]
async fn aimock_has_a_trip_report_written_in_every_dialect() {
    for flags in WAYS {
        let Some(place) = aimock("claude-sonnet-4-5") else {
            return;
        };
        trip_report(&place.set("CANTLE_API", "messages"), flags).await;
        let Some(place) = aimock("gpt-5") else { return };
        journey_report(&place.set("CANTLE_API", "responses"), flags).await;
    }
}

#[tokio::test]
async fn aimock_fails_in_every_dialect() {
    for (api, model) in [("messages", "claude-sonnet-4-5"), ("responses", "gpt-5")] {
        for flags in WAYS {
            for (task, code, said) in [
                ("rate limit always", 5, "given up after 3 attempts"),
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
                let Some(place) = aimock(model) else { return };
                let ended = run(&place.set("CANTLE_API", api), task, flags).await;
                assert_eq!(ended.code, Some(code), "{api}, {task}: {ended:?}");
                let told = ended.stdout + &ended.stderr;
                assert!(told.contains(said), "{api}, {task}: {told}");
            }
        }
    }
}

#[tokio::test]
async fn aimock_limits_the_rate_once() {
    for (task, flags) in ["streamed", "whole"].into_iter().zip(WAYS) {
        let Some(place) = aimock("gpt-4o") else {
            return;
        };
        let ended = run(&place, &format!("rate limit once, {task}"), flags).await;
        let expected = (Some(0), "It worked the second time.\n");
        assert_eq!((ended.code, &*ended.stdout), expected, "{ended:?}");
        assert!(ended.stderr.contains("attempt 2 in"), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn aimock_fails_in_many_ways() {
    for flags in WAYS {
        for (task, code, said) in [
            ("rate limit always", 5, "given up after 3 attempts"),
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
            let Some(place) = aimock("gpt-4o") else {
                return;
            };
            let ended = run(&place, task, flags).await;
            assert_eq!(ended.code, Some(code), "{task}: {ended:?}");
            let told = ended.stdout + &ended.stderr;
            assert!(told.contains(said), "{task}: {told}");
        }
    }
}

#[tokio::test]
async fn aimock_breaks_a_stream() {
    for task in ["disconnect mid-stream", "cut the connection"] {
        let Some(place) = aimock("gpt-4o") else {
            return;
        };
        let ended = run(&place, task, &[]).await;
        assert_eq!(
            (ended.code, &*ended.stdout),
            (Some(5), ""),
            "{task}: {ended:?}"
        );
    }
}

#[tokio::test]
async fn aimock_answers_with_text_alone() {
    for flags in WAYS {
        for (task, said) in [
            ("say hello", "Hello! What shall we do?"),
            ("slow first token", "Sorry to keep you waiting."),
        ] {
            let Some(place) = aimock("gpt-4o") else {
                return;
            };
            let flags: Vec<&str> = flags.iter().copied().chain(["--max-turns", "1"]).collect();
            let ended = run(&place, task, &flags).await;
            assert_eq!(
                (ended.code, &*ended.stdout),
                (Some(3), ""),
                "{task}: {ended:?}"
            );
            assert!(ended.stderr.contains(said), "{}", ended.stderr);
        }
    }
}

#[tokio::test]
async fn litellm_has_a_trip_report_written_by_either_dialect() {
    for model in ["aimock-gpt5", "aimock-claude"] {
        for flags in WAYS {
            let Some(place) = litellm(model) else { return };
            trip_report(&place, flags).await;
        }
    }
}

#[tokio::test]
async fn litellm_has_a_trip_report_written_over_messages_and_responses() {
    for flags in WAYS {
        let Some(place) = litellm("aimock-claude") else {
            return;
        };
        trip_report(&place.set("CANTLE_API", "messages"), flags).await;
        let Some(place) = litellm("aimock-gpt5") else {
            return;
        };
        journey_report(&place.set("CANTLE_API", "responses"), flags).await;
    }
}

#[tokio::test]
async fn litellm_says_what_its_models_cost_and_hold() {
    for flags in WAYS {
        let Some(place) = litellm("mock-text") else {
            return;
        };
        let place = place.set("CANTLE_PROVIDER", "litellm");
        let flags: Vec<&str> = flags
            .iter()
            .copied()
            .chain(["--max-turns", "1", "--json"])
            .collect();
        let ended = run(&place, "Hello", &flags).await;
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let answered = ended
            .stdout
            .lines()
            .find(|line| line.contains("\"model_answered\""))
            .unwrap();
        let answered: serde_json::Value = serde_json::from_str(answered).unwrap();
        // A stream has no cost but what the prices say, and those are the proxy's.
        let cost = answered.get("cost_usd").unwrap().as_f64().unwrap();
        assert!(cost > 0.0 && cost < 0.001, "{answered}");
    }
}

#[tokio::test]
async fn litellm_passes_a_scripted_server_on() {
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
            let Some(place) = litellm("scripted") else {
                return;
            };
            let flags: Vec<&str> = flags
                .iter()
                .copied()
                .chain(["--output-dir", "out"])
                .collect();
            let ended = run(&place, "Make two files", &flags).await;
            assert_eq!(
                (ended.code, &*ended.stdout),
                (Some(0), "Done.\n"),
                "{ended:?}"
            );
            assert_eq!(place.list("out"), ["a", "b", "cantle-result.json"]);
            assert_eq!(tokens(&place), (400, 60));
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
async fn litellm_fails_in_many_ways() {
    for flags in WAYS {
        for (model, code) in [
            ("mock-cwe", 3),
            ("mock-rate", 5),
            ("mock-internal", 5),
            ("mock-timeout", 5),
            ("no-such-model", 5),
        ] {
            let Some(place) = litellm(model) else { return };
            let ended = run(&place, "Hello", flags).await;
            assert_eq!(
                (ended.code, &*ended.stdout),
                (Some(code), ""),
                "{model}: {ended:?}"
            );
        }
    }
}

#[tokio::test]
async fn litellm_refuses_a_missing_and_a_wrong_key() {
    // Without a database it has no list of keys to look into, and says that in its own way.
    for (key, said) in [
        ("", "Put it into the environment as CANTLE_API_KEY."),
        ("sk-wrong-0123456789", "No connected db."),
    ] {
        let Some(place) = litellm("mock-text") else {
            return;
        };
        let ended = run(&place.set("CANTLE_API_KEY", key), "Hello", &[]).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(5), ""), "{ended:?}");
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
        assert!(
            key.is_empty() || !ended.stderr.contains(key),
            "{}",
            ended.stderr
        );
    }
}

#[tokio::test]
async fn llama_answers_noise_until_a_limit() {
    for flags in WAYS {
        let Some(place) = llama() else { return };
        let limits = [
            "--max-turns",
            "2",
            "--max-tokens",
            "8",
            "--output-dir",
            "out",
        ];
        let flags: Vec<&str> = flags.iter().chain(&limits).copied().collect();
        let ended = run(&place, "Hello", &flags).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(3), ""), "{ended:?}");
        assert!(ended.stderr.contains("· 8 out"), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn llama_refuses_a_wrong_key_and_what_does_not_fit() {
    for flags in WAYS {
        let Some(place) = llama() else { return };
        let long = "many words ".repeat(4000);
        let ended = run(&place, &long, flags).await;
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        let place = place.set("CANTLE_API_KEY", "sk-wrong");
        let ended = run(&place, "Hello", flags).await;
        assert_eq!(ended.code, Some(5), "{ended:?}");
        assert!(ended.stderr.contains("(HTTP 401)"), "{}", ended.stderr);
    }
}
