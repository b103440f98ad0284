//! Q01–Q66 and R01–R22, R51–R70: extraction, syntax, imports, output size, execution.

use std::time::Duration;

use cantle_core::message::ToolCall;
use cantle_python::compat::mellea::{
    CapabilityPolicy, CodeCall, LegacyExecutionOptions, MelleaError, ModelOutput,
    PythonExecutionReq, Requirement, Tier, Validation, WarningCategory, extract_code,
    extract_from_call, python_code_generation_requirements,
};
use serde_json::{Value, json};

use super::{mellea, of};

fn block(code: &str) -> ModelOutput {
    format!("Here:\n```python\n{code}\n```\nDone.")
        .as_str()
        .into()
}

fn call(name: &str, arguments: Value, schema: Option<Value>) -> CodeCall {
    CodeCall {
        name: name.to_owned(),
        arguments,
        schema,
    }
}

fn calls(calls: Vec<CodeCall>) -> ModelOutput {
    ModelOutput {
        text: String::new(),
        calls,
    }
}

async fn validate(requirement: &Requirement, output: &ModelOutput) -> Validation {
    requirement.validate(&mellea(), output).await
}

fn modules(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|it| (*it).to_owned()).collect())
}

fn execution(requirement: PythonExecutionReq) -> Requirement {
    Requirement::PythonExecution(Box::new(requirement))
}

#[tokio::test]
async fn r01_to_r04_q01_to_q03_extraction() {
    let extraction = Requirement::PythonCodeExtraction;
    let found = validate(&extraction, &block("def hello_world():\n    print('hi')")).await;
    assert!(found.is_met && found.reason.contains("def hello_world"));
    let none = validate(&extraction, &"No code here.".into()).await;
    assert_eq!(
        (none.is_met, &*none.reason),
        (false, "No Python code blocks found")
    );
    assert!(validate(&extraction, &block("print('hi')")).await.is_met);
    let rst = validate(&extraction, &"``python\ndef f():\n    return 1\n``".into()).await;
    assert!(rst.is_met && rst.reason.contains("def f"), "{rst:?}");
    let several = "```python\nprint(1)\n```\nand\n```python\ndef fibonacci(n):\n    if n < 2:\n        return n\n    \
                   return fibonacci(n - 1) + fibonacci(n - 2)\n```";
    assert!(
        validate(&extraction, &several.into())
            .await
            .reason
            .contains("fibonacci")
    );
}

#[tokio::test]
async fn q04_to_q08_q63_q64_syntax() {
    let syntax = Requirement::PythonSyntaxValid;
    let valid = validate(&syntax, &block("x = 1")).await;
    assert!(valid.is_met && valid.reason.contains("valid"));
    for wrong in ["def f(:", "print((1)", "def f():\nreturn 1"] {
        let invalid = validate(&syntax, &block(wrong)).await;
        assert!(
            !invalid.is_met && invalid.reason.to_lowercase().contains("syntax error"),
            "{invalid:?}"
        );
    }
    assert!(!validate(&syntax, &"text".into()).await.is_met);
    let by_call = |code: &str| calls(vec![call("python", json!({ "code": code }), None)]);
    assert!(validate(&syntax, &by_call("x = 1\ny = 2")).await.is_met);
    assert!(!validate(&syntax, &by_call("x = (")).await.is_met);
}

#[tokio::test]
async fn q09_to_q14_output_size() {
    let limit = |chars, tier| Requirement::output_size_limit(chars, tier);
    let Ok(Requirement::OutputSizeLimit { limit_chars, .. }) = limit(5000, Tier::Static) else {
        panic!("no limit");
    };
    assert_eq!(limit_chars, 5000);
    for wrong in [0, -100] {
        let error = limit(wrong, Tier::Static).unwrap_err().to_string();
        assert!(error.contains("must be positive"), "{error}");
    }
    let printing = block("print('x' * 100)");
    assert!(
        validate(&limit(10_000, Tier::LocalUnsafe).unwrap(), &printing)
            .await
            .is_met
    );
    let exceeded = validate(&limit(10, Tier::LocalUnsafe).unwrap(), &printing).await;
    assert!(
        !exceeded.is_met && exceeded.reason.contains("exceeds"),
        "{exceeded:?}"
    );
    assert!(
        validate(&limit(10, Tier::Static).unwrap(), &printing)
            .await
            .is_met
    );
}

#[tokio::test]
async fn q15_to_q21_output_of_the_execution() {
    let on = |tier, limit| {
        PythonExecutionReq::new(tier)
            .max_output_chars(limit)
            .unwrap()
    };
    let printing = block("print('x' * 100)");
    assert!(
        validate(&execution(on(Tier::Local, Some(1000))), &printing)
            .await
            .is_met
    );
    let exceeded = validate(&execution(on(Tier::Local, Some(50))), &printing).await;
    assert!(!exceeded.is_met);
    let expected = "Output size (100 chars) exceeds limit (50). Code execution succeeded, but output validation failed.";
    assert_eq!(exceeded.reason, expected);
    assert!(
        validate(
            &execution(on(Tier::Local, None)),
            &block("print('x' * 50_000)")
        )
        .await
        .is_met
    );
    assert!(
        validate(&execution(on(Tier::Static, Some(1))), &printing)
            .await
            .is_met
    );
    for wrong in [0, -100] {
        let error = PythonExecutionReq::new(Tier::Local)
            .max_output_chars(Some(wrong))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("max_output_chars must be positive"),
            "{error}"
        );
    }
    assert!(on(Tier::Local, Some(5000)).description().contains("5000"));
    assert!(
        !on(Tier::Static, Some(5000))
            .description()
            .contains("Output limit")
    );
}

#[tokio::test]
async fn an_output_limit_counts_what_the_result_lacks() {
    let printing = block("print('é' * 100_000)");
    let limited = |limit| {
        let requirement = PythonExecutionReq::new(Tier::Local).max_output_chars(Some(limit));
        execution(requirement.unwrap())
    };
    let exceeded = validate(&limited(99_999), &printing).await;
    assert!(
        exceeded
            .reason
            .starts_with("Output size (100000 chars) exceeds limit (99999)"),
        "{exceeded:?}"
    );
    assert!(validate(&limited(100_000), &printing).await.is_met);
}

#[tokio::test]
async fn q22_to_q34_q47_q65_q66_imports() {
    let allowing = |allowed| Requirement::ImportRestrictions(allowed);
    let met = async |allowed, code: &str| validate(&allowing(allowed), &block(code)).await;
    assert!(
        met(modules(&["os", "sys"]), "import os\nimport sys")
            .await
            .is_met
    );
    let forbidden = met(modules(&["os"]), "import subprocess\nimport os").await;
    assert_eq!(
        (forbidden.is_met, &*forbidden.reason),
        (false, "Forbidden imports detected: subprocess")
    );
    assert!(met(modules(&["os"]), "x = 1\ny = 2").await.is_met);
    let any = met(None, "import socket").await;
    assert_eq!((any.is_met, &*any.reason), (true, "No import restrictions"));
    let none = met(modules(&[]), "import os").await;
    assert!(!none.is_met && none.reason.to_lowercase().contains("forbidden"));
    assert!(!met(modules(&["os"]), "import (").await.is_met);
    assert!(met(modules(&["os"]), "import os.path").await.is_met);
    assert!(!met(modules(&["os"]), "import urllib.request").await.is_met);
    let relative = met(modules(&["os"]), "from . import subprocess as sp").await;
    assert!(
        !relative.is_met && relative.reason.contains("subprocess"),
        "{relative:?}"
    );
    let description = allowing(modules(&["os", "json"])).description();
    assert!(description.contains("os, json") && description.contains("not a security boundary"));
    for (code, expected) in [
        ("import os\nprint(os.name)", true),
        ("import subprocess\nx = 1", false),
    ] {
        let output = calls(vec![call("python", json!({ "code": code }), None)]);
        let validated = validate(&allowing(modules(&["os"])), &output).await;
        assert_eq!(validated.is_met, expected);
        assert!(expected || validated.reason.contains("subprocess"));
    }
}

#[tokio::test]
async fn forbidden_modules_may_be_many() {
    // Comparing each name with the others would take too long.
    let code: String = (0..30_000)
        .map(|number| format!("import m{number}.x\n"))
        .collect();
    let restricted = Requirement::ImportRestrictions(modules(&[]));
    let refused = validate(&restricted, &block(&format!("{code}{code}"))).await;
    assert_eq!(refused.reason.matches(", ").count(), 29_999);
}

#[test]
fn q35_to_q46_the_factory() {
    let kinds = |allowed, limit, seconds, sandbox| {
        let made = python_code_generation_requirements(allowed, limit, seconds, sandbox)?;
        Ok::<_, MelleaError>(made.requirements)
    };
    let default = kinds(None, 10_000, 5, false).unwrap();
    assert!(matches!(
        &default[..],
        [
            Requirement::PythonCodeExtraction,
            Requirement::PythonSyntaxValid,
            Requirement::PythonExecution(_),
            Requirement::NoImportRestrictions,
        ]
    ));
    assert!(default[2].description().contains("validation only"));
    let all = kinds(modules(&["os"]), 5000, 7, true).unwrap();
    let (Requirement::PythonExecution(execution), Requirement::ImportRestrictions(Some(allowed))) =
        (&all[2], &all[3])
    else {
        panic!("{all:?}");
    };
    assert_eq!(execution.output_limit(), Some(5000));
    assert_eq!(execution.tier(), Tier::Docker);
    assert_eq!(execution.policy().unwrap().timeout, Duration::from_secs(7));
    assert_eq!(allowed[..], ["os"]);
    let description = execution.description();
    assert!(
        description.contains("sandbox") && description.contains("5000"),
        "{description}"
    );
    for (limit, seconds, expected) in [
        (10_000, 0, "timeout_seconds must be positive"),
        (10_000, -5, "timeout_seconds must be positive"),
        (0, 5, "output_limit_chars must be positive"),
        (-1000, 5, "output_limit_chars must be positive"),
    ] {
        let error = kinds(None, limit, seconds, false).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn q48_to_q57_code_of_tool_calls() {
    let schema = |fields: &[&str]| {
        let fields = fields
            .iter()
            .map(|it| ((*it).to_owned(), json!({ "type": "string" })));
        Some(json!({ "properties": fields.collect::<serde_json::Map<_, _>>() }))
    };
    let extract = |name, arguments, schema| extract_from_call(&call(name, arguments, schema));
    assert_eq!(
        extract("python", json!({ "code": "x = 1" }), schema(&["code"])).as_deref(),
        Some("x = 1")
    );
    assert_eq!(
        extract("bash", json!({ "command": "ls" }), schema(&["command"])).as_deref(),
        Some("ls")
    );
    for name in ["PYTHON_Interpreter", "anything"] {
        assert_eq!(
            extract(name, json!({ "code": "y" }), schema(&["code"])).as_deref(),
            Some("y")
        );
    }
    let fields = ["code", "command", "query", "script", "source"];
    for at in 0..fields.len() {
        let arguments: serde_json::Map<_, _> = fields[at..]
            .iter()
            .map(|it| ((*it).to_owned(), json!(it)))
            .collect();
        let found = extract("tool", Value::Object(arguments), schema(&fields));
        assert_eq!(found.as_deref(), Some(fields[at]));
    }
    let both = json!({ "code": "c", "query": "q" });
    assert_eq!(
        extract("search", both.clone(), schema(&["query"])).as_deref(),
        Some("q")
    );
    assert_eq!(
        extract("python", both, schema(&["code"])).as_deref(),
        Some("c")
    );
    assert_eq!(extract("tool", json!({ "name": "x" }), None), None);
    assert_eq!(extract("tool", json!({ "code": 5 }), None), None);
    assert_eq!(
        extract("tool", json!({ "code": "  x = 1\n" }), None).as_deref(),
        Some("x = 1")
    );
    for blank in ["", "  \n"] {
        assert_eq!(extract("tool", json!({ "code": blank }), None), None);
    }
}

#[test]
fn q58_to_q62_text_comes_before_tool_calls() {
    let tool = || {
        vec![call(
            "python",
            json!({ "code": "from_call = 1\nprint(from_call)" }),
            None,
        )]
    };
    let found = |text: &str| extract_code(text, &tool()).unwrap();
    assert!(found("").contains("from_call"));
    assert!(found("only words").contains("from_call"));
    assert!(found("```python\nfrom_text = 1\nprint(from_text)\n```").contains("from_text"));
    assert!(found("```\nimport os\nprint(os.name)\n```").contains("import os"));
    let both = "```\nimport generic\nprint(1)\n```\n```python\nimport tagged\nprint(1)\n```";
    assert!(found(both).contains("tagged"));
    assert!(found("```\nplain words\n```").contains("from_call"));
}

#[tokio::test]
async fn r05_to_r07_r14_r21_r22_the_static_tier_executes_nothing() {
    let default = || execution(PythonExecutionReq::default());
    assert!(validate(&default(), &block("x = 1")).await.is_met);
    assert!(!validate(&default(), &block("x = (")).await.is_met);
    assert!(
        validate(&default(), &block("while True:\n    pass"))
            .await
            .is_met
    );
    let missing = validate(&default(), &"words".into()).await;
    assert!(!missing.is_met && missing.reason.contains("Could not extract Python code"));
    let legacy = LegacyExecutionOptions {
        timeout: Some(Duration::from_secs(1)),
        ..LegacyExecutionOptions::default()
    };
    let timed = PythonExecutionReq::with_legacy(Tier::Static, None, legacy);
    let warnings = of(timed.warnings(), WarningCategory::Deprecation);
    assert!(
        warnings[0].contains("no effect on the static tier"),
        "{warnings:?}"
    );
    let restricted = PythonExecutionReq::default().allowed_imports(modules(&["os"]));
    let refused = validate(&execution(restricted), &block("import socket\nx = 1")).await;
    assert!(
        !refused.is_met && refused.reason.contains("Unauthorized imports"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn r08_to_r13_r69_r70_execution() {
    let legacy = |seconds| LegacyExecutionOptions {
        timeout: Some(Duration::from_secs(seconds)),
        allow_unsafe_execution: true,
        use_sandbox: false,
    };
    let timed = |seconds| PythonExecutionReq::with_legacy(Tier::Static, None, legacy(seconds));
    assert!(of(timed(5).warnings(), WarningCategory::Deprecation).len() >= 2);
    assert!(
        validate(&execution(timed(5)), &block("print('hi')"))
            .await
            .is_met
    );
    let raised = validate(&execution(timed(5)), &block("x = 1 / 0")).await;
    assert!(!raised.is_met && raised.reason.to_lowercase().contains("error"));
    let endless = validate(&execution(timed(1)), &block("while True:\n    pass")).await;
    assert!(
        !endless.is_met && endless.reason.contains("timed out"),
        "{endless:?}"
    );
    let invalid = validate(&execution(timed(5)), &block("x = (")).await;
    assert!(!invalid.is_met, "{invalid:?}");
    let restricted = |names: &[&str]| {
        execution(PythonExecutionReq::new(Tier::Local).allowed_imports(modules(names)))
    };
    let code = "import subprocess\nimport socket\nimport urllib";
    let refused = validate(&restricted(&["os", "sys"]), &block(code)).await;
    assert_eq!(
        refused.reason,
        "Unauthorized imports detected: subprocess, socket, urllib"
    );
    let code = "import os\nimport sys\nfrom pathlib import Path\nprint(Path('.'))";
    assert!(
        validate(&restricted(&["os", "sys", "pathlib"]), &block(code))
            .await
            .is_met
    );
    let unsafe_tier = execution(PythonExecutionReq::new(Tier::LocalUnsafe));
    assert!(
        !validate(&unsafe_tier, &block("x = 1\nraise RuntimeError(x)"))
            .await
            .is_met
    );
}

#[test]
fn r18_to_r20_r51_to_r68_tiers_legacy_arguments_and_descriptions() {
    let legacy = |tier, policy, timeout: Option<u64>, allow_unsafe_execution, use_sandbox| {
        let timeout = timeout.map(Duration::from_secs);
        let options = LegacyExecutionOptions {
            timeout,
            allow_unsafe_execution,
            use_sandbox,
        };
        PythonExecutionReq::with_legacy(tier, policy, options)
    };
    let warnings = |it: &PythonExecutionReq| {
        let all = of(it.warnings(), WarningCategory::Deprecation);
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(PythonExecutionReq::default().tier(), Tier::Static);
    for tier in Tier::ALL {
        let made = PythonExecutionReq::new(tier);
        assert_eq!((made.tier(), warnings(&made).len()), (tier, 0));
    }
    for (tier, allow_unsafe, sandbox, expected, warned) in [
        (Tier::Static, true, false, Tier::LocalUnsafe, "local_unsafe"),
        (Tier::Local, true, false, Tier::Local, ""),
        (Tier::Static, false, true, Tier::Docker, "use_sandbox"),
        (Tier::Docker, false, true, Tier::Docker, ""),
        (Tier::Local, false, true, Tier::Docker, "use_sandbox"),
        (
            Tier::DockerUnsafe,
            false,
            true,
            Tier::DockerUnsafe,
            "no effect",
        ),
        (
            Tier::DockerUnsafe,
            true,
            false,
            Tier::DockerUnsafe,
            "has no effect",
        ),
    ] {
        let made = legacy(tier, None, None, allow_unsafe, sandbox);
        assert_eq!(made.tier(), expected, "{tier} {allow_unsafe} {sandbox}");
        let warnings = warnings(&made);
        assert_eq!(
            warnings.is_empty(),
            warned.is_empty(),
            "{tier} {warnings:?}"
        );
        assert!(
            warnings.iter().all(|it| it.contains(warned)),
            "{warnings:?}"
        );
    }
    let timed = legacy(Tier::Local, None, Some(10), false, false);
    assert_eq!(timed.policy().unwrap().timeout, Duration::from_secs(10));
    assert_eq!(warnings(&timed).len(), 1);
    for tier in [Tier::LocalUnsafe, Tier::DockerUnsafe] {
        let timed = legacy(tier, None, Some(10), false, false);
        assert_eq!(timed.policy(), None);
        assert!(warnings(&timed)[0].contains(&format!("ignored for the '{tier}' tier")));
    }
    let both = legacy(Tier::Static, None, None, true, true);
    assert_eq!(both.tier(), Tier::Docker);
    assert!(warnings(&both).len() >= 2);

    let describe = |tier| PythonExecutionReq::new(tier).description();
    assert!(describe(Tier::Static).contains("validation only"));
    assert!(describe(Tier::LocalUnsafe).contains("local execution, no policy (timeout: 30s)"));
    assert!(describe(Tier::Local).contains("local execution with policy"));
    assert!(describe(Tier::DockerUnsafe).contains("sandbox execution, no policy"));
    let docker = describe(Tier::Docker);
    assert!(docker.contains("sandbox execution with policy") && docker.contains("timeout"));
    for (seconds, shown) in [(0, "0s"), (42, "42s")] {
        for tier in [Tier::Local, Tier::Docker] {
            let policy = CapabilityPolicy {
                timeout: Duration::from_secs(seconds),
                ..CapabilityPolicy::local()
            };
            let made = legacy(tier, Some(policy), None, false, false);
            assert!(made.description().contains(&format!("timeout: {shown}")));
        }
    }
}

#[tokio::test]
async fn hooks_refuse_calls_with_feedback() {
    let requirements =
        python_code_generation_requirements(modules(&["math"]), 10_000, 5, false).unwrap();
    let feedback = async |arguments: &str| {
        let call = ToolCall::new(None, "python", arguments);
        requirements.feedback(&mellea(), &call).await
    };
    assert_eq!(
        feedback(r#"{"code": "import math\nprint(math.pi)"}"#).await,
        None
    );
    let refused = feedback(r#"{"code": "import os\nprint(os.name)"}"#)
        .await
        .unwrap();
    assert!(
        refused.contains("Forbidden imports detected: os"),
        "{refused}"
    );
    let refused = feedback(r#"{"code": "print("}"#).await.unwrap();
    assert!(refused.contains("Syntax error at line 1"), "{refused}");
    assert_eq!(feedback(r#"{"path": "x"}"#).await, None);
}
