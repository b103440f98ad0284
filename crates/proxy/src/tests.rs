//! The proxy as seen by a program in the sandbox: over its socket, byte by byte.

mod hostile;
mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use self::support::{Server, World, status};
use super::denials::Denied;

#[tokio::test]
async fn allowed_host_is_reached_through_tunnel() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let mut tunnel = world.connect().await;
    let head = tunnel
        .connect(&format!("Allowed.Example.Com.:{}", server.port()))
        .await;
    assert_eq!(status(&head), 200, "{head}");
    for unwanted in ["content-length", "transfer-encoding", "connection"] {
        assert!(!head.contains(unwanted), "{head}");
    }
    tunnel.send("hello").await;
    assert_eq!(tunnel.receive(5).await, "hello");
    // A half-close is forwarded, and the answer still arrives.
    tunnel.send(" and bye").await;
    tunnel.end().await;
    assert_eq!(tunnel.rest().await, " and bye");
    assert_eq!(world.denied(), []);
}

#[tokio::test]
async fn allowed_host_is_reached_by_plain_http() {
    let server =
        Server::http("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep-Alive: 1\r\n\r\nhello").await;
    let world = World::new(&["*.allowed.example.com:PORT"], &server).await;
    let port = server.port();
    let request = format!(
        "POST http://www.allowed.example.com:{port}/a?b HTTP/1.1\r\nHost: www.allowed.example.com:{port}\r\n\
         Proxy-Connection: keep-alive\r\nContent-Length: 4\r\n\r\nbody"
    );
    let answer = world.ask(&request).await;
    assert_eq!(status(&answer), 200, "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "hello");
    let head = head.to_ascii_lowercase();
    assert!(
        head.contains("connection: close") && !head.contains("keep-alive"),
        "{head}"
    );
    let seen = server.seen().await.to_ascii_lowercase();
    assert!(seen.starts_with("post /a?b http/1.1\r\n"), "{seen}");
    assert!(
        seen.contains(&format!("host: www.allowed.example.com:{port}\r\n")),
        "{seen}"
    );
    assert!(
        seen.contains("connection: close") && !seen.contains("proxy-connection"),
        "{seen}"
    );
    assert!(seen.ends_with("\r\n\r\nbody"), "{seen}");
}

#[tokio::test]
async fn other_host_is_refused_with_reason() {
    let server = Server::echo().await;
    let world = World::new(
        &["allowed.example.com:PORT", "*.mirror.example.org"],
        &server,
    )
    .await;
    let allowed = format!(
        "allowed.example.com:{}, *.mirror.example.org",
        server.port()
    );
    let reason = format!("it is not allowed; policy field network allows {allowed}");
    let text = format!("network: `other.example.com:443` was refused: {reason}");

    let answer = world
        .ask("CONNECT other.example.com:443 HTTP/1.1\r\n\r\n")
        .await;
    assert!(
        answer.starts_with(&format!("HTTP/1.1 403 {text}\r\n")),
        "{answer}"
    );
    assert!(answer.ends_with(&format!("\r\n\r\n{text}\n")), "{answer}");
    let answer = world
        .ask("GET http://mirror.example.org/ HTTP/1.1\r\nHost: mirror.example.org\r\n\r\n")
        .await;
    assert_eq!(status(&answer), 403, "{answer}");

    let told = [
        Denied::new("other.example.com", 443, reason.clone()),
        Denied::new("mirror.example.org", 80, reason),
    ];
    assert_eq!(world.denied(), told);
    // The name was not even resolved.
    assert_eq!(world.names.asked(), Vec::<String>::new());
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn denied_host_is_refused_although_another_pattern_allows_it() {
    let server = Server::echo().await;
    let hosts = ["*.allowed.example.com:PORT", "!denied.allowed.example.com"];
    let world = World::new(&hosts, &server).await;
    for (host, expected) in [("www", 200), ("denied", 403), ("DENIED", 403)] {
        let mut tunnel = world.connect().await;
        let head = tunnel
            .connect(&format!("{host}.allowed.example.com:{}", server.port()))
            .await;
        assert_eq!(status(&head), expected, "{head}");
    }
    let [denied] = &world.denied()[..] else {
        panic!("{:?}", world.denied());
    };
    let reason = denied.to_string();
    assert!(reason.contains("it is not allowed; "), "{reason}");
}

#[tokio::test]
async fn other_port_is_refused() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.example.com"], &server).await;
    for port in [22, 25, 8080, server.port()] {
        let answer = world
            .ask(&format!(
                "CONNECT allowed.example.com:{port} HTTP/1.1\r\n\r\n"
            ))
            .await;
        assert_eq!(status(&answer), 403, "{answer}");
        assert!(answer.contains("its port is not allowed"), "{answer}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn address_is_refused_in_any_spelling() {
    let server = Server::echo().await;
    let world = World::new(
        &["allowed.example.com:PORT", "*.allowed.example.com"],
        &server,
    )
    .await;
    let port = server.port();
    let spellings = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7F.0.0.1",
        "0177.0.0.01",
        "017700000001",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[0:0:0:0:0:0:0:1]",
        "[fe80::1]",
        "169.254.169.254",
        "localhost",
        "allowed.example.com@127.0.0.1",
        "allowed.example.com:80@127.0.0.1",
    ];
    for host in spellings {
        for request in [
            format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n"),
            format!("GET http://{host}:{port}/ HTTP/1.1\r\n\r\n"),
            format!(
                "GET http://{host}:{port}/ HTTP/1.1\r\nHost: allowed.example.com:{port}\r\n\r\n"
            ),
        ] {
            let answer = world.ask(&request).await;
            assert!(matches!(status(&answer), 400 | 403), "{request}{answer}");
        }
    }
    assert_eq!(world.names.asked(), Vec::<String>::new());
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn name_of_private_address_is_refused() {
    let server = Server::echo().await;
    let world = World::new(&["*.inside.example.com"], &server).await;
    let inside = [
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "10.0.0.1",
        "fd00::1",
        "64:ff9b::7f00:1",
        "0.0.0.0",
    ];
    for (number, address) in inside.into_iter().enumerate() {
        let name = format!("n{number}.inside.example.com");
        world.names.set(&name, &[&[address]]);
        let answer = world
            .ask(&format!("CONNECT {name}:443 HTTP/1.1\r\n\r\n"))
            .await;
        assert_eq!(status(&answer), 403, "{address}: {answer}");
        assert!(answer.contains("not public"), "{answer}");
    }
    // One such address among public ones suffices.
    world
        .names
        .set("both.inside.example.com", &[&["8.8.8.8", "192.168.0.1"]]);
    let answer = world
        .ask("CONNECT both.inside.example.com:443 HTTP/1.1\r\n\r\n")
        .await;
    assert_eq!(status(&answer), 403, "{answer}");
    assert_eq!(world.denied().len(), inside.len() + 1);
}

#[tokio::test]
async fn a_private_host_is_never_this_machine() {
    let server = Server::echo().await;
    let world = World::new(&["*.inside.example.com,private", "*.example.com"], &server).await;
    let inside = [
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "100.100.100.200",
    ];
    for (number, address) in inside.into_iter().enumerate() {
        let name = format!("n{number}.inside.example.com");
        world.names.set(&name, &[&[address]]);
        let answer = world
            .ask(&format!("CONNECT {name}:443 HTTP/1.1\r\n\r\n"))
            .await;
        assert_eq!(status(&answer), 403, "{address}: {answer}");
        assert!(answer.contains("never reachable"), "{answer}");
    }
    // The mark of one pattern is not that of another.
    world.names.set("mirror.example.com", &[&["10.0.0.1"]]);
    let answer = world
        .ask("CONNECT mirror.example.com:443 HTTP/1.1\r\n\r\n")
        .await;
    assert_eq!(status(&answer), 403, "{answer}");
    assert!(
        answer.contains("with `mirror.example.com,private`"),
        "{answer}"
    );
}

#[tokio::test]
async fn name_is_resolved_once_and_pinned() {
    let server = Server::echo().await;
    let world = World::new(&["rebinding.example.com:PORT"], &server).await;
    // The first answer is public; a second lookup would return another.
    let first = server.address().ip().to_string();
    world
        .names
        .set("rebinding.example.com", &[&[&first], &["127.9.9.9"]]);
    let mut tunnel = world.connect().await;
    let head = tunnel
        .connect(&format!("rebinding.example.com:{}", server.port()))
        .await;
    assert_eq!(status(&head), 200, "{head}");
    assert_eq!(world.names.asked(), ["rebinding.example.com"]);
    assert_eq!(server.connections(), 1);
    // The next connection resolves and checks again.
    let answer = world
        .ask(&format!(
            "CONNECT rebinding.example.com:{} HTTP/1.1\r\n\r\n",
            server.port()
        ))
        .await;
    assert_eq!(status(&answer), 403, "{answer}");
}

#[tokio::test]
async fn next_address_is_tried_after_failure() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["two.example.com:PORT"], &server);
    let dead = SocketAddr::new(Ipv4Addr::new(127, 77, 0, 1).into(), server.port());
    settings.exempt.push(dead);
    let world = World::with(settings);
    let addresses = [dead.ip(), server.address().ip()].map(|ip: IpAddr| ip.to_string());
    world
        .names
        .set("two.example.com", &[&[&addresses[0], &addresses[1]]]);
    let mut tunnel = world.connect().await;
    let head = tunnel
        .connect(&format!("two.example.com:{}", server.port()))
        .await;
    assert_eq!(status(&head), 200, "{head}");
}

#[tokio::test]
async fn redirect_target_is_checked() {
    let server = Server::http(
        "HTTP/1.1 302 Found\r\nLocation: http://inside.example.com/\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let port = server.port();
    let answer = world
        .ask(&format!(
            "GET http://allowed.example.com:{port}/ HTTP/1.1\r\n\r\n"
        ))
        .await;
    assert_eq!(status(&answer), 302, "{answer}");
    let (_, location) = answer.split_once("ocation: ").unwrap();
    let location = location.lines().next().unwrap();
    let answer = world.ask(&format!("GET {location} HTTP/1.1\r\n\r\n")).await;
    assert_eq!(status(&answer), 403, "{answer}");
}

#[tokio::test]
async fn unreachable_and_refused_are_distinguished() {
    let server = Server::echo().await;
    let port = server.port();
    let world = World::new(
        &[
            "unknown.example.com",
            "closed.example.com:PORT",
            "nowhere.example.com",
        ],
        &server,
    )
    .await;
    world.names.set("nowhere.example.com", &[&[]]);
    drop(server);
    for name in [
        "unknown.example.com:443",
        &format!("closed.example.com:{port}"),
        "nowhere.example.com:80",
    ] {
        let answer = world.ask(&format!("CONNECT {name} HTTP/1.1\r\n\r\n")).await;
        assert_eq!(status(&answer), 502, "{answer}");
    }
    assert_eq!(world.denied(), []);
}

#[tokio::test]
async fn request_not_for_a_proxy_is_rejected() {
    let server = Server::echo().await;
    let world = World::new(&["allowed.example.com"], &server).await;
    for request in [
        "GET / HTTP/1.1\r\nHost: allowed.example.com\r\n\r\n",
        "GET https://allowed.example.com/ HTTP/1.1\r\n\r\n",
        "CONNECT allowed.example.com HTTP/1.1\r\n\r\n",
        "GET http://allowed.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n",
        "GET http://allowed.example.com/ HTTP/1.1\r\nHost: allowed.example.com\r\nHost: allowed.example.com\r\n\r\n",
    ] {
        let answer = world.ask(request).await;
        assert_eq!(status(&answer), 400, "{request}{answer}");
    }
}

#[tokio::test]
async fn connection_carries_one_request() {
    let server = Server::http("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let one = format!(
        "GET http://allowed.example.com:{}/ HTTP/1.1\r\n\r\n",
        server.port()
    );
    let answer = world.ask(&format!("{one}{one}")).await;
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn large_body_streams_in_both_directions() {
    let server = Server::http_mirror().await;
    let world = World::new(&["allowed.example.com:PORT"], &server).await;
    let body = "0123456789abcdef".repeat(512 * 1024);
    let request = format!(
        "POST http://allowed.example.com:{}/ HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
        server.port(),
        body.len()
    );
    let answer = world.ask(&request).await;
    let (head, mirrored) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(status(head), 200, "{head}");
    assert!(
        mirrored == body,
        "{} of {} bytes",
        mirrored.len(),
        body.len()
    );
}

#[tokio::test]
async fn slow_resolver_times_out() {
    let server = Server::echo().await;
    let mut settings = World::settings(&["slow.example.com"], &server);
    settings.connect = Duration::from_millis(50);
    let world = World::with(settings);
    world.names.never("slow.example.com");
    let answer = world
        .ask("CONNECT slow.example.com:443 HTTP/1.1\r\n\r\n")
        .await;
    assert_eq!(status(&answer), 502, "{answer}");
}
