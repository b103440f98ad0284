//! Where settings come from, and which key goes where.

use cantle_testkit::openai::{Script, ScriptedServer};
use serde_json::Value;

use crate::support::Place;
use crate::{command, finish, nothing_to_do};

async fn server() -> ScriptedServer {
    ScriptedServer::start(nothing_to_do()).await.unwrap()
}

/// The model and the output limit that the last request asked for.
fn asked(server: &ScriptedServer) -> (Value, Value) {
    let body = server.requests().last().unwrap().body();
    (body["model"].clone(), body["max_completion_tokens"].clone())
}

async fn run(place: &Place, flags: &[&str]) -> Option<i32> {
    let args = ["run", "Hello", "-q"].iter().chain(flags);
    place.run(args).await.code
}

#[tokio::test]
async fn a_flag_goes_before_the_environment_and_that_before_the_files() {
    let server = server().await;
    let place = Place::new();
    let url = server.url();
    place.write(
        ".config/cantle/cantle.toml",
        format!("base_url = \"{url}\"\nmodel = \"users\"\nmax_tokens = 1\nno_stream = true\n"),
    );
    assert_eq!(run(&place, &[]).await, Some(0));
    assert_eq!(asked(&server), ("users".into(), 1.into()));
    assert_eq!(server.requests()[0].body()["stream"], false);

    place.write("cantle.toml", "model = \"directorys\"\n");
    assert_eq!(run(&place, &[]).await, Some(0));
    assert_eq!(asked(&server), ("directorys".into(), 1.into()));

    let place = place
        .set("CANTLE_MODEL", "environments")
        .set("CANTLE_MAX_TOKENS", "2");
    assert_eq!(run(&place, &[]).await, Some(0));
    assert_eq!(asked(&server), ("environments".into(), 2.into()));

    assert_eq!(run(&place, &["--model", "flags"]).await, Some(0));
    assert_eq!(asked(&server), ("flags".into(), 2.into()));
}

#[tokio::test]
async fn each_setting_has_a_variable() {
    let script = Script::new()
        .turn(command("touch here || ulimit -n; sleep 1000"))
        .turn(finish("Woke up.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new()
        .set("CANTLE_PROVIDER", "local")
        .set("CANTLE_BASE_URL", server.url())
        .set("CANTLE_MODEL", "environments")
        .set("CANTLE_SYSTEM_PROMPT", "Speak like a pirate.")
        .set("CANTLE_MAX_TURNS", "7")
        .set("CANTLE_MAX_TOKENS", "500")
        .set("CANTLE_CONTEXT_WINDOW", "8000")
        .set("CANTLE_TIMEOUT", "6s")
        .set("CANTLE_NO_STREAM", "1")
        .set("CANTLE_POLICY", "read_only")
        .set("CANTLE_LIMIT", "open_files=100");
    let ended = place.run(["run", "Hello"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("└ timed out"), "{}", ended.stderr);
    assert!(ended.stderr.contains("  │ 100\n"), "{}", ended.stderr);
    let body = server.requests()[0].body();
    assert_eq!(asked(&server), ("environments".into(), 500.into()));
    assert_eq!(body["stream"], false);
    let system = body["messages"][0].to_string();
    assert!(
        system.contains("Speak like a pirate.") && system.contains("7 turns"),
        "{system}"
    );

    // Each is read: what makes no sense in it is refused.
    for name in [
        "PROVIDER",
        "BASE_URL",
        "MAX_TURNS",
        "MAX_TOKENS",
        "CONTEXT_WINDOW",
        "TIMEOUT",
        "POLICY",
        "ALLOW_HOST",
        "LIMIT",
    ] {
        let ended = place
            .command(["run", "Hello"])
            .env(format!("CANTLE_{name}"), "-1")
            .spawn();
        let ended = crate::support::ended(ended.unwrap()).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{name}");
    }
}

#[tokio::test]
async fn the_users_file_is_where_xdg_says() {
    let server = server().await;
    let place = Place::new();
    let file = format!("base_url = \"{}\"\nmodel = \"users\"\n", server.url());
    place.write("settings/cantle/cantle.toml", file);
    let home = place
        .path("settings")
        .into_os_string()
        .into_string()
        .unwrap();
    let place = place.set("XDG_CONFIG_HOME", home);
    assert_eq!(place.run(["run", "Hello", "-q"]).await.code, Some(0));
}

#[tokio::test]
async fn a_file_that_cant_be_used_says_why() {
    let place = Place::new();
    let mut told = String::new();
    for file in [
        "modle = \"m\"\n",
        "api_key = \"sk-secret\"\n",
        "timeout = \"soon\"\n",
        "=",
    ] {
        place.write("cantle.toml", file);
        let ended = place.run(["run", "Hello", "--model", "m"]).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""));
        told += &ended.stderr;
    }
    assert!(!told.contains("sk-secret"));
    insta::assert_snapshot!(told);
}

#[tokio::test]
async fn a_providers_own_key_goes_to_that_provider_alone() {
    let server = server().await;
    let place = Place::new()
        .set("OPENAI_API_KEY", "sk-openai")
        .set("LITELLM_API_KEY", "sk-litellm");
    let url = server.url();
    let sent = |server: &ScriptedServer| server.requests().last().unwrap().headers.clone();

    let args = ["run", "Hello", "-q", "--model", "m", "--base-url", &url];
    assert_eq!(place.run(args).await.code, Some(0));
    assert!(!sent(&server).contains_key("authorization"));

    let named = args.iter().copied().chain(["--provider", "litellm"]);
    assert_eq!(place.run(named.collect::<Vec<_>>()).await.code, Some(0));
    assert_eq!(sent(&server)["authorization"], "Bearer sk-litellm");

    // The environment's provider is for the environment's address.
    let place = place.set("CANTLE_PROVIDER", "openai");
    assert_eq!(place.run(args).await.code, Some(0));
    assert!(!sent(&server).contains_key("authorization"));

    let place = place.set("CANTLE_API_KEY", "sk-general");
    assert_eq!(place.run(args).await.code, Some(0));
    assert_eq!(sent(&server)["authorization"], "Bearer sk-general");
}

#[tokio::test]
async fn an_address_that_only_the_directory_names_gets_no_key() {
    let place = Place::new()
        .set("OPENAI_API_KEY", "sk-openai")
        .set("CANTLE_API_KEY", "sk-general");
    // Nobody answers there: the name is reserved for that.
    let file = "provider = \"openai\"\nbase_url = \"http://models.invalid/v1\"\nmodel = \"m\"\n";
    place.write("cantle.toml", file);
    let ended = place.run(["run", "Hello", "-q"]).await;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(
        ended
            .stderr
            .starts_with("cantle: CANTLE_API_KEY is not sent to http://models.invalid/v1: "),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn version_and_help_are_there() {
    let place = Place::new();
    let version = place.run(["--version"]).await;
    assert_eq!(version.code, Some(0));
    assert_eq!(
        version.stdout,
        format!("cantle {}\n", env!("CARGO_PKG_VERSION"))
    );
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help_run", &["run", "--help"]),
        ("help_exec", &["exec", "--help"]),
        ("help_demo", &["demo", "--help"]),
        ("help_doctor", &["doctor", "--help"]),
    ] {
        let help = place.run(args).await;
        assert_eq!((help.code, &*help.stderr), (Some(0), ""));
        insta::assert_snapshot!(name, help.stdout);
    }
    assert_eq!(place.run([""; 0]).await.code, Some(2));
}
