//! The Chromium process and its DevTools connection.
//!
//! Messages are JSON texts that end with NUL, over the pipes of the process. All of them are untrusted: pages run in
//! the same sandbox, so the process may be in their hands.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cantle_core::sandbox::{
    Channel, HeadTail, OutputStream, Process, ProcessStdin, Sandbox, SandboxError, Signal,
    SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::failure::{Failure, clip};
use crate::settings::Settings;

/// Maximum size of a message. The largest are screenshots.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Bytes of standard error that are kept for the error of a browser that doesn't start.
const STDERR_BYTES: usize = 2_000;
/// Time for the browser to exit when it is closed.
const EXIT_GRACE: Duration = Duration::from_secs(2);
/// Exit code of the script without a browser.
const NO_BROWSER: i32 = 127;

/// Starts the browser with descriptors 3 and 4, which `--remote-debugging-pipe` uses, as the command's pipes.
///
/// The profile is new, and outside of the working directory, whose files are delivered. Debian's `/usr/bin/chromium` is
/// a script that needs configuration which the sandbox does not show, so the program itself is tried first. The proxy
/// is the sandbox's own; Chromium reaches loopback addresses without it.
const SCRIPT: &str = r#"
profile=${TMPDIR:-/tmp}/$1 program=$2
shift 2
rm -rf "$profile"
mkdir -p "$profile" || exit 1
if [ -z "$program" ]; then
    for program in /usr/lib/chromium/chromium /usr/lib/chromium-browser/chromium-browser \
        /opt/google/chrome/chrome chromium chromium-browser google-chrome chrome ''; do
        command -v "$program" >/dev/null 2>&1 && break
    done
fi
command -v "$program" >/dev/null 2>&1 || exit 127
export HOME="$profile" XDG_CACHE_HOME="$profile/cache" XDG_CONFIG_HOME="$profile/config"
export DBUS_SESSION_BUS_ADDRESS=disabled: DBUS_SYSTEM_BUS_ADDRESS=disabled:
proxy=${HTTP_PROXY:-$http_proxy}
[ -z "$proxy" ] || set -- "--proxy-server=$proxy" "$@"
"$program" "--user-data-dir=$profile" "$@" 3<&0 4>&1 0</dev/null 1>&2
code=$?
rm -rf "$profile"
[ $code != 127 ] || code=1
exit $code
"#;

const ARGUMENTS: [&str; 18] = [
    "--remote-debugging-pipe",
    // Chromium's own sandbox needs user namespaces and system calls that Cantle's refuses. Cantle's is the boundary:
    // the browser and its pages may do what any command of the model may do.
    "--no-sandbox",
    // Without a sandbox of its own, a process per site separates nothing; it would hide frames from this connection.
    "--disable-features=IsolateOrigins,site-per-process,Translate,MediaRouter",
    "--disable-site-isolation-trials",
    // `/dev/shm` is small in sandboxes and containers.
    "--disable-dev-shm-usage",
    "--disable-gpu",
    // The sandbox's proxy carries TCP.
    "--disable-quic",
    // Nothing is requested but what pages request.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
    "--mute-audio",
    "--hide-scrollbars",
];

/// A started browser.
pub(crate) struct Connection {
    process: Box<dyn Process>,
    stdin: Option<Box<dyn ProcessStdin>>,
    output: OutputStream,
    received: BytesMut,
    /// Bytes of `received` that contain no NUL.
    scanned: usize,
    stderr: HeadTail,
    last_id: u64,
    /// Whether a message was not written to its end, because the call was cancelled.
    is_broken: bool,
}

/// A message of the browser.
pub(crate) enum Incoming {
    Answer {
        id: u64,
        result: Result<Box<RawValue>, String>,
    },
    Event(Event),
}

/// An event, about a tab or the browser.
pub(crate) struct Event {
    pub(crate) session: Option<String>,
    pub(crate) method: String,
    params: Box<RawValue>,
}

impl Event {
    /// Parses the parameters; `None` if they are malformed.
    pub(crate) fn params<'e, T: Deserialize<'e>>(&'e self) -> Option<T> {
        serde_json::from_str(self.params.get()).ok()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outgoing<'m> {
    id: u64,
    method: &'m str,
    params: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'m str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    id: Option<u64>,
    method: Option<String>,
    session_id: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<RemoteError>,
}

#[derive(Deserialize)]
struct RemoteError {
    message: String,
}

impl Connection {
    /// Starts a browser in a sandbox. `profile` is the name of its temporary directory.
    pub(crate) async fn start(
        settings: &Settings,
        profile: &str,
        sandbox: &dyn Sandbox,
    ) -> Result<Self, SandboxError> {
        let program = settings.executable_path.as_deref().unwrap_or_default();
        let argv = ["sh", "-c", SCRIPT, "sh", profile, program]
            .into_iter()
            .chain(ARGUMENTS)
            .chain(settings.headless.then_some("--headless"))
            .chain(settings.extra_args.iter().map(String::as_str))
            .chain(["about:blank"]);
        let request = SpawnRequest::argv(argv).with_stdin(Stdin::Piped);
        let mut process = sandbox.spawn(request).await?;
        let missing = || SandboxError::unsupported("the sandbox gives no pipes to commands");
        Ok(Self {
            output: process.take_output().ok_or_else(missing)?,
            stdin: Some(process.take_stdin().ok_or_else(missing)?),
            process,
            received: BytesMut::new(),
            scanned: 0,
            stderr: HeadTail::new(0, STDERR_BYTES),
            last_id: 0,
            is_broken: false,
        })
    }

    /// Sends a command and returns its id.
    pub(crate) async fn send(
        &mut self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<u64, Failure> {
        self.last_id += 1;
        let message = Outgoing {
            id: self.last_id,
            method,
            params,
            session_id: session,
        };
        let mut text = serde_json::to_vec(&message)
            .map_err(|error| Failure::lost(format!("a command can't be written: {error}")))?;
        text.push(0);
        let stdin = match &mut self.stdin {
            Some(stdin) if !self.is_broken => stdin,
            _ => return Err(Failure::lost("the connection was interrupted")),
        };
        self.is_broken = true;
        if stdin.write(Bytes::from(text)).await.is_err() {
            return Err(self.post_mortem().await);
        }
        self.is_broken = false;
        Ok(self.last_id)
    }

    /// Receives a message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Result<Incoming, Failure> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
            }
            if self.received.len() > MAX_MESSAGE_BYTES {
                return Err(Failure::lost("it sent a message of more than 16 MiB"));
            }
            match self.output.next().await {
                Some(Ok(chunk)) if chunk.channel == Channel::Stdout => {
                    self.received.extend_from_slice(&chunk.bytes);
                }
                Some(Ok(chunk)) => self.stderr.push(&chunk.bytes),
                Some(Err(_)) | None => return Err(self.post_mortem().await),
            }
        }
    }

    fn next_message(&mut self) -> Result<Option<Incoming>, Failure> {
        loop {
            let unscanned = self.received.get(self.scanned..).unwrap_or_default();
            let Some(length) = unscanned.iter().position(|byte| *byte == 0) else {
                self.scanned = self.received.len();
                return Ok(None);
            };
            let text = self.received.split_to(self.scanned + length + 1);
            self.scanned = 0;
            let text = text.strip_suffix(&[0]).unwrap_or(&text);
            let message: Message = serde_json::from_slice(text)
                .map_err(|error| Failure::lost(format!("it sent no DevTools message: {error}")))?;
            match message {
                Message { id: Some(id), .. } => {
                    let result = match (message.result, message.error) {
                        (Some(result), None) => Ok(result),
                        (_, Some(error)) => Err(clip(&error.message, 500)),
                        (None, None) => Err("an empty answer".to_owned()),
                    };
                    return Ok(Some(Incoming::Answer { id, result }));
                }
                Message {
                    method: Some(method),
                    params: Some(params),
                    session_id: session,
                    ..
                } => {
                    return Ok(Some(Incoming::Event(Event {
                        session,
                        method,
                        params,
                    })));
                }
                _ => {}
            }
        }
    }

    /// Waits for the end of a process that has closed its pipes, and describes it.
    async fn post_mortem(&mut self) -> Failure {
        self.stdin = None;
        let exit = match timeout(EXIT_GRACE, self.process.wait()).await {
            Ok(Ok(exit)) => exit,
            Ok(Err(error)) => return Failure::Sandbox(error),
            Err(_) => return Failure::lost("it closed the connection"),
        };
        if exit.status.shell_code() == NO_BROWSER {
            return Failure::Refused(
                "There is no Chromium in the sandbox. Tell the user to install it where commands run (on Debian the \
                 package `chromium`), or to use an image that has it, or to set the path of the program."
                    .to_owned(),
            );
        }
        let mut reason = format!("its process ended: {}", exit.status);
        for note in exit.notes.iter().take(3) {
            reason.push_str("; ");
            reason.push_str(&clip(note, 300));
        }
        // Only of a browser that did not start: later, this is text of pages.
        let stderr = self.stderr.clone().finish().text();
        if self.last_id <= 1 && !stderr.trim().is_empty() {
            reason.push_str("; its standard error ends with: ");
            reason.push_str(&clip(stderr.trim(), STDERR_BYTES));
        }
        Failure::lost(reason)
    }

    /// Asks the browser to exit, and kills it if it does not.
    pub(crate) async fn close(mut self) {
        let closing = async {
            let _ = self
                .send(None, "Browser.close", Value::Object(serde_json::Map::new()))
                .await;
            while let Some(Ok(_)) = self.output.next().await {}
            let _ = self.process.wait().await;
        };
        if timeout(EXIT_GRACE, closing).await.is_err() {
            // Fails if the sandbox is gone.
            let _ = self.process.signal(Signal::KILL).await;
            let _ = timeout(EXIT_GRACE, self.process.wait()).await;
        }
    }
}
