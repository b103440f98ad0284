use clap::CommandFactory as _;
use serde_json::{Value, json};

use super::*;

fn try_parse<'a>(args: impl IntoIterator<Item = &'a &'a str>) -> Result<Command, Box<clap::Error>> {
    let args = ["cantle"].iter().chain(args).map(OsString::from);
    Ok(Cli::try_parse_from(args)?.command)
}

fn run(args: &[&str]) -> Box<RunArgs> {
    match try_parse(["run"].iter().chain(args)).unwrap() {
        Command::Run(run) => run,
        other => panic!("{other:?}"),
    }
}

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn each_input_takes_one_value() {
    let args = run(&["--input", "a", "--input", "b/", "the task"]);
    assert_eq!(args.inputs.input, [PathBuf::from("a"), PathBuf::from("b/")]);
    assert_eq!(args.task.as_deref(), Some("the task"));
}

#[test]
fn commands_share_the_policy_flags() {
    let flags = [
        "--policy=network",
        "--allow-host=api.example.com,*.example.org",
        "--allow-host=example.org:8443",
        "--limit=memory=2G",
        "--limit",
        "processes=64,cpu_time=5m",
        "--best-effort",
    ];
    let flags_of = |before: &[&str], after: &[&str]| {
        let flags = match try_parse(before.iter().chain(&flags).chain(after)).unwrap() {
            Command::Run(run) => run.settings.flags,
            Command::Exec(exec) => exec.sandbox.flags,
            Command::Demo(demo) => demo.policy.flags,
            other => panic!("{other:?}"),
        };
        Value::Object(flags)
    };
    let expected = json!({
        "policy": "network",
        "allow_host": ["api.example.com", "*.example.org", "example.org:8443"],
        "limit": ["memory=2G", "processes=64", "cpu_time=5m"],
        "best_effort": true,
    });
    assert_eq!(flags_of(&["run", "task"], &[]), expected);
    assert_eq!(flags_of(&["exec"], &["--", "true"]), expected);
    assert_eq!(flags_of(&["demo"], &[]), expected);
    assert!(run(&["task"]).settings.flags.is_empty());
}

#[test]
fn invalid_policy_flags_are_refused_with_advice() {
    for (flag, expected) in [
        (
            "--policy=none",
            "[possible values: workspace, network, read_only, unconfined]",
        ),
        ("--allow-host=https://example.org/simple", "without scheme"),
        ("--allow-host=*", "name the hosts"),
        ("--limit=memory", "write NAME=VALUE"),
        (
            "--limit=ram=2G",
            "the limits are wall_time, cpu_time, memory",
        ),
        ("--limit=processes=many", "a whole number above 0"),
        ("--limit=memory=5", "the smallest limit is memory=1M"),
    ] {
        let error = try_parse(&["run", "task", flag]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn exec_does_not_parse_the_command() {
    let args = ["exec", "--timeout", "2m", "--", "ls", "--help"];
    let Command::Exec(exec) = try_parse(&args).unwrap() else {
        panic!("not exec");
    };
    assert_eq!(exec.timeout, Some(Duration::from_secs(120)));
    assert_eq!(exec.command, ["ls", "--help"]);
}

#[test]
fn serve_says_what_an_address_is() {
    for address in ["3010", "localhost:3010", ":3010"] {
        let error = try_parse(&["serve", "--listen", address]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("such as 127.0.0.1:3010"), "{error}");
    }
    assert!(try_parse(&["serve", "--listen", "[::1]:0"]).is_ok());
}

#[test]
fn serve_says_what_a_domain_is() {
    for domain in ["", "https://sbx.example.com", "*.example.com", "a b", "x."] {
        let error = try_parse(&["serve", "--domain", domain]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("such as sbx.example.com"), "{error}");
    }
    for domain in ["sbx.example.com", "localhost", "sbx.example.com:8443"] {
        assert!(try_parse(&["serve", "--domain", domain]).is_ok());
    }
}
