//! `cantle serve`: templates, and the packages of the code interpreter.

use std::process::Command;

use serde_json::{Value, json};

use crate::serve::serve_with;
use crate::serve_tools::Server;
use crate::support::{TestEnv, peer};

#[tokio::test]
async fn templates_are_those_of_this_server() {
    let env = TestEnv::new();
    let (server, client) = serve_with(&env, "local", &["--template", "tools=local"]).await;
    let exec = async |backend: &str| {
        let args = [
            "exec",
            "--backend",
            backend,
            "--best-effort",
            "--",
            "echo",
            "hi",
        ];
        client.run(args).await
    };
    for template in ["base", "code-interpreter-v1", "tools", "team/tools:latest"] {
        let exited = exec(&format!("remote:{template}")).await;
        assert_eq!(
            (exited.code, &*exited.stdout),
            (Some(0), "hi\n"),
            "{exited:?}"
        );
    }
    let unknown = exec("remote:toolz").await;
    assert_eq!(unknown.code, Some(125), "{unknown:?}");
    let expected = "template 'toolz' not found; this server has base, code-interpreter-v1, tools";
    assert!(unknown.stderr.contains(expected), "{unknown:?}");
    server.kill().await;

    for (template, expected) in [
        ("tools", "expected NAME=WHERE"),
        ("=local", "expected NAME=WHERE"),
        ("tools=nowhere", "nowhere"),
        ("tools=remote", "can't be served"),
    ] {
        let refused = env.run(["serve", "--template", template]).await;
        assert_eq!(refused.code, Some(2), "{template}: {refused:?}");
        assert!(refused.stderr.contains(expected), "{template}: {refused:?}");
    }
}

#[tokio::test]
async fn a_template_of_an_image_is_containers() {
    let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
    let Some([host, image]) = peer("docker", names) else {
        return;
    };
    let env = with_wheels().set("DOCKER_HOST", host);
    let prepared = env.run(PREPARE).await;
    assert_eq!(prepared.code, Some(0), "{prepared:?}");
    let template = format!("boxed=docker:{image}");
    let (server, client) = serve_with(&env, "local", &["--template", &template]).await;
    let test = async |backend: &str, condition: &str| {
        let line = ["exec", "--backend", backend, "--best-effort", "--"];
        let command = format!("test {condition}");
        client
            .run(line.into_iter().chain(["sh", "-c", &command]))
            .await
            .code
    };
    assert_eq!(test("remote:boxed", "-e /.dockerenv").await, Some(0));
    assert_eq!(test("remote:base", "-e /.dockerenv").await, Some(1));
    // The packages of the interpreter are on this machine.
    assert_eq!(test("remote:boxed", "-z \"$VIRTUAL_ENV\"").await, Some(0));
    assert_eq!(test("remote:base", "-d \"$VIRTUAL_ENV\"").await, Some(0));
    server.kill().await;
}

/// Writes wheels of the packages' names, with a value, into the current directory.
const WHEELS: &str = r#"
import zipfile
for name in ("e2b_charts", "matplotlib", "numpy", "pandas"):
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "VALUE = 42\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
"#;

const PREPARE: [&str; 3] = ["serve", "--prepare", "code-interpreter"];

/// Returns an environment in which pip finds the packages, and nothing else.
fn with_wheels() -> TestEnv {
    let env = TestEnv::new();
    let mut wheels = Command::new("python3");
    let written = wheels
        .args(["-c", WHEELS])
        .current_dir(env.path(""))
        .status();
    assert!(written.unwrap().success());
    let directory = env.path("").display().to_string();
    env.set("PIP_NO_INDEX", "1")
        .set("PIP_FIND_LINKS", directory)
}

/// Executes code in a new sandbox of a server, and returns the answer's frames.
async fn execute(server: &Server, code: &str) -> String {
    let head = "POST /sandboxes HTTP/1.1\r\nx-api-key: any\r\ncontent-type: application/json";
    let template = json!({ "templateID": "code-interpreter-v1" });
    let (status, created) = server.request(head, &template.to_string()).await;
    assert_eq!(status, 201, "{created}");
    let created: Value = serde_json::from_str(&created).unwrap();
    let text = |name: &str| created[name].as_str().unwrap();
    let head = format!(
        "POST /execute HTTP/1.1\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 49999\r\nx-access-token: {}",
        text("sandboxID"),
        text("envdAccessToken")
    );
    let (status, frames) = server
        .request(&head, &json!({ "code": code }).to_string())
        .await;
    assert_eq!(status, 200, "{frames}");
    frames
}

#[tokio::test]
async fn packages_of_the_interpreter_are_prepared_once_and_never_at_a_sandboxs_creation() {
    let env = with_wheels();
    let listen = ["--listen", "127.0.0.1:0"];
    let import = "import numpy, os\nprint(numpy.__file__, numpy.VALUE, os.path.isdir(os.environ['VIRTUAL_ENV']))";

    let server = Server::start_with(&env, listen).await;
    // This machine's Python may have numpy.
    let frames = execute(&server, "import e2b_charts").await;
    assert!(frames.contains("ModuleNotFoundError"), "{frames}");
    let advice = "`cantle serve --prepare code-interpreter` installs numpy";
    assert!(frames.contains(advice), "{frames}");
    server.stop().await;
    assert_eq!(env.list(".local/state/cantle/packages"), [""; 0]);

    let prepared = env.run(PREPARE).await;
    let listed = "e2b_charts 1.0, matplotlib 1.0, numpy 1.0, pandas 1.0\n";
    assert_eq!(
        (prepared.code, &*prepared.stdout),
        (Some(0), listed),
        "{prepared:?}"
    );
    assert!(
        prepared.stderr.contains("Installing packages: "),
        "{prepared:?}"
    );
    let again = env.run(PREPARE).await;
    assert_eq!((&*again.stdout, &*again.stderr), (listed, ""), "{again:?}");

    let server = Server::start_with(&env, listen).await;
    let frames = execute(&server, import).await;
    assert!(frames.contains("numpy.py 42 True"), "{frames}");
    let frames = execute(&server, "import none_such").await;
    assert!(
        frames.contains("ModuleNotFoundError") && !frames.contains(advice),
        "{frames}"
    );
    server.stop().await;
}
