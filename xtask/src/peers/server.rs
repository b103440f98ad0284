//! Peers that are servers: each listens on a free port and logs its address.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::installer::{Installer, tail};
use crate::guard::Guarded;

/// Generous: the tests are built at the same time.
const START_TIMEOUT: Duration = Duration::from_secs(1200);
/// The time for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A running server. Dropping it stops the process.
pub struct Server {
    process: Guarded,
}

impl Server {
    /// Starts the server and waits until it is ready: its log has `before_address` and its address, and `GET ready`, if
    /// that is given, answers 200. Returns its address, `http://127.0.0.1:PORT`.
    pub fn start(
        installer: &Installer,
        peer: &str,
        command: &mut Command,
        (before_address, ready): (&str, Option<&str>),
    ) -> Result<(Server, String)> {
        // A configured proxy is for package registries, not for loopback.
        command
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1")
            // The log is read before the buffer of a server in Python is full.
            .env("PYTHONUNBUFFERED", "1");
        let log = installer.log(peer);
        let mut found = None;
        let server = Server::start_when(installer, peer, command, || {
            let text = fs::read(&log).unwrap_or_default();
            found = address(&String::from_utf8_lossy(&text), before_address);
            let Some(address) = found else { return false };
            let Some(path) = ready else { return true };
            TcpStream::connect_timeout(&address, ANSWER_TIMEOUT).is_ok_and(|stream| {
                let _ = stream.set_read_timeout(Some(ANSWER_TIMEOUT));
                answers(stream, path)
            })
        })?;
        let address = found.context("it has answered")?;
        Ok((server, format!("http://{address}")))
    }

    /// Starts the server and waits until `is_ready` returns true.
    pub fn start_when(
        installer: &Installer,
        peer: &str,
        command: &Command,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<Server> {
        let start = Instant::now();
        let path = installer.log(peer);
        let process = Guarded::spawn_into(command, &path)?;
        let mut server = Server { process };
        while start.elapsed() < START_TIMEOUT {
            if let Some(status) = server.process.status()? {
                bail!("it exited at its start ({status}):\n{}", tail(&path));
            }
            if is_ready() {
                let seconds = start.elapsed().as_secs_f32();
                eprintln!("[{peer}] answers after {seconds:.1} s");
                return Ok(server);
            }
            thread::sleep(POLL);
        }
        bail!(
            "it did not answer in {} s:\n{}",
            START_TIMEOUT.as_secs(),
            tail(&path)
        );
    }

    /// Stops it, without waiting for its end.
    pub fn release(&mut self) {
        self.process.release();
    }
}

fn address(log: &str, before: &str) -> Option<SocketAddr> {
    let (_, after) = log.split_once(&format!("{before}http://"))?;
    // The number is complete only if something follows it.
    let end = after.find(|c: char| c != '.' && c != ':' && !c.is_ascii_digit())?;
    after[..end].parse().ok()
}

/// Whether `GET path` answers 200.
pub fn answers(mut stream: impl Read + Write, path: &str) -> bool {
    let mut ask = || -> Result<bool> {
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )?;
        let mut start_of_answer = [0; 12];
        stream.read_exact(&mut start_of_answer)?;
        Ok(start_of_answer.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_once_its_line_is_complete() {
        let at = |log| address(log, "listening on ").map(|address| address.port());
        assert_eq!(at("starting\n"), None);
        assert_eq!(at("listening on http://127.0.0.1:40"), None);
        assert_eq!(
            at("proxy for http://127.0.0.1:1\nlistening on http://127.0.0.1:4097\n"),
            Some(4097)
        );
        assert_eq!(
            at("listening on http://127.0.0.1:4097 (Ctrl-C to quit)"),
            Some(4097)
        );
    }
}
