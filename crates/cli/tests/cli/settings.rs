//! Origins of settings, and which key is sent where.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cantle_testkit::openai::{Script, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{TestEnv, wait_for_exit};
use crate::{command, finish, nothing_to_do};

async fn server() -> ScriptedServer {
    ScriptedServer::start(nothing_to_do()).await.unwrap()
}

/// Returns the model and the output limit of the last request.
fn last_request(server: &ScriptedServer) -> (Value, Value) {
    let body = server.requests().last().unwrap().body();
    (body["model"].clone(), body["max_completion_tokens"].clone())
}

async fn run(env: &TestEnv, flags: &[&str]) -> Option<i32> {
    let args = ["run", "Hello", "-q"].iter().chain(flags);
    env.run(args).await.code
}

#[tokio::test]
async fn flags_override_environment_and_files() {
    let server = server().await;
    let env = TestEnv::new();
    let url = server.url();
    env.write(
        ".config/cantle/cantle.toml",
        format!("base_url = \"{url}\"\nmodel = \"user\"\nmax_tokens = 1\nno_stream = true\n"),
    );
    assert_eq!(run(&env, &[]).await, Some(0));
    assert_eq!(last_request(&server), ("user".into(), 1.into()));
    assert_eq!(server.requests()[0].body()["stream"], false);

    env.write("cantle.toml", "model = \"directory\"\n");
    assert_eq!(env.run(["trust"]).await.code, Some(0));
    assert_eq!(run(&env, &[]).await, Some(0));
    assert_eq!(last_request(&server), ("directory".into(), 1.into()));

    let env = env
        .set("CANTLE_MODEL", "environment")
        .set("CANTLE_MAX_TOKENS", "2");
    assert_eq!(run(&env, &[]).await, Some(0));
    assert_eq!(last_request(&server), ("environment".into(), 2.into()));

    assert_eq!(run(&env, &["--model", "flag"]).await, Some(0));
    assert_eq!(last_request(&server), ("flag".into(), 2.into()));
}

#[tokio::test]
async fn each_setting_has_a_variable() {
    let script = Script::new()
        .turn(command("touch here || ulimit -n; sleep 1000"))
        .turn(finish("Woke up.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .set("CANTLE_PROVIDER", "local")
        .set("CANTLE_BASE_URL", server.url())
        .set("CANTLE_MODEL", "environment")
        .set("CANTLE_SYSTEM_PROMPT", "Speak like a pirate.")
        .set("CANTLE_MAX_TURNS", "7")
        .set("CANTLE_MAX_TOKENS", "500")
        .set("CANTLE_CONTEXT_WINDOW", "8000")
        .set("CANTLE_TIMEOUT", "6s")
        .set("CANTLE_NO_STREAM", "1")
        .set("CANTLE_POLICY", "read_only")
        .set("CANTLE_LIMIT", "open_files=100");
    let exited = env.run(["run", "Hello"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(exited.stderr.contains("└ timed out"), "{}", exited.stderr);
    assert!(exited.stderr.contains("  │ 100\n"), "{}", exited.stderr);
    let body = server.requests()[0].body();
    assert_eq!(last_request(&server), ("environment".into(), 500.into()));
    assert_eq!(body["stream"], false);
    let messages = body["messages"].to_string();
    assert!(
        messages.contains("Speak like a pirate.") && messages.contains("Turns: 7 ("),
        "{messages}"
    );

    // Invalid values of each variable are refused.
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
        let exited = env
            .command(["run", "Hello"])
            .env(format!("CANTLE_{name}"), "-1")
            .spawn();
        let exited = wait_for_exit(exited.unwrap()).await;
        assert_eq!((exited.code, &*exited.stdout), (Some(2), ""), "{name}");
        if ["MAX_TURNS", "MAX_TOKENS", "CONTEXT_WINDOW"].contains(&name) {
            let variable = format!("invalid value '-1' for 'CANTLE_{name} (--");
            assert!(exited.stderr.contains(&variable), "{exited:?}");
        }
    }
    let flag = env.run(["run", "Hello", "--max-turns=-1"]).await;
    let named = "invalid value '-1' for '--max-turns <N>'";
    assert!(flag.stderr.contains(named), "{flag:?}");
    let env = env.set("CANTLE_SERVE_LISTEN", "no-address");
    let exited = env.run(["serve"]).await;
    let named = "invalid value 'no-address' for 'CANTLE_SERVE_LISTEN (--listen <ADDRESS>)'";
    assert!(exited.stderr.contains(named), "{exited:?}");
}

#[tokio::test]
async fn an_empty_variable_counts_as_not_set() {
    let mut env = TestEnv::new();
    env.write(
        ".config/cantle/cantle.toml",
        "strict_finish = true\nmax_turns = 5\n",
    );
    for name in ["PROFILE", "STRICT_FINISH", "MAX_TURNS", "MODEL", "LIMIT"] {
        env = env.set(&format!("CANTLE_{name}"), "");
    }
    let exited = env.run(["config", "--json"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let config: Value = serde_json::from_str(&exited.stdout).unwrap();
    let values = ["strict_finish", "max_turns", "model"];
    let values = values.map(|name| config["settings"][name]["value"].clone());
    assert_eq!(values, [json!(true), json!(5), Value::Null]);

    let env = env.set("CANTLE_PACKAGE_HOST", "");
    let exited = env.run(["mcp", "test", "gone.json"]).await;
    assert!(
        exited.stderr.contains("there is no file gone.json"),
        "{exited:?}"
    );
}

#[tokio::test]
async fn an_invalid_variable_fails_only_commands_that_have_its_setting() {
    let env = TestEnv::new();
    // What other programs left is theirs.
    let temporary = env.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let env = env
        .set("TMPDIR", temporary.to_str().unwrap())
        .set("CANTLE_LIMIT", "-1");
    let gc = env.run(["gc"]).await;
    assert_eq!(gc.code, Some(0), "{gc:?}");
    let config = env.run(["config", "--limit", "processes=9"]).await;
    assert_eq!(config.code, Some(2), "{config:?}");
    assert!(
        config.stderr.contains("CANTLE_LIMIT is invalid"),
        "{config:?}"
    );
}

#[tokio::test]
async fn a_variable_against_keeping_conflicts_with_runs_that_go_on_only_if_it_is_true() {
    let env = TestEnv::new();
    let exited = async |line: &[&str], no_keep: &str| {
        let mut command = env.command(line);
        wait_for_exit(command.env("CANTLE_NO_KEEP", no_keep).spawn().unwrap()).await
    };
    for line in [
        &["run", "--resume", "last"][..],
        &["run", "--continue", "last", "x"],
        &["chat", "--continue", "last"],
    ] {
        let refused = exited(line, "1").await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let is_explained = ["--no-keep", "unset CANTLE_NO_KEEP"]
            .iter()
            .any(|words| refused.stderr.contains(words));
        assert!(is_explained, "{refused:?}");
        for no_keep in ["0", ""] {
            let unknown = exited(line, no_keep).await;
            assert_eq!(unknown.code, Some(2), "{unknown:?}");
            assert!(!unknown.stderr.contains("keep"), "{unknown:?}");
        }
    }
}

#[tokio::test]
async fn empty_flags_are_refused() {
    let env = TestEnv::new();
    // The task would go to another address otherwise.
    for flag in ["--base-url", "--model", "--effort", "--system-prompt"] {
        let exited = env.run(["config", flag, ""]).await;
        assert_eq!(exited.code, Some(2), "{exited:?}");
        assert!(exited.stderr.contains(flag), "{exited:?}");
    }
}

#[tokio::test]
async fn directories_of_files_may_have_any_name_or_be_missing() {
    let env = TestEnv::new();
    let directory = env.path(OsStr::from_bytes(b"settings-\xff"));
    let config = async |directory: &Path| {
        let mut command = env.command(["config", "--json"]);
        let command = command.env("XDG_CONFIG_HOME", directory);
        let exited = wait_for_exit(command.spawn().unwrap()).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let config: Value = serde_json::from_str(&exited.stdout).unwrap();
        config["settings"]["max_turns"]["value"].clone()
    };
    env.write(directory.join("cantle/cantle.toml"), "max_turns = 5\n");
    assert_eq!(config(&directory).await, json!(5));
    assert_eq!(config(Path::new("/dev/null")).await, Value::Null);
}

#[tokio::test]
async fn paths_in_the_users_file_are_relative_to_it() {
    let env = TestEnv::new();
    let file = "backend = 'dockerfile:box'\nread = ['tools', '/opt']\nsystem_prompt = '@prompt.md'\n\
                [profile.other]\nbackend = 'docker:alpine'\nread = ['more']\n";
    env.write(".config/cantle/cantle.toml", file);
    let config = async |flags: &[&str]| {
        let exited = env.run(["config", "--json"].iter().chain(flags)).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let config: Value = serde_json::from_str(&exited.stdout).unwrap();
        ["backend", "read", "system_prompt"].map(|name| config["settings"][name]["value"].clone())
    };
    let here = env.path(".config/cantle");
    let here = here.display();
    let prompt = json!(format!("@{here}/prompt.md"));
    let expected = [
        json!(format!("dockerfile:{here}/box")),
        json!([format!("{here}/tools"), "/opt"]),
        prompt.clone(),
    ];
    assert_eq!(config(&[]).await, expected);
    let expected = [
        json!("docker:alpine"),
        json!([format!("{here}/more")]),
        prompt,
    ];
    assert_eq!(config(&["--profile", "other"]).await, expected);
    // A flag is relative to the current directory.
    let [_, read, _] = config(&["--read", "tools"]).await;
    assert_eq!(read, json!(["tools"]));
}

#[tokio::test]
async fn user_file_is_found_by_xdg_config_home() {
    let server = server().await;
    let env = TestEnv::new();
    let file = format!("base_url = \"{}\"\nmodel = \"user\"\n", server.url());
    env.write("settings/cantle/cantle.toml", file);
    let home = env.path("settings").into_os_string().into_string().unwrap();
    let env = env.set("XDG_CONFIG_HOME", home);
    assert_eq!(env.run(["run", "Hello", "-q"]).await.code, Some(0));
}

#[tokio::test]
async fn invalid_settings_file_is_explained() {
    let env = TestEnv::new();
    let mut output = String::new();
    for file in [
        "modle = \"m\"\n",
        "api_key = \"sk-secret\"\n",
        "timeout = \"soon\"\n",
        "=",
    ] {
        env.write("cantle.toml", file);
        let exited = env.run(["run", "Hello", "--model", "m"]).await;
        assert_eq!((exited.code, &*exited.stdout), (Some(2), ""));
        output += &exited.stderr;
    }
    assert!(!output.contains("sk-secret"));
    insta::assert_snapshot!(output);
}

#[tokio::test]
async fn provider_keys_go_to_their_provider_only() {
    let server = server().await;
    let env = TestEnv::new()
        .set("OPENAI_API_KEY", "sk-openai")
        .set("LITELLM_API_KEY", "sk-litellm");
    let url = server.url();
    let sent = |server: &ScriptedServer| server.requests().last().unwrap().headers.clone();

    let args = ["run", "Hello", "-q", "--model", "m", "--base-url", &url];
    assert_eq!(env.run(args).await.code, Some(0));
    assert!(!sent(&server).contains_key("authorization"));

    let named = args.iter().copied().chain(["--provider", "litellm"]);
    assert_eq!(env.run(named.collect::<Vec<_>>()).await.code, Some(0));
    assert_eq!(sent(&server)["authorization"], "Bearer sk-litellm");

    // The environment's provider does not apply to the flag's address.
    let env = env.set("CANTLE_PROVIDER", "openai");
    assert_eq!(env.run(args).await.code, Some(0));
    assert!(!sent(&server).contains_key("authorization"));

    let env = env.set("CANTLE_API_KEY", "sk-general");
    assert_eq!(env.run(args).await.code, Some(0));
    assert_eq!(sent(&server)["authorization"], "Bearer sk-general");
}

#[tokio::test]
async fn version_and_help() {
    let env = TestEnv::new();
    let version = env.run(["--version"]).await;
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
        let help = env.run(args).await;
        assert_eq!((help.code, &*help.stderr), (Some(0), ""));
        insta::assert_snapshot!(name, help.stdout);
    }
    assert_eq!(env.run([""; 0]).await.code, Some(2));
}

#[tokio::test]
async fn shells_complete_commands_and_flags() {
    let env = TestEnv::new();
    for shell in ["bash", "zsh", "fish"] {
        let exited = env.run(["completions", shell]).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        assert!(exited.stdout.contains("workdir"), "{shell}");
    }
    let line = "source <(\"$PROGRAM\" completions bash); COMP_WORDS=(cantle run --work); COMP_CWORD=2; \
        _cantle cantle --work run; echo \"${COMPREPLY[*]}\"";
    let mut bash = env.command_of("bash");
    bash.args(["-c", line])
        .env("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let exited = wait_for_exit(bash.spawn().unwrap()).await;
    assert_eq!(exited.stdout, "--workdir\n", "{exited:?}");
}

#[tokio::test]
async fn each_command_has_a_manual_page() {
    let env = TestEnv::new();
    let exited = env.run(["man", "."]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let pages = env.list(".");
    for page in ["cantle.1", "cantle-run.1", "cantle-runs-show.1"] {
        assert!(pages.contains(&page.to_owned()), "{pages:?}");
    }
    assert!(env.read("cantle-run.1").contains(".SH OPTIONS"));
}

#[tokio::test]
async fn a_profile_is_preferred_to_the_settings_outside() {
    let env = TestEnv::new();
    let user = "max_turns = 5\neffort = 'low'\n[profile.deep]\neffort = 'high'\n[profile.fast]\nmax_turns = 3\n";
    env.write(".config/cantle/cantle.toml", user);
    env.write("cantle.toml", "[profile.deep]\neffort = 'foreign'\n");
    let config = async |flags: &[&str]| {
        let exited = env.run(["config", "--json"].iter().chain(flags)).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let config: Value = serde_json::from_str(&exited.stdout).unwrap();
        let value = |name: &str| config["settings"][name]["value"].clone();
        (
            value("max_turns"),
            value("effort"),
            config["ignored"].to_string(),
        )
    };
    let (turns, effort, ignored) = config(&["--profile", "deep"]).await;
    assert_eq!((turns, effort), (json!(5), json!("high")));
    assert!(ignored.contains("profile"), "{ignored}");
    let (turns, effort, _) = config(&["--profile", "deep", "--max-turns", "2"]).await;
    assert_eq!((turns, effort), (json!(2), json!("high")));
    let unknown = env.run(["config", "--profile", "slow"]).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(
        unknown.stderr.contains("there are deep, fast"),
        "{unknown:?}"
    );
    env.write(
        "cantle.toml",
        "[profile.deep]\n[profile.here]\neffort = 'low'\n",
    );
    let unknown = env.run(["config", "--profile", "slow", "--trust-directory"]);
    let unknown = unknown.await;
    assert!(
        unknown.stderr.contains("there are deep, fast, here"),
        "{unknown:?}"
    );
}
