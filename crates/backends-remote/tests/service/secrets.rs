//! What the service is told in confidence is nowhere else, whatever goes wrong, and however often the
//! service repeats it.

use std::error::Error;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use cantle_core::sandbox::{Backend as _, SandboxError, SandboxExt as _, SpawnRequest};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::proxy::{Fate, Proxy, Seen, refusal};
use crate::support::Served;
use crate::{context, through};

/// Short, as only a name would be found otherwise.
const MARKER: &str = "e2b_5ca1ab1e5ca1ab1e";
const VARIABLE: &str = "hunter2-of-the-sandbox";

/// Everything that is logged, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn write(&self, name: &str, value: &dyn Debug) {
        let _ = writeln!(self.0.lock().unwrap(), "{name}={value:?}");
    }
}

struct Fields<'l>(&'l Log);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.write(field.name(), value);
    }
}

impl Subscriber for Log {
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

/// All that an error says to anybody.
fn all(error: &SandboxError) -> String {
    let mut text = format!("{error} {error:?} {:?}", error.advice());
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, " {error} {error:?}");
        source = error.source();
    }
    text
}

/// Answers with every secret that it was told.
fn blabs(seen: &Seen, status: u16) -> Fate {
    let told = ["x-api-key", "x-access-token"].map(|name| seen.header(name));
    let said = format!("{} {VARIABLE}", told.join(" "));
    let body = format!(r#"{{"code":{status},"message":"you said {said}, did you?"}}"#);
    refusal(status, &[("should-retry", "false")], &body)
}

#[tokio::test]
async fn a_service_that_repeats_its_key_finds_nobody_who_does() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let served = Served::start().await;
    let mut said = String::new();
    for status in [400, 401, 403, 404, 409, 418, 429, 500, 502, 503] {
        let plan = move |seen: &Seen| blabs(seen, status);
        let proxy = Proxy::start(&served.url, plan).await;
        let builder = through(&proxy)
            .api_key(format!(" {MARKER}\n"))
            .env("SECRET", VARIABLE);
        let _ = write!(said, "{builder:?}");
        let backend = builder.build().unwrap();
        let error = backend.open(context()).await.map(drop).unwrap_err();
        assert!(error.to_string().contains("[hidden]"), "{error}");
        let _ = write!(said, "{backend:?} {}", all(&error));
    }
    let malformed = |seen: &Seen| refusal(201, &[], seen.header("x-api-key"));
    let proxy = Proxy::start(&served.url, malformed).await;
    let backend = through(&proxy).api_key(MARKER).build().unwrap();
    let error = backend.open(context()).await.map(drop).unwrap_err();
    said.push_str(&all(&error));
    // A key in the wrong place, and one that can't be one.
    for builder in [
        through(&proxy).api_key(MARKER).api_url(MARKER),
        through(&proxy).api_key(format!("{MARKER}\n{MARKER}")),
        through(&proxy)
            .api_key(MARKER)
            .sandbox_url(format!("https://{MARKER}:x@host")),
    ] {
        said.push_str(&all(&builder.build().map(drop).unwrap_err()));
    }
    served.stop().await;
    said.push_str(&log.0.lock().unwrap());
    assert!(!said.contains("5ca1ab1e"), "{said}");
    assert!(!said.contains(VARIABLE), "{said}");
}

#[tokio::test]
async fn a_sandbox_that_repeats_its_token_finds_nobody_who_does() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let served = Served::start().await;
    let mut said = String::new();
    for status in [400, 401, 403, 418, 500, 502, 503, 507] {
        // In its own words, at the end of a stream and by itself.
        let plan = move |seen: &Seen| match seen.path.as_str() {
            "/filesystem.Filesystem/MakeDir" | "/files" => blabs(seen, status),
            "/sandboxes" | "/health" => Fate::Passed,
            path if path.ends_with("/timeout") => blabs(seen, status),
            _ => Fate::Passed,
        };
        let proxy = Proxy::start(&served.url, plan).await;
        let backend = through(&proxy).api_key(MARKER).build().unwrap();
        let sandbox = backend.open(context().durable()).await.unwrap();
        let error = sandbox.mkdir(&"new".parse().unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("[hidden]"), "{error}");
        said.push_str(&all(&error));
        let path = "file".parse().unwrap();
        let error = sandbox.write_bytes(&path, "text".into()).await.unwrap_err();
        said.push_str(&all(&error));
        let handle = sandbox.persist().await.unwrap();
        let output = sandbox.run(SpawnRequest::shell("env")).await.unwrap();
        let _ = write!(
            said,
            "{sandbox:?} {:?} {handle:?} {}",
            sandbox.info(),
            output.stdout.text()
        );
        let seen = proxy.seen(|it| !it.header("x-access-token").is_empty());
        let token = seen[0].header("x-access-token");
        // One is enough to know; it goes nowhere but to its sandbox.
        assert!(seen.iter().all(|it| it.header("x-api-key").is_empty()));
        assert!(!said.contains(token), "{said}");
        assert!(!log.0.lock().unwrap().contains(token));
        sandbox.close().await.unwrap();
    }
    let through_an_end = |seen: &Seen| match seen.path.ends_with("/Start") {
        true => {
            let token = seen.header("x-access-token");
            let end = format!(r#"{{"error":{{"code":"internal","message":"it is {token}!"}}}}"#);
            let length = char::from_u32(u32::try_from(end.len()).unwrap()).unwrap();
            let body = format!("\u{2}\0\0\0{length}{end}");
            refusal(200, &[], &body)
        }
        false => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, through_an_end).await;
    let backend = through(&proxy).api_key(MARKER).build().unwrap();
    let error = backend.open(context()).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("it is [hidden]!"), "{error}");
    let seen = proxy.seen(|it| it.path.ends_with("/Start"));
    assert!(!all(&error).contains(seen[0].header("x-access-token")));
    served.stop().await;
    said.push_str(&log.0.lock().unwrap());
    assert!(!said.contains("5ca1ab1e"), "{said}");
}
