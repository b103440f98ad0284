//! Chromium in a container, which sees this machine's programs and has no network but the sandbox's proxy.

use std::process::Command;

use cantle_backends_docker::DockerBackend;
use cantle_core::policy::{Network, Policy, Strictness};
use cantle_core::sandbox::{SandboxExt as _, SandboxPath};
use cantle_testkit::lane;
use serde_json::json;

use super::network::reach_allowed_hosts;
use super::{Fixture, has_chromium, reference};

/// Directories of Chromium, its libraries and its fonts.
const DIRECTORIES: [&str; 3] = ["/etc/fonts", "/usr/lib", "/usr/share"];

/// A running container, removed on drop.
struct Container {
    host: String,
    id: String,
}

impl Container {
    /// Starts a container of an ordinary user; `None` without an engine.
    fn start() -> Option<Self> {
        let names = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"];
        let [Ok(host), Ok(image)] = names.map(std::env::var) else {
            lane::skip("there is no container engine");
            return None;
        };
        let mounts = DIRECTORIES
            .map(|path| format!("--mount=type=bind,source={path},target={path},readonly"));
        let mut docker = Command::new("docker");
        docker
            .args(["--host", &host, "run", "--detach", "--network=none"])
            .args(["--user=1000", "--workdir=/tmp"])
            .args(mounts)
            .args([&*image, "sleep", "1000"]);
        let output = docker.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Some(Self { host, id })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut docker = Command::new("docker");
        docker.args(["--host", &self.host, "rm", "--force", &self.id]);
        let _ = docker.output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_in_a_container_works_as_in_a_sandbox_of_this_machine() {
    if !lane::is_full() {
        return lane::skip("it belongs to the full lane");
    }
    // Its package brings the directories.
    if !has_chromium() {
        return;
    }
    let Some(container) = Container::start() else {
        return;
    };
    let backend = DockerBackend::attach(&container.id).with_host(&container.host);
    let mut policy = Policy::unconfined();
    policy.strictness = Strictness::Strict;
    reach_allowed_hosts(&backend, policy.clone()).await;

    policy.network = Some(Network::Off);
    let Some(fixture) = Fixture::open_in(&backend, policy, |tools| tools).await else {
        return;
    };
    let form = fixture.navigate("/form").await;
    let name = json!({"ref": reference(&form, "Name\""), "text": "Ada"});
    fixture.call("_input_text", name).await;
    let send = json!({"ref": reference(&form, "Send")});
    let answer = fixture.call("_click", send).await;
    assert!(answer.contains("name=Ada"), "{answer}");

    let page = fixture.navigate("/").await;
    let file = json!({"ref": reference(&page, "Get the file")});
    let got = fixture.call("_click", file).await;
    fixture
        .until("Downloaded `downloads/file.bin` (1000 bytes).", got)
        .await;
    let path = SandboxPath::new("downloads/file.bin").unwrap();
    let downloaded = fixture.sandbox.read_bytes(&path, 2000).await.unwrap();
    assert_eq!(downloaded.len(), 1000);
    fixture.call("_screenshot", json!({})).await;
    let path = SandboxPath::new("downloads/screenshot.png").unwrap();
    let image = fixture.sandbox.read_bytes(&path, 1 << 20).await.unwrap();
    assert!(image.starts_with(b"\x89PNG"));
    fixture.close().await;
}
