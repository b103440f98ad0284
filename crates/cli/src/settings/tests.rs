use super::*;

fn file(text: &str) -> File {
    File::parse(text).unwrap()
}

fn refusal(text: &str) -> String {
    File::parse(text).unwrap_err().to_string()
}

#[test]
fn a_file_has_a_key_for_each_setting() {
    let text = r#"
        provider = "litellm"
        base_url = "http://proxy:4000/v1"
        model = "m"
        system_prompt = "Be brief."
        max_turns = 5
        max_tokens = 1000
        context_window = 32000
        timeout = "2m"
        no_stream = true
        server = "vllm"
        stateful = false
        fallback_model = ["n", "o"]
        price_input = 3
        price_output = 15.0
        price_cache_read = 0.3
        price_cache_write = 3.75
        rpm = 60
        tpm = 100000
        policy = "network"
        allow_host = ["pypi.org", "*.debian.org"]
        limit = ["memory=2G", "wall_time=1h"]
        best_effort = false
        backend = "docker:python:3.12"
    "#;
    let expected = File {
        provider: Some(Provider::Litellm),
        api: None,
        base_url: Some("http://proxy:4000/v1".to_owned()),
        model: Some("m".to_owned()),
        system_prompt: Some("Be brief.".to_owned()),
        max_turns: Some(5),
        max_tokens: Some(1000),
        context_window: Some(32000),
        timeout: Some(Duration::from_secs(120)),
        no_stream: Some(true),
        server: Some(Server::Vllm),
        stateful: Some(false),
        fallback_model: vec!["n".to_owned(), "o".to_owned()],
        price_input: Some(3.0),
        price_output: Some(15.0),
        price_cache_read: Some(0.3),
        price_cache_write: Some(3.75),
        rpm: Some(60),
        tpm: Some(100_000),
        policy: Some(Preset::Network),
        allow_host: ["pypi.org", "*.debian.org"]
            .map(|host| host.parse().unwrap())
            .to_vec(),
        limit: ["memory=2G", "wall_time=1h"]
            .map(|limit| limit.parse().unwrap())
            .to_vec(),
        best_effort: Some(false),
        backend: Some(Place::Image("python:3.12".to_owned())),
    };
    assert_eq!(file(text), expected);
    assert_eq!(file("timeout = 90").timeout, Some(Duration::from_secs(90)));
    assert_eq!(file(""), File::default());
}

#[test]
fn an_unknown_setting_is_refused_with_those_that_exist() {
    let message = refusal("\nmodle = \"m\"\n");
    assert_eq!(
        message,
        "line 2: unknown field `modle`, expected one of `provider`, `api`, `base_url`, \
         `model`, `system_prompt`, `max_turns`, `max_tokens`, `context_window`, `timeout`, `no_stream`, \
         `server`, `stateful`, `fallback_model`, `price_input`, `price_output`, `price_cache_read`, \
         `price_cache_write`, `rpm`, `tpm`, `policy`, `allow_host`, `limit`, `best_effort`, \
         `backend`"
    );
}

#[test]
fn a_key_is_refused_and_not_shown() {
    for name in ["api_key", "OPENAI_API_KEY", "key", "auth_token", "password"] {
        let message = refusal(&format!("max_tokens = 1\n{name} = \"sk-secret\"\n"));
        assert!(
            message.contains(name) && message.contains("CANTLE_API_KEY"),
            "{message}"
        );
        assert!(!message.contains("sk-secret"), "{message}");
    }
}

#[test]
fn a_wrong_value_is_named_with_its_line() {
    assert_eq!(
        refusal("model = \"m\"\ntimeout = \"soon\""),
        "line 2: expected a time such as 300, 90s, 5m or 1h"
    );
    assert_eq!(
        refusal("max_turns = -1"),
        "line 1: invalid value: integer `-1`, expected u32"
    );
    assert_eq!(
        refusal("\nlimit = [\"ram=2G\"]"),
        "line 2: `ram=2G` is not a limit: there is no limit of this name; the limits are wall_time, cpu_time, \
         memory, processes, file_size, disk, inodes, open_files, output"
    );
    assert_eq!(
        refusal("policy = \"none\""),
        "line 1: `none` is not the name of a policy: use one of workspace, network, read_only, unconfined"
    );
    assert!(
        refusal("model = m").starts_with("line 1: "),
        "{}",
        refusal("model = m")
    );
}

fn args(provider: Option<Provider>, base_url: Option<&str>) -> ModelArgs {
    ModelArgs {
        model: None,
        provider,
        api: None,
        base_url: base_url.map(str::to_owned),
        max_tokens: None,
        context_window: None,
        no_stream: None,
        serving: ServingArgs::default(),
        record: None,
        replay: None,
    }
}

#[test]
fn an_endpoint_comes_whole_from_the_strongest_place_that_names_it() {
    let directory = file("provider = \"openai\"\nbase_url = \"http://directory/v1\"");
    let user = file("base_url = \"http://user/v1\"");
    let choice = |provider, url: Option<&str>, by_directory| EndpointChoice {
        provider,
        api: None,
        base_url: url.map(str::to_owned),
        by_directory,
    };
    let router = Some(Provider::Openrouter);
    assert_eq!(
        endpoint_choice(&args(router, None), &directory, &user),
        choice(router, None, false)
    );
    assert_eq!(
        endpoint_choice(&args(None, Some("http://flag/v1")), &directory, &user),
        choice(None, Some("http://flag/v1"), false)
    );
    assert_eq!(
        endpoint_choice(&args(None, None), &directory, &user),
        choice(Some(Provider::Openai), Some("http://directory/v1"), true)
    );
    assert_eq!(
        endpoint_choice(&args(None, None), &file("model = \"m\""), &user),
        choice(None, Some("http://user/v1"), false)
    );
}

#[test]
fn a_system_prompt_comes_from_a_file_beside_the_settings() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("prompt.md"), "Be brief.").unwrap();
    let prompt = |text| text_or_file(text, directory.path()).map_err(|error| format!("{error:#}"));
    assert_eq!(prompt("as it is"), Ok("as it is".to_owned()));
    assert_eq!(prompt("@prompt.md"), Ok("Be brief.".to_owned()));
    assert!(
        prompt("@none.md")
            .unwrap_err()
            .contains("none.md can't be read")
    );
}
