//! Settings of model calls: prices, rate limits, fallback models and server types.

use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ServerOptions, Turn, Usage};
use serde_json::{Value, json};

use crate::support::{Exited, TestEnv};
use crate::{DOT, command, finish, nothing_to_do};

/// Runs a task against a scripted server.
async fn run(
    options: impl Into<ServerOptions>,
    flags: &[&str],
) -> (ScriptedServer, TestEnv, Exited) {
    let server = ScriptedServer::start(options).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let task = ["run", "Do nothing", "--output-dir", "out"];
    let exited = env.run(task.iter().chain(flags)).await;
    (server, env, exited)
}

fn bodies(server: &ScriptedServer) -> Vec<Value> {
    server.requests().iter().map(|it| it.body()).collect()
}

#[tokio::test]
async fn prices_give_costs_and_a_cost_budget() {
    let usage = Usage::new(1_000_000, 100_000).cached(500_000);
    let work = Script::new().turn(command("true").usage(usage));
    let script = work.clone().turn(finish("Done.", &[]).usage(usage));
    let prices = [
        "--price-input",
        "2",
        "--price-output",
        "$10",
        "--price-cache-read",
        "0.2",
    ];
    let (_server, env, exited) = run(script, &prices).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let costs = env.result("out");
    let costs = costs
        .pointer("/ledger/model_calls")
        .unwrap()
        .as_array()
        .unwrap();
    let costs: Vec<_> = costs.iter().map(|call| call["cost_usd"].clone()).collect();
    assert_eq!(costs, [json!(2.1), json!(2.1)]);

    let spent = work.turn(command("true").usage(usage)).repeat_last();
    let budget = [&prices[..], &["--budget-usd", "3"]].concat();
    let (_server, _place, exited) = run(spent, &budget).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
}

#[tokio::test]
async fn fallback_models_are_tried_in_order() {
    let missing = Fault::Reply(Reply::error(404));
    let none = Script::new().turn(Turn::text("").fault_always(missing));
    let options = ServerOptions::new(none.clone())
        .model("second", none)
        .model("third", nothing_to_do());
    let others = ["--fallback-model", "second", "--fallback-model", "third"];
    let (server, env, exited) = run(options, &others).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let models: Vec<_> = bodies(&server)
        .iter()
        .map(|it| it["model"].clone())
        .collect();
    assert_eq!(models, ["scripted", "second", "third"]);
    let result = env.result("out");
    let served_by = result.pointer("/ledger/model_calls/2/served_by").unwrap();
    assert_eq!(served_by, "third");
}

#[tokio::test]
async fn rate_limit_waits_out_refusals() {
    let refused = || Fault::Reply(Reply::error(429).header("retry-after", "0"));
    let turn = finish("Done.", &[]);
    let script = Script::new().turn((0..3).fold(turn, |turn, _| turn.fault(refused())));
    let (server, _place, exited) = run(script, &["--rpm", "6000", "--tpm", "100000000"]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "Done.\n"),
        "{exited:?}"
    );
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn server_type_adapts_requests() {
    let limits = ["--max-tokens", "4000", "--context-window", "4200"];
    let vllm = [&limits[..], &["--server", "vllm"]].concat();
    let (server, _place, exited) = run(nothing_to_do(), &vllm).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    // The rest of the context window.
    let limit = bodies(&server)[0]["max_completion_tokens"]
        .as_u64()
        .unwrap();
    assert!((100..4000).contains(&limit), "{limit}");

    let ollama = [&limits[..], &["--server", "ollama"]].concat();
    let (server, _place, _ended) = run(nothing_to_do(), &ollama).await;
    assert_eq!(bodies(&server)[0]["max_tokens"], 4000);
}

#[tokio::test]
async fn stateful_conversation_is_stored_by_the_provider() {
    let script = || {
        Script::new()
            .turn(command("true"))
            .turn(finish("Done.", &[]))
    };
    let stateful = ["--stateful", "--api", "responses"];
    let (server, _place, exited) = run(script(), &stateful).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let bodies = bodies(&server);
    assert_eq!(
        (&bodies[0]["store"], &bodies[1]["store"]),
        (&json!(true), &json!(true))
    );
    assert!(
        bodies[1]["previous_response_id"].is_string(),
        "{}",
        bodies[1]
    );

    let (server, _place, exited) = run(script(), &["--stateful"]).await;
    assert_eq!(
        (exited.code, &*exited.stderr, server.requests().len()),
        (
            Some(2),
            "cantle: --stateful needs --api responses: no other provider stores conversations\n",
            0
        )
    );
}

#[tokio::test]
async fn effort_temperature_and_parameters_are_sent() {
    let flags = ["--temperature", "0.2", "--param", "seed=7"];
    for (api, effort, expected) in [
        ("chat", "/reasoning_effort", "high"),
        ("responses", "/reasoning/effort", "high"),
        ("messages", "/output_config/effort", "high"),
    ] {
        let flags = [&flags[..], &["--effort", "high", "--api", api]].concat();
        let (server, _env, exited) = run(nothing_to_do(), &flags).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let body = &bodies(&server)[0];
        assert_eq!(
            (body.pointer(effort), &body["temperature"], &body["seed"]),
            (Some(&expected.into()), &json!(0.2), &json!(7)),
            "{api}"
        );
    }
    let twice = [&flags[..], &["--param", r#"{"temperature": 1}"#]].concat();
    let (server, _env, exited) = run(nothing_to_do(), &twice).await;
    assert_eq!(
        (exited.code, &*exited.stderr, server.requests().len()),
        (
            Some(2),
            "cantle: the temperature is set twice: as an option and as the extra parameter `temperature`\n",
            0
        )
    );
}

#[tokio::test]
async fn images_are_part_of_the_task() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write("dot.gif", DOT);
    let exited = env
        .run([
            "run",
            "What is this?",
            "--image",
            "dot.gif",
            "--image",
            "dot.gif",
        ])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let bodies = bodies(&server);
    let content = bodies[0].pointer("/messages/1/content").unwrap();
    let kinds: Vec<_> = content
        .as_array()
        .unwrap()
        .iter()
        .map(|part| &part["type"])
        .collect();
    assert_eq!(kinds, ["text", "image_url", "image_url"], "{content}");
    let url = content.pointer("/1/image_url/url").unwrap();
    assert!(
        url.as_str().unwrap().starts_with("data:image/gif;base64,"),
        "{url}"
    );

    env.write("notes.txt", "no image");
    for (flags, message) in [
        (
            &["--image", "notes.txt"][..],
            "cantle: --image notes.txt: expected PNG, JPEG, GIF, WebP or BMP: not a supported image: the bytes \
             are of no known type\n",
        ),
        (
            &["--image", "missing.png"],
            "cantle: --image missing.png: No such file or directory (os error 2)\n",
        ),
        (
            &["--image", "dot.gif", "--vision", "off"],
            "cantle: scripted does not accept images, so --image can't be used. If it does, set --vision on\n",
        ),
    ] {
        let exited = env.run(["run", "Hello"].iter().chain(flags)).await;
        assert_eq!((exited.code, &*exited.stderr), (Some(2), message));
    }
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn vision_adds_the_tool_that_views_images() {
    for (flags, has_tool) in [
        (&[][..], false),
        (&["--vision", "on"], true),
        (&["--vision", "off"], false),
    ] {
        let (server, _env, exited) = run(nothing_to_do(), flags).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let tools = bodies(&server)[0]["tools"].to_string();
        assert_eq!(tools.contains("view_image"), has_tool, "{flags:?}");
    }
}
