//! Secrets sent to the service do not appear in errors, logs or debug output, even if the service repeats them.

use std::error::Error;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use cantle_core::sandbox::{Backend as _, SandboxError, SandboxExt as _, SpawnRequest};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::proxy::{Fault, Proxy, ReceivedRequest, respond};
use crate::support::TestServer;
use crate::{context, through};

/// A key that is searched for in all output.
const MARKER: &str = "e2b_5ca1ab1e5ca1ab1e";
const VARIABLE: &str = "hunter2-of-the-sandbox";

/// A subscriber that collects all log output.
#[derive(Clone, Default)]
struct LogCapture(Arc<Mutex<String>>);

impl LogCapture {
    fn write(&self, name: &str, value: &dyn Debug) {
        let _ = writeln!(self.0.lock().unwrap(), "{name}={value:?}");
    }
}

struct Fields<'l>(&'l LogCapture);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.write(field.name(), value);
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        attributes.record(&mut Fields(self));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Fields(self));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields(self));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns all texts of an error and its sources.
fn error_text(error: &SandboxError) -> String {
    let mut text = format!("{error} {error:?} {:?}", error.advice());
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, " {error} {error:?}");
        source = error.source();
    }
    text
}

/// Returns a response that repeats all secrets of the request.
fn repeat_secrets(request: &ReceivedRequest, status: u16) -> Fault {
    let tokens = ["x-api-key", "x-access-token"].map(|name| request.header(name));
    let secrets = format!("{} {VARIABLE}", tokens.join(" "));
    let body = format!(r#"{{"code":{status},"message":"received {secrets}"}}"#);
    respond(status, &[("should-retry", "false")], &body)
}

#[tokio::test]
async fn repeated_key_is_hidden() {
    let log = LogCapture::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let server = TestServer::start().await;
    let mut output_text = String::new();
    for status in [400, 401, 403, 404, 409, 418, 429, 500, 502, 503] {
        let plan = move |request: &ReceivedRequest| repeat_secrets(request, status);
        let proxy = Proxy::start(&server.url, plan).await;
        let builder = through(&proxy)
            .api_key(format!(" {MARKER}\n"))
            .env("SECRET", VARIABLE);
        let _ = write!(output_text, "{builder:?}");
        let backend = builder.build().unwrap();
        let error = backend.open(context()).await.map(drop).unwrap_err();
        assert!(error.to_string().contains("[hidden]"), "{error}");
        let _ = write!(output_text, "{backend:?} {}", error_text(&error));
    }
    let malformed = |request: &ReceivedRequest| respond(201, &[], request.header("x-api-key"));
    let proxy = Proxy::start(&server.url, malformed).await;
    let backend = through(&proxy).api_key(MARKER).build().unwrap();
    let error = backend.open(context()).await.map(drop).unwrap_err();
    output_text.push_str(&error_text(&error));
    // A key in the wrong setting, and an invalid key.
    for builder in [
        through(&proxy).api_key(MARKER).api_url(MARKER),
        through(&proxy).api_key(format!("{MARKER}\n{MARKER}")),
        through(&proxy)
            .api_key(MARKER)
            .sandbox_url(format!("https://{MARKER}:x@host")),
    ] {
        output_text.push_str(&error_text(&builder.build().map(drop).unwrap_err()));
    }
    server.stop().await;
    output_text.push_str(&log.0.lock().unwrap());
    assert!(!output_text.contains("5ca1ab1e"), "{output_text}");
    assert!(!output_text.contains(VARIABLE), "{output_text}");
}

#[tokio::test]
async fn repeated_sandbox_token_is_hidden() {
    let log = LogCapture::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let server = TestServer::start().await;
    let mut output_text = String::new();
    for status in [400, 401, 403, 418, 500, 502, 503, 507] {
        // In responses of different formats.
        let plan = move |request: &ReceivedRequest| match request.path.as_str() {
            "/filesystem.Filesystem/MakeDir" | "/files" => repeat_secrets(request, status),
            "/sandboxes" | "/health" => Fault::None,
            path if path.ends_with("/timeout") => repeat_secrets(request, status),
            _ => Fault::None,
        };
        let proxy = Proxy::start(&server.url, plan).await;
        let backend = through(&proxy).api_key(MARKER).build().unwrap();
        let sandbox = backend.open(context().durable()).await.unwrap();
        let error = sandbox.mkdir(&"new".parse().unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("[hidden]"), "{error}");
        output_text.push_str(&error_text(&error));
        let path = "file".parse().unwrap();
        let error = sandbox.write_bytes(&path, "text".into()).await.unwrap_err();
        output_text.push_str(&error_text(&error));
        let handle = sandbox.persist().await.unwrap();
        let output = sandbox.run(SpawnRequest::shell("env")).await.unwrap();
        let _ = write!(
            output_text,
            "{sandbox:?} {:?} {handle:?} {}",
            sandbox.info(),
            output.stdout.text()
        );
        let requests = proxy.requests(|it| !it.header("x-access-token").is_empty());
        let token = requests[0].header("x-access-token");
        // Sandboxes receive the token and not the API key.
        assert!(requests.iter().all(|it| it.header("x-api-key").is_empty()));
        assert!(!output_text.contains(token), "{output_text}");
        assert!(!log.0.lock().unwrap().contains(token));
        sandbox.close().await.unwrap();
    }
    let stream_end = |request: &ReceivedRequest| match request.path.ends_with("/Start") {
        true => {
            let token = request.header("x-access-token");
            let end = format!(r#"{{"error":{{"code":"internal","message":"it is {token}!"}}}}"#);
            let length = char::from_u32(u32::try_from(end.len()).unwrap()).unwrap();
            let body = format!("\u{2}\0\0\0{length}{end}");
            respond(200, &[], &body)
        }
        false => Fault::None,
    };
    let proxy = Proxy::start(&server.url, stream_end).await;
    let backend = through(&proxy).api_key(MARKER).build().unwrap();
    let error = backend.open(context()).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("it is [hidden]!"), "{error}");
    let requests = proxy.requests(|it| it.path.ends_with("/Start"));
    assert!(!error_text(&error).contains(requests[0].header("x-access-token")));
    server.stop().await;
    output_text.push_str(&log.0.lock().unwrap());
    assert!(!output_text.contains("5ca1ab1e"), "{output_text}");
}
