//! Clients that mean no good, many of them, and the end.

use std::time::Duration;

use futures_util::future::join_all;

use super::support::{SOON, Server, World, soon, status};

#[tokio::test]
async fn who_sends_nothing_or_too_slowly_is_cut_off() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["allowed.test:PORT"], &server);
    settings.head = Duration::from_millis(50);
    let world = World::with(settings);
    for begun in ["", "CON", "GET http://allowed.test/ HTTP/1.1\r\nHost: a"] {
        let mut client = world.connect().await;
        client.send(begun).await;
        let rest = client.rest().await;
        assert!(!rest.contains(" 200 "), "{begun}: {rest}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_tunnel_in_which_nothing_moves_is_ended() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["allowed.test:PORT"], &server);
    // Longer than it may take to come about.
    settings.idle = Duration::from_secs(4);
    let world = World::with(settings);
    let mut tunnel = world.connect().await;
    let head = tunnel
        .connect(&format!("allowed.test:{}", server.port()))
        .await;
    assert_eq!(status(&head), 200, "{head}");
    assert_eq!(tunnel.rest().await, "");
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.test:PORT"], &server).await;
    let start = format!("GET http://allowed.test:{}/", server.port());
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
async fn what_is_no_http_is_refused() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.test:PORT"], &server).await;
    for request in [
        "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "GET http://allowed.test/\r\n\r\n",
        "CONNECT  allowed.test:443 HTTP/1.1\r\n\r\n",
        "CONNECT allowed.test:443\0.evil.test HTTP/1.1\r\n\r\n",
        "GET http://b\u{fc}cher.test/ HTTP/1.1\r\n\r\n",
        "GET http://allowed.test/ HTTP/1.1\r\nBad Header: 1\r\n\r\n",
        "POST http://allowed.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
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
async fn a_client_that_ends_its_side_early_still_gets_its_answer() {
    let server = Server::http("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let world = World::new(&["allowed.test:PORT"], &server).await;
    let mut client = world.connect().await;
    let request = format!(
        "GET http://allowed.test:{}/ HTTP/1.0\r\n\r\n",
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
    let world = World::new(&["allowed.test:PORT"], &server).await;
    let mut client = world.connect().await;
    let port = server.port();
    client
        .send(&format!(
            "CONNECT allowed.test:{port} HTTP/1.1\r\n\r\nearly"
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
async fn two_hundred_tunnels_at_once() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.test:PORT"], &server).await;
    let tunnels = (0..200).map(async |number| {
        let mut tunnel = world.connect().await;
        let head = tunnel
            .connect(&format!("allowed.test:{}", server.port()))
            .await;
        assert_eq!(status(&head), 200, "{head}");
        let text = format!("tunnel {number}");
        tunnel.send(&text).await;
        assert_eq!(tunnel.receive(text.len()).await, text);
        // All of them are open before the first one ends.
        tunnel
    });
    let tunnels = join_all(tunnels).await;
    assert_eq!((tunnels.len(), server.connections()), (200, 200));
}

#[tokio::test]
async fn more_connections_than_there_is_room_for_wait_their_turn() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["allowed.test:PORT"], &server);
    settings.connections = 2;
    let world = World::with(settings);
    let target = format!("allowed.test:{}", server.port());
    let answered = (0..20).map(async |_| {
        let mut tunnel = world.connect().await;
        let head = tunnel.connect(&target).await;
        status(&head)
    });
    assert_eq!(join_all(answered).await, [200; 20]);
}

#[tokio::test]
async fn dropping_the_proxy_ends_everything() {
    let server = Server::echo().await;
    let mut world = World::new(&["allowed.test:PORT", "slow.test"], &server).await;
    world.names.never("slow.test");
    let mut tunnel = world.connect().await;
    let head = tunnel
        .connect(&format!("allowed.test:{}", server.port()))
        .await;
    assert_eq!(status(&head), 200, "{head}");
    let mut waiting = world.connect().await;
    waiting.send("CONNECT slow.test:443 HTTP/1.1\r\n\r\n").await;
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
async fn what_was_asked_of_a_proxy_that_is_gone_reaches_nobody() {
    let server = Server::echo().await;
    let mut world = World::new(&["allowed.test:PORT"], &server).await;
    let mut client = world.connect().await;
    client.send("CONNECT allowed.test:").await;
    world.drop_proxy();
    // It was cut, not left waiting.
    assert!(tokio::time::timeout(SOON, client.rest()).await.is_ok());
    assert_eq!(server.connections(), 0);
}
