//! How a model is asked: prices, limits, other models, and servers that their address does not tell.

use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ServerOptions, Turn, Usage};
use serde_json::{Value, json};

use crate::support::{Ended, Place};
use crate::{command, finish, nothing_to_do};

/// Runs a task against this server.
async fn ran(options: impl Into<ServerOptions>, flags: &[&str]) -> (ScriptedServer, Place, Ended) {
    let server = ScriptedServer::start(options).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let task = ["run", "Do nothing", "--output-dir", "out"];
    let ended = place.run(task.iter().chain(flags)).await;
    (server, place, ended)
}

fn bodies(server: &ScriptedServer) -> Vec<Value> {
    server.requests().iter().map(|it| it.body()).collect()
}

#[tokio::test]
async fn given_prices_make_costs_and_a_budget_of_money() {
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
    let (_server, place, ended) = ran(script, &prices).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let costs = place.result("out");
    let costs = costs
        .pointer("/ledger/model_calls")
        .unwrap()
        .as_array()
        .unwrap();
    let costs: Vec<_> = costs.iter().map(|call| call["cost_usd"].clone()).collect();
    assert_eq!(costs, [json!(2.1), json!(2.1)]);

    let spent = work.turn(command("true").usage(usage)).repeat_last();
    let budget = [&prices[..], &["--budget-usd", "3"]].concat();
    let (_server, _place, ended) = ran(spent, &budget).await;
    assert_eq!(ended.code, Some(3), "{ended:?}");
}

#[tokio::test]
async fn another_model_answers_where_the_first_is_not_there() {
    let missing = Fault::Reply(Reply::error(404));
    let none = Script::new().turn(Turn::text("").fault_always(missing));
    let options = ServerOptions::new(none.clone())
        .model("second", none)
        .model("third", nothing_to_do());
    let others = ["--fallback-model", "second", "--fallback-model", "third"];
    let (server, place, ended) = ran(options, &others).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let models: Vec<_> = bodies(&server)
        .iter()
        .map(|it| it["model"].clone())
        .collect();
    assert_eq!(models, ["scripted", "second", "third"]);
    let result = place.result("out");
    let served_by = result.pointer("/ledger/model_calls/0/served_by").unwrap();
    assert_eq!(served_by, "third");
}

#[tokio::test]
async fn refusals_for_the_rate_are_waited_out_under_a_limit() {
    let refused = || Fault::Reply(Reply::error(429).header("retry-after", "0"));
    let turn = finish("Done.", &[]);
    // More often than a client without a limit would try.
    let script = Script::new().turn((0..3).fold(turn, |turn, _| turn.fault(refused())));
    let (server, _place, ended) = ran(script, &["--rpm", "6000", "--tpm", "100000000"]).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "Done.\n"),
        "{ended:?}"
    );
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn a_named_server_gets_requests_as_it_wants_them() {
    let limits = ["--max-tokens", "4000", "--context-window", "4200"];
    let vllm = [&limits[..], &["--server", "vllm"]].concat();
    let (server, _place, ended) = ran(nothing_to_do(), &vllm).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // What the window leaves.
    let limit = bodies(&server)[0]["max_completion_tokens"]
        .as_u64()
        .unwrap();
    assert!((100..4000).contains(&limit), "{limit}");

    let ollama = [&limits[..], &["--server", "ollama"]].concat();
    let (server, _place, _ended) = ran(nothing_to_do(), &ollama).await;
    assert_eq!(bodies(&server)[0]["max_tokens"], 4000);
}

#[tokio::test]
async fn a_provider_keeps_the_conversation_where_it_can() {
    let script = || {
        Script::new()
            .turn(command("true"))
            .turn(finish("Done.", &[]))
    };
    let stateful = ["--stateful", "--api", "responses"];
    let (server, _place, ended) = ran(script(), &stateful).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
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

    let (server, _place, ended) = ran(script(), &["--stateful"]).await;
    assert_eq!(
        (ended.code, &*ended.stderr, server.requests().len()),
        (
            Some(2),
            "cantle: --stateful is for --api responses: no other provider keeps conversations\n",
            0
        )
    );
}
