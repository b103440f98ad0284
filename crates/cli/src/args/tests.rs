//! What is read from a command line.

use super::*;

fn run(args: &[&str]) -> Box<RunArgs> {
    let args = ["cantle", "run"].iter().chain(args).map(OsString::from);
    match try_parse(args).unwrap() {
        Command::Run(run) => run,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn inputs_are_one_a_flag_so_that_the_task_may_follow() {
    let args = run(&["--input", "a", "--input", "b/", "the task"]);
    assert_eq!(args.input, [PathBuf::from("a"), PathBuf::from("b/")]);
    assert_eq!(args.task.as_deref(), Some("the task"));
}

#[test]
fn the_policy_is_the_same_for_all_that_runs_commands() {
    let flags = [
        "--policy=network",
        "--allow-host=pypi.org,*.debian.org",
        "--allow-host=example.org:8443",
        "--limit=memory=2G",
        "--limit",
        "processes=64,cpu_time=5m",
        "--best-effort",
    ];
    let parsed = |before: &[&str], after: &[&str]| {
        let args = before.iter().chain(&flags).chain(after);
        match try_parse(["cantle"].iter().chain(args).map(OsString::from)).unwrap() {
            Command::Run(run) => run.policy,
            Command::Exec(exec) => exec.policy,
            Command::Demo(demo) => demo.policy,
            other => panic!("{other:?}"),
        }
    };
    let hosts = ["pypi.org", "*.debian.org", "example.org:8443"];
    let limits = ["memory=2G", "processes=64", "cpu_time=5m"];
    let expected = PolicyArgs {
        policy: Some(Preset::Network),
        allow_host: hosts.map(|host| host.parse().unwrap()).to_vec(),
        limit: limits.map(|limit| limit.parse().unwrap()).to_vec(),
        best_effort: Some(true),
    };
    assert_eq!(parsed(&["run", "task"], &[]), expected);
    assert_eq!(parsed(&["exec"], &["--", "true"]), expected);
    assert_eq!(parsed(&["demo"], &[]), expected);
    assert_eq!(run(&["task"]).policy, PolicyArgs::default());
}

#[test]
fn what_makes_no_sense_in_a_policy_is_refused_with_what_does() {
    for (flag, said) in [
        (
            "--policy=none",
            "[possible values: workspace, network, read_only, unconfined]",
        ),
        ("--allow-host=https://pypi.org/simple", "without scheme"),
        ("--allow-host=*", "name the hosts"),
        ("--limit=memory", "write NAME=VALUE"),
        (
            "--limit=ram=2G",
            "the limits are wall_time, cpu_time, memory",
        ),
        ("--limit=processes=many", "a whole number above 0"),
    ] {
        let args = ["cantle", "run", "task", flag].map(OsString::from);
        let error = try_parse(args).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn times_have_units() {
    let parsed = ["300", "90s", "1.5m", "1h", " 5m "].map(|text| parse_duration(text).unwrap());
    assert_eq!(parsed, [300, 90, 90, 3600, 300].map(Duration::from_secs));
    for text in ["", "5 m", "-1", "0", "1d", "m", "inf", "NaN", "1e30h"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn what_exec_gets_after_the_dashes_is_not_read() {
    let args = ["cantle", "exec", "--timeout", "2m", "--", "ls", "--help"];
    let Command::Exec(exec) = try_parse(args.map(OsString::from)).unwrap() else {
        panic!("not exec");
    };
    assert_eq!(exec.timeout, Some(Duration::from_secs(120)));
    assert_eq!(exec.command, ["ls", "--help"]);
}
