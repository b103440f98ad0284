//! Hostile clients, many clients, and the end of the proxy.

use std::time::Duration;

use futures_util::future::join_all;

use super::support::{SOON, Server, World, soon, status};

#[tokio::test]
async fn silent_or_slow_client_is_disconnected() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["allowed.example.com:PORT"], &server);
    settings.head = Duration::from_millis(50);
    let world = World::with(settings);
    for begun in [
        "",
        "CON",
        "GET http://allowed.example.com/ HTTP/1.1\r\nHost: a",
    ] {
        let mut client = world.connect().await;
        client.send(begun).await;
        let rest = client.rest().await;
        assert!(!rest.contains(" 200 "), "{begun}: {rest}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn idle_tunnel_is_closed() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["allowed.example.com:PORT"], &server);
    // Longer than setting up the tunnel takes.
    settings.idle = Duration::from_secs(4);
    let world = World::with(settings);
    let mut tunnel = world.connect().await;
    let head = tunnel
        .connect(&format!("allowed.example.com:{}", server.port()))
        .await;
    assert_eq!(status(&head), 200, "{head}");
    assert_eq!(tunnel.rest().await, "");
}

#[tokio::test]
async fn endless_head_is_refused() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let start = format!("GET http://allowed.example.com:{}/", server.port());
    let many: String = (0..20_000).map(|n| format!("x-{n}: {n}\r\n")).collect();
    for request in [
        format!("{start} HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(1 << 20)),
        format!("{start}{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20)),
        format!("{start} HTTP/1.1\r\n{many}\r\n"),
    ] {
        let answer = world.ask(&request).await;
        assert!(
            answer.is_empty() || matches!(status(&answer), 400 | 414 | 431),
            "{answer}"
        );
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn non_http_is_refused() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    for request in [
        "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "GET http://allowed.example.com/\r\n\r\n",
        "CONNECT  allowed.example.com:443 HTTP/1.1\r\n\r\n",
        "CONNECT allowed.example.com:443\0.evil.example.com HTTP/1.1\r\n\r\n",
        "GET http://b\u{fc}cher.example.com/ HTTP/1.1\r\n\r\n",
        "GET http://allowed.example.com/ HTTP/1.1\r\nBad Header: 1\r\n\r\n",
        "POST http://allowed.example.com/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    ] {
        let mut client = world.connect().await;
        client.send(request).await;
        client.end().await;
        let answer = client.rest().await;
        assert!(
            answer.is_empty() || matches!(status(&answer), 400 | 403),
            "{request}: {answer}"
        );
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn half_closed_client_gets_its_response() {
    let server = Server::http("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let mut client = world.connect().await;
    let request = format!(
        "GET http://allowed.example.com:{}/ HTTP/1.0\r\n\r\n",
        server.port()
    );
    client.send(&request).await;
    client.end().await;
    let answer = client.rest().await;
    assert!(
        status(&answer) == 200 && answer.ends_with("\r\n\r\nok"),
        "{answer}"
    );
}

#[tokio::test]
async fn bytes_sent_with_the_request_reach_the_tunnel() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let mut client = world.connect().await;
    let port = server.port();
    client
        .send(&format!(
            "CONNECT allowed.example.com:{port} HTTP/1.1\r\n\r\nearly"
        ))
        .await;
    client.end().await;
    let answer = client.rest().await;
    assert!(
        status(&answer) == 200 && answer.ends_with("\r\n\r\nearly"),
        "{answer}"
    );
}

#[tokio::test]
async fn two_hundred_concurrent_tunnels_work() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let tunnels = (0..200).map(async |number| {
        let mut tunnel = world.connect().await;
        let head = tunnel
            .connect(&format!("allowed.example.com:{}", server.port()))
            .await;
        assert_eq!(status(&head), 200, "{head}");
        let text = format!("tunnel {number}");
        tunnel.send(&text).await;
        assert_eq!(tunnel.receive(text.len()).await, text);
        // All tunnels are open before the first one ends.
        tunnel
    });
    let tunnels = join_all(tunnels).await;
    assert_eq!((tunnels.len(), server.connections()), (200, 200));
}

#[tokio::test]
async fn excess_connections_wait() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["allowed.example.com:PORT"], &server);
    settings.connections = 2;
    let world = World::with(settings);
    let target = format!("allowed.example.com:{}", server.port());
    let answered = (0..20).map(async |_| {
        let mut tunnel = world.connect().await;
        let head = tunnel.connect(&target).await;
        status(&head)
    });
    assert_eq!(join_all(answered).await, [200; 20]);
}

#[tokio::test]
async fn dropping_the_proxy_closes_all_connections() {
    let server = Server::echo().await;
    let mut world = World::new(&["allowed.example.com:PORT", "slow.example.com"], &server).await;
    world.names.never("slow.example.com");
    let mut tunnel = world.connect().await;
    let head = tunnel
        .connect(&format!("allowed.example.com:{}", server.port()))
        .await;
    assert_eq!(status(&head), 200, "{head}");
    let mut waiting = world.connect().await;
    waiting
        .send("CONNECT slow.example.com:443 HTTP/1.1\r\n\r\n")
        .await;
    let mut silent = world.connect().await;

    world.drop_proxy();
    for client in [&mut tunnel, &mut waiting, &mut silent] {
        assert_eq!(client.rest().await, "");
    }
    let closed = async {
        while world.try_connect().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    soon(closed).await;
}

#[tokio::test]
async fn request_to_dropped_proxy_is_cut() {
    let server = Server::echo().await;
    let mut world = World::new(&["allowed.example.com:PORT"], &server).await;
    let mut client = world.connect().await;
    client.send("CONNECT allowed.example.com:").await;
    world.drop_proxy();
    // The connection was cut, not left waiting.
    assert!(tokio::time::timeout(SOON, client.rest()).await.is_ok());
    assert_eq!(server.connections(), 0);
}

/// In a network of its own, which has public addresses, as a server's often has.
#[test]
fn own_public_addresses_are_refused() {
    const INSIDE: &str = "CANTLE_TEST_OWN_NETWORK";
    const TEST: &str = "tests::hostile::own_public_addresses_are_refused";
    if std::env::var_os(INSIDE).is_none() {
        let script = "ip link set lo up && ip address add 198.51.101.1/24 dev lo && \
                      ip address add 198.51.101.2/24 dev lo && ip -6 address add 2003::1/128 dev lo nodad && \
                      exec \"$0\" \"$@\"";
        let run = |program: &str| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--map-root-user", "--net", "sh", "-c", script, program]);
            command
        };
        if !run("true").status().is_ok_and(|status| status.success()) {
            cantle_testkit::lane::skip("no network namespace with addresses (unshare, ip)");
            return;
        }
        let this = std::env::current_exe().unwrap();
        let status = run(this.to_str().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(INSIDE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for address in ["198.51.101.1", "198.51.101.2", "2003::1"] {
            let server = Server::echo_at(address.parse().unwrap()).await;
            let mut settings = World::settings(&["own.example.com:PORT"], &server);
            settings.exempt.clear();
            let world = World::with(settings);
            world.names.set("own.example.com", &[&[address]]);
            let target = format!("own.example.com:{}", server.port());
            let head = world.connect().await.connect(&target).await;
            assert_eq!(status(&head), 403, "{address}: {head}");
            assert_eq!(server.connections(), 0);
            // Where any address can be bound, the kernel's list decides.
            for family in ["ipv4", "ipv6"] {
                let setting = format!("/proc/sys/net/{family}/ip_nonlocal_bind");
                std::fs::write(setting, "1").unwrap();
            }
        }
        let unreachable = "198.51.102.1".parse().unwrap();
        assert!(!cantle_core::network::is_own(unreachable));
    });
}
