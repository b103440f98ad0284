//! Hosts that are reached through the sandbox's proxy.

use cantle_backends_local::LocalBackend;
use cantle_core::policy::{HostPattern, Network, Policy};
use cantle_core::sandbox::Backend;
use cantle_testkit::lane;
use serde_json::json;
use url::Url;

use super::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn allowed_hosts_are_reached_through_the_sandbox_s_proxy() {
    reach_allowed_hosts(&LocalBackend::new(), Policy::workspace()).await;
}

/// Reaches a host that is allowed, and the sandbox's own servers, but no other host.
pub(crate) async fn reach_allowed_hosts(backend: &dyn Backend, mut policy: Policy) {
    let Ok(index) = std::env::var("CANTLE_TEST_INDEX") else {
        return lane::skip("the peer index is not available");
    };
    let mut package = Url::parse(&index).unwrap();
    package
        .path_segments_mut()
        .unwrap()
        .pop_if_empty()
        .extend(["iniconfig", ""]);
    let port = package.port_or_known_default().unwrap();
    // An index is often a mirror in a private network.
    let host = format!("{}:{port},private", package.host_str().unwrap());
    let host: HostPattern = host.parse().unwrap();
    policy.network = Some(Network::Hosts(vec![host]));
    // The mirror's certificate may be of an authority that Chromium does not know.
    let configured =
        |tools: cantle_browser::BrowserTools| tools.extra_args(["--ignore-certificate-errors"]);
    let Some(fixture) = Fixture::open_in(backend, policy, configured).await else {
        return;
    };
    let url = json!({"url": package.as_str()});
    let page = fixture.call("_navigate", url).await;
    assert!(page.contains("iniconfig-2.0.0"), "{page}");

    // Servers in the sandbox are reached without the proxy.
    let page = fixture.navigate("/second").await;
    assert!(page.contains("Second page"), "{page}");
    let refused = fixture
        .refused("_navigate", json!({"url": "https://example.com/"}))
        .await;
    assert!(
        refused.contains("does not allow `example.com` (port 443)"),
        "{refused}"
    );
    // A page that goes elsewhere meets the proxy.
    let script = json!({"script": "location.href = 'http://example.com/'; 0"});
    fixture.call("_evaluate_js", script).await;
    let answer = fixture.call("_snapshot", json!({})).await;
    assert!(
        answer.contains("<url>http://example.com/</url>"),
        "{answer}"
    );
    assert!(answer.contains("is not allowed"), "{answer}");
    fixture.close().await;
}
