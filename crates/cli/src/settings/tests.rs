use cantle::core::llm::Prices;
use serde_json::json;

use super::file::{Layer, SettingsFile, parse};
use super::layers::{Layers, Origin};
use super::*;

fn layer(toml: &str) -> Layer {
    parse(toml).unwrap()
}

fn error(toml: &str) -> String {
    parse(toml).unwrap_err().to_string()
}

fn typed(toml: &str) -> Settings {
    let layers = Layers::new([(Origin::User, layer(toml))]);
    layers.typed().unwrap()
}

#[test]
fn file_has_a_key_for_each_setting() {
    let text = r#"
        provider = "litellm"
        api = "chat"
        base_url = "http://proxy.example.com:4000/v1"
        model = "m"
        system_prompt = "Be brief."
        max_turns = 5
        max_repeats = 9
        strict_finish = true
        max_tokens = 1000
        context_window = 32000
        effort = "high"
        temperature = 0.5
        vision = "on"
        param = ["top_p=0.9", '{"seed": 1, "stop": ["a,b"]}']
        timeout = "2m"
        parallel_commands = true
        tools = ["python", "web"]
        search = "searxng"
        deny_host = ["ads.example.com"]
        package = ["pandas>=2,<3"]
        package_host = ["mirror.example.org", "private"]
        refresh_packages = false
        no_stream = true
        server = "vllm"
        stateful = false
        fallback_model = ["n", "o"]
        price_input = 3
        price_output = 15.0
        price_cache_read = 0.3
        price_cache_write = 3.75
        retry_for = "2m"
        no_retry = false
        rpm = 60
        tpm = 100000
        policy = "network"
        allow_host = ["api.example.com", "*.example.org"]
        read = ["/opt/toolchain"]
        limit = ["memory=2G", "wall_time=1h"]
        best_effort = false
        backend = "docker:python:3.12"
        keep_days = 3
        keep_size = "2G"
    "#;
    let expected = Settings {
        model: ModelSettings {
            model: Some("m".to_owned()),
            provider: Some(Provider::Litellm),
            api: Some(Api::Chat),
            base_url: Some("http://proxy.example.com:4000/v1".to_owned()),
            max_tokens: Some(1000),
            context_window: Some(32000),
            effort: Some("high".to_owned()),
            temperature: Some(0.5),
            vision: Some(Switch::On),
            param: ["top_p=0.9", r#"{"seed": 1, "stop": ["a,b"]}"#]
                .map(|param| param.parse().unwrap())
                .to_vec(),
            no_stream: Some(true),
            server: Some(Server::Vllm),
            stateful: Some(false),
            fallback_model: vec!["n".to_owned(), "o".to_owned()],
            price_input: Some(3.0),
            price_output: Some(15.0),
            price_cache_read: Some(0.3),
            price_cache_write: Some(3.75),
            retry_for: Some(Duration::from_secs(120)),
            no_retry: Some(false),
            rpm: NonZeroU32::new(60),
            tpm: NonZeroU64::new(100_000),
        },
        system_prompt: Some("Be brief.".to_owned()),
        max_turns: NonZeroU32::new(5),
        max_repeats: Some(9),
        strict_finish: Some(true),
        timeout: Some(Duration::from_secs(120)),
        parallel_commands: Some(true),
        tools: vec![OptionalTool::Python, OptionalTool::Web],
        search: Some(Search::Searxng),
        packages: PackageSettings {
            package: vec!["pandas>=2,<3".parse().unwrap()],
            source: PackageSourceSettings {
                package_host: ["mirror.example.org", "private"]
                    .map(|host| host.parse().unwrap())
                    .to_vec(),
                refresh_packages: Some(false),
            },
        },
        keep: KeepSettings {
            keep_days: Some(3),
            keep_size: Some("2G".parse().unwrap()),
        },
        sandbox: SandboxSettings {
            backend: Some(BackendArg::Image("python:3.12".to_owned())),
            policy: PolicySettings {
                policy: Some(Preset::Network),
                allow_host: ["api.example.com", "*.example.org"]
                    .map(|host| host.parse().unwrap())
                    .to_vec(),
                deny_host: vec!["ads.example.com".parse().unwrap()],
                limit: ["memory=2G", "wall_time=1h"]
                    .map(|limit| limit.parse().unwrap())
                    .to_vec(),
                read: vec!["/opt/toolchain".into()],
                best_effort: Some(false),
            },
        },
    };
    assert_eq!(typed(text), expected);
    assert_eq!(layer(text).len(), file::names().len());
    assert_eq!(typed("timeout = 90").timeout, Some(Duration::from_secs(90)));
    assert_eq!(typed(""), Settings::default());
}

#[test]
fn unknown_setting_is_refused_with_the_known_ones() {
    assert_eq!(
        error("\nmodle = \"m\"\n"),
        "line 2: there is no setting `modle`; the settings are model, provider, api, base_url, max_tokens, \
         context_window, effort, temperature, param, vision, no_stream, server, stateful, fallback_model, retry_for, no_retry, \
         price_input, price_output, price_cache_read, price_cache_write, rpm, tpm, system_prompt, \
         max_turns, max_repeats, strict_finish, timeout, parallel_commands, tools, search, package, package_host, refresh_packages, keep_days, keep_size, backend, policy, allow_host, deny_host, limit, read, best_effort"
    );
}

#[test]
fn keys_are_refused_and_not_shown() {
    for name in ["api_key", "OPENAI_API_KEY", "key", "auth_token", "password"] {
        let message = error(&format!("max_tokens = 1\n{name} = \"sk-secret\"\n"));
        assert!(
            message.contains(name) && message.contains("CANTLE_API_KEY"),
            "{message}"
        );
        assert!(!message.contains("sk-secret"), "{message}");
    }
    let misspelled = error("max_token = 1000");
    assert!(misspelled.contains("there is no setting"), "{misspelled}");
}

#[test]
fn invalid_value_is_refused_with_its_line() {
    for (text, expected) in [
        (
            "model = \"m\"\ntimeout = \"soon\"",
            "line 2: `timeout`: expected a time such as 300, 90s, 5m or 1h",
        ),
        (
            "max_turns = -1",
            "line 1: `max_turns`: invalid value: integer `-1`, expected a nonzero u32",
        ),
        (
            "rpm = 0",
            "line 1: `rpm`: invalid value: integer `0`, expected a nonzero u32",
        ),
        (
            "temperature = -1",
            "line 1: `temperature`: expected a number from 0, such as 0.7",
        ),
        (
            "param = [\"top_p=high\"]",
            "line 1: `param`: expected NAME=JSON, such as top_p=0.9 or user=\"\\\"me\\\"\", or a JSON object",
        ),
        (
            "param = ['{\"top_p\": 1, \"Api-Key\": \"sk-secret\"}']",
            "line 1: `param`: `Api-Key`: keys do not belong in parameters; set CANTLE_API_KEY in the environment",
        ),
        (
            "price_input = -1",
            "line 1: `price_input`: expected US dollars for a million tokens, such as 0.25",
        ),
        (
            "policy = \"none\"",
            "line 1: `policy`: `none` is not the name of a policy: use one of workspace, network, read_only, \
             unconfined",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
    let message = error("\nlimit = [\"ram=2G\"]");
    assert!(
        message.starts_with("line 2: `limit`: `ram=2G` is not a limit"),
        "{message}"
    );
    let message = error("model = m");
    assert!(message.starts_with("line 1: "), "{message}");
}

#[test]
fn settings_that_belong_together_come_from_one_layer() {
    let layers = Layers::new([
        (
            Origin::Flag,
            layer("price_input = 3\nprice_output = 15\nrpm = 60"),
        ),
        (
            Origin::Directory,
            layer("provider = 'openai'\nmodel = 'directory'"),
        ),
        (
            Origin::User,
            layer(
                "base_url = 'http://user.example.com/v1'\nmodel = 'user'\nprice_input = 1\nprice_cache_read = 0.1\n\
                 rpm = 5\ntpm = 7",
            ),
        ),
    ]);
    let expected = json!({
        "provider": "openai",
        "model": "directory",
        "price_input": 3.0,
        "price_output": 15.0,
        "rpm": 60,
        "tpm": 7,
    });
    assert_eq!(Value::Object(layers.merged()), expected);
    for (name, origin) in [
        ("base_url", Some(Origin::Directory)),
        ("price_cache_read", Some(Origin::Flag)),
        ("tpm", Some(Origin::User)),
        ("api", None),
    ] {
        assert_eq!(layers.origin(name), origin, "{name}");
    }
}

#[test]
fn settings_of_an_endpoint_do_not_apply_to_one_that_a_stronger_layer_names() {
    let of_user =
        "provider = 'openai'\napi = 'responses'\nserver = 'vllm'\nstateful = true\nrpm = 5";
    for (flags, expected) in [
        ("", json!(["responses", "vllm", true, 5])),
        ("model = 'm'", json!(["responses", "vllm", true, 5])),
        ("provider = 'anthropic'", json!([null, null, null, 5])),
        (
            "base_url = 'http://models.example.com/v1'\napi = 'chat'",
            json!(["chat", null, null, 5]),
        ),
    ] {
        let layers = Layers::new([(Origin::Flag, layer(flags)), (Origin::User, layer(of_user))]);
        let merged = layers.merged();
        let values = ["api", "server", "stateful", "rpm"].map(|name| merged.get(name));
        assert_eq!(json!(values), expected, "{flags}");
    }
    // A variable is for whatever endpoint is in use.
    let api = Layers::new([
        (
            Origin::Flag,
            layer("base_url = 'http://models.example.com/v1'"),
        ),
        (Origin::Environment, layer("api = 'responses'")),
    ]);
    assert_eq!(api.origin("api"), Some(Origin::Environment));
    // A stronger layer may describe the endpoint of a weaker one.
    let api = Layers::new([
        (Origin::Environment, layer("api = 'responses'")),
        (Origin::User, layer("provider = 'litellm'")),
    ]);
    assert_eq!(api.origin("api"), Some(Origin::Environment));
}

#[test]
fn prices_need_input_and_output() {
    let prices = |toml| {
        typed(toml)
            .model
            .prices()
            .map_err(|error| error.to_string())
    };
    assert_eq!(prices(""), Ok(None));
    assert_eq!(
        prices("price_input = 3\nprice_output = 15"),
        Ok(Some(Prices::per_million(3.0, 15.0)))
    );
    let cached = Prices::per_million(1.0, 2.0).with_cache_per_million(0.1, 1.0);
    assert_eq!(
        prices("price_input = 1\nprice_output = 2\nprice_cache_read = 0.1"),
        Ok(Some(cached))
    );
    for incomplete in [
        "price_input = 3",
        "price_output = 3",
        "price_cache_write = 3",
    ] {
        assert_eq!(
            prices(incomplete),
            Err("prices need both `price_input` and `price_output`".to_owned())
        );
    }
}

#[test]
fn durations_have_units() {
    let parsed = ["300", "90s", "1.5m", "1h", " 5m "].map(|text| parse_duration(text).unwrap());
    assert_eq!(parsed, [300, 90, 90, 3600, 300].map(Duration::from_secs));
    for text in ["", "5 m", "-1", "0", "1d", "m", "inf", "NaN", "1e30h"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn profiles_are_tables_of_settings() {
    let text = "model = 'm'\n[profile.fast]\nmodel = 'small'\neffort = 'low'\n[profile.deep]\neffort = 'high'";
    let profiles = SettingsFile::parse(text).unwrap().profiles;
    let profiles = serde_json::to_value(profiles).unwrap();
    let expected = json!({"fast": {"model": "small", "effort": "low"}, "deep": {"effort": "high"}});
    assert_eq!(profiles, expected);
    let unknown = error("[profile.fast]\nmodle = 'm'");
    assert!(unknown.contains("profile `fast`"), "{unknown}");
    assert!(error("[profile.fast]\napi_key = 'sk-x'").contains("profile `fast`"));
}
