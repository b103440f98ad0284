//! A proxy with scripted names, reachable servers, and clients that speak byte by byte.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::policy::HostName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::denials::Denied;
use crate::{Proxy, ProxySettings, Resolver};

/// Deadline of an expected event.
pub(super) const SOON: Duration = Duration::from_secs(60);

pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("it happens soon")
}

/// Names and the answers to successive lookups; the last answer repeats.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    answers: HashMap<String, Vec<Vec<IpAddr>>>,
    never: Vec<String>,
    asked: Vec<String>,
}

impl Names {
    pub(super) fn set(&self, name: &str, answers: &[&[&str]]) {
        let answers = answers
            .iter()
            .map(|answer| answer.iter().map(|ip| ip.parse().unwrap()).collect());
        let mut known = self.0.lock().unwrap();
        known.answers.insert(name.to_owned(), answers.collect());
    }

    /// Never answers lookups of this name.
    pub(super) fn never(&self, name: &str) {
        self.0.lock().unwrap().never.push(name.to_owned());
    }

    /// Returns the lookups so far.
    pub(super) fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().asked.clone()
    }
}

#[async_trait]
impl Resolver for Names {
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
        let answer = {
            let mut known = self.0.lock().unwrap();
            known.asked.push(host.to_string());
            if known.never.iter().any(|name| name == host.as_str()) {
                None
            } else {
                let answers = known.answers.get_mut(host.as_str());
                Some(answers.map(|answers| match answers.len() {
                    1 => answers[0].clone(),
                    _ => answers.remove(0),
                }))
            }
        };
        match answer {
            None => std::future::pending().await,
            Some(answer) => answer.ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }
}

/// A running proxy.
pub(super) struct World {
    pub(super) names: Names,
    proxy: Option<Proxy>,
    address: SocketAddr,
}

impl World {
    /// Starts a proxy for these patterns, in which `PORT` is the server's. `allowed.example.com` and
    /// `www.allowed.example.com` resolve to the server, which is exempt.
    pub(super) async fn new(patterns: &[&str], server: &Server) -> Self {
        Self::with(Self::settings(patterns, server))
    }

    pub(super) fn settings(patterns: &[&str], server: &Server) -> ProxySettings {
        let port = server.port().to_string();
        let hosts = patterns
            .iter()
            .map(|pattern| pattern.replace("PORT", &port).parse().unwrap());
        let mut settings = ProxySettings::new(hosts.collect());
        settings.exempt = vec![server.address()];
        settings
    }

    pub(super) fn with(mut settings: ProxySettings) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let names = Names::default();
        for name in [
            "allowed.example.com",
            "www.allowed.example.com",
            "closed.example.com",
        ] {
            if let Some(server) = settings.exempt.first() {
                names.set(name, &[&[&server.ip().to_string()]]);
            }
        }
        settings.resolver = Arc::new(names.clone());
        let proxy = Proxy::listen(listener, settings).unwrap();
        Self {
            names,
            proxy: Some(proxy),
            address,
        }
    }

    pub(super) fn denied(&self) -> Vec<Denied> {
        self.proxy.as_ref().unwrap().denials().all()
    }

    pub(super) fn drop_proxy(&mut self) {
        self.proxy = None;
    }

    pub(super) async fn try_connect(&self) -> io::Result<Client> {
        Ok(Client(TcpStream::connect(self.address).await?))
    }

    pub(super) async fn connect(&self) -> Client {
        soon(self.try_connect()).await.unwrap()
    }

    /// Sends a request and returns everything received up to the end.
    pub(super) async fn ask(&self, request: &str) -> String {
        let client = self.connect().await;
        let (mut read, mut write) = tokio::io::split(client.0);
        let mut answer = Vec::new();
        // Concurrently: a streaming proxy answers before it has the whole request.
        let send = async {
            let _ = write.write_all(request.as_bytes()).await;
        };
        let receive = read.read_to_end(&mut answer);
        let ((), received) = soon(async { tokio::join!(send, receive) }).await;
        // A refused client that still sends gets a reset after the answer.
        if let Err(error) = received {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        String::from_utf8(answer).unwrap()
    }
}

/// A connection to the proxy.
pub(super) struct Client(TcpStream);

impl Client {
    pub(super) async fn send(&mut self, text: &str) {
        soon(self.0.write_all(text.as_bytes())).await.unwrap();
    }

    /// Requests a tunnel and returns the head of the response.
    pub(super) async fn connect(&mut self, target: &str) -> String {
        self.send(&format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        ))
        .await;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push_str(&self.receive(1).await);
        }
        head
    }

    pub(super) async fn receive(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        soon(self.0.read_exact(&mut bytes)).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Closes the sending direction.
    pub(super) async fn end(&mut self) {
        soon(self.0.shutdown()).await.unwrap();
    }

    /// Receives everything up to the end, or an error.
    pub(super) async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = soon(self.0.read_to_end(&mut bytes)).await;
        String::from_utf8(bytes).unwrap()
    }
}

/// A local server, which ends on drop.
pub(super) struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    seen: watch::Receiver<String>,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    /// Echoes what it receives.
    pub(super) async fn echo() -> Self {
        Self::echo_at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// Echoes at one of this machine's addresses.
    pub(super) async fn echo_at(address: IpAddr) -> Self {
        Self::start_at(address, |mut stream, _| async move {
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        })
        .await
    }

    /// Answers each request with `answer`, a whole response.
    pub(super) async fn http(answer: &'static str) -> Self {
        Self::start(move |mut stream, seen| async move {
            if let Some(request) = request(&mut stream).await {
                seen.send_replace(request);
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        })
        .await
    }

    /// Streams the body of each request back.
    pub(super) async fn http_mirror() -> Self {
        Self::start(|mut stream, _| async move {
            let Some((head, length)) = head(&mut stream).await else {
                return;
            };
            assert!(head.starts_with("POST"));
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        })
        .await
    }

    async fn start<S, F>(serve: S) -> Self
    where
        S: Fn(TcpStream, watch::Sender<String>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), serve).await
    }

    async fn start_at<S, F>(address: IpAddr, serve: S) -> Self
    where
        S: Fn(TcpStream, watch::Sender<String>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let (sender, seen) = watch::channel(String::new());
        let serving = tokio::spawn(async move {
            let mut served = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                served.spawn(serve(stream, sender.clone()));
            }
        });
        Self {
            address,
            connections,
            seen,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns the last request it received.
    pub(super) async fn seen(&self) -> String {
        let mut seen = self.seen.clone();
        let seen = soon(seen.wait_for(|seen| !seen.is_empty())).await.unwrap();
        seen.clone()
    }
}

/// Reads a request's head; returns it with the length of the body.
async fn head(stream: &mut TcpStream) -> Option<(String, usize)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let length = name.eq_ignore_ascii_case("content-length");
        length.then(|| value.trim().parse().ok())?
    });
    Some((head, length.unwrap_or(0)))
}

async fn request(stream: &mut TcpStream) -> Option<String> {
    let (head, length) = head(stream).await?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).ok()?)
}

/// Returns the status of a response.
pub(super) fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    status.unwrap_or_else(|| panic!("no answer: {answer:?}"))
}
