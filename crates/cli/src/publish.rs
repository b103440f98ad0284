//! `--publish`: addresses of this machine that lead to ports of a sandbox.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use cantle::core::sandbox::{Sandbox, SandboxError, SandboxErrorKind};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Pause after a connection could not be accepted, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A value of `--publish`: an address whose port is also the sandbox's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishArg(SocketAddr);

impl FromStr for PublishArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = match text.parse::<u16>() {
            Ok(port) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
            Err(_) => text.parse::<SocketAddr>(),
        };
        match address {
            Ok(address) if address.port() > 0 => Ok(Self(address)),
            _ => Err(
                "expected a port, such as 8000, or an IP address and a port, such as \
                      127.0.0.1:8000 or [::1]:8000"
                    .to_owned(),
            ),
        }
    }
}

/// Listens on the addresses.
pub(crate) async fn listen(published: &[PublishArg]) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for PublishArg(address) in published {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("failed to listen on {address}"))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Fails if the sandbox's ports can't be connected to.
pub(crate) async fn check(
    published: &[PublishArg],
    sandbox: &dyn Sandbox,
) -> Result<(), SandboxError> {
    let Some(PublishArg(address)) = published.first() else {
        return Ok(());
    };
    match sandbox.connect(address.port()).await {
        Err(error) if error.kind() == SandboxErrorKind::Unsupported => Err(error),
        // The server may start later.
        _ => Ok(()),
    }
}

/// Passes connections on. Never returns; dropping it closes them.
pub(crate) async fn serve(
    listeners: Vec<TcpListener>,
    sandbox: &dyn Sandbox,
) -> std::convert::Infallible {
    let accepting = listeners.iter().map(|listener| async move {
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((client, _)) => connections.push(pass(client, sandbox)),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                Some(()) = connections.next() => {}
            }
        }
    });
    let mut accepting: FuturesUnordered<_> = accepting.collect();
    accepting.next().await;
    // There is no listener.
    std::future::pending().await
}

/// Passes one connection on until both sides have ended it. One without a server behind it, or beyond the limit of a
/// sandbox's connections, is closed at once.
async fn pass(mut client: TcpStream, sandbox: &dyn Sandbox) {
    let Ok(address) = client.local_addr() else {
        return;
    };
    if let Ok(mut server) = sandbox.connect(address.port()).await {
        // An error of one side ends the connection.
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_published_on_loopback_unless_an_address_is_given() {
        let parsed = |text: &str| text.parse::<PublishArg>().ok().map(|it| it.0.to_string());
        assert_eq!(parsed("8000").as_deref(), Some("127.0.0.1:8000"));
        assert_eq!(parsed("0.0.0.0:80").as_deref(), Some("0.0.0.0:80"));
        assert_eq!(parsed("[::1]:80").as_deref(), Some("[::1]:80"));
        for wrong in ["0", "70000", "localhost:80", "8000:80", ":80", ""] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
