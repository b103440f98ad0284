//! The tracing spans of a run.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "tests stop at the first surprise"
)]

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

#[path = "agent/support.rs"]
#[expect(
    dead_code,
    reason = "shared with the other tests, which use more of it"
)]
mod support;

use support::{Scripted, agent, calls, finish, outcome, session};

/// Keeps the names of ended spans with their fields, further in for each span above.
#[derive(Clone, Default)]
struct Ended(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        let shown = match field.name() {
            "gen_ai.conversation.id" => "RUN".to_owned(),
            _ => format!("{value:?}"),
        };
        let _ = write!(self.0, " {}={shown}", field.name());
    }
}

impl Layer<Registry> for Ended {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::span::Id,
        cx: Context<'_, Registry>,
    ) {
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        cx.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(
        &self,
        id: &tracing::span::Id,
        values: &tracing::span::Record<'_>,
        cx: Context<'_, Registry>,
    ) {
        let span = cx.span(id).unwrap();
        let mut extensions = span.extensions_mut();
        values.record(extensions.get_mut::<Fields>().unwrap());
    }

    fn on_close(&self, id: tracing::span::Id, cx: Context<'_, Registry>) {
        let span = cx.span(&id).unwrap();
        let extensions = span.extensions();
        let fields = extensions.get::<Fields>().unwrap();
        let indent = "  ".repeat(span.scope().skip(1).count());
        let line = format!("{indent}{}{}", span.name(), fields.0);
        self.0.lock().unwrap().push(line);
    }
}

#[tokio::test]
async fn runs_model_calls_and_tool_calls_are_spans_without_messages() {
    let ended = Ended::default();
    let subscriber = tracing_subscriber::registry().with(ended.clone());
    let _default = tracing::subscriber::set_default(subscriber);
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("finish", "bad", json!("{"))]),
        _ => finish("secret words"),
    });
    let session = session(agent(&client)).await;
    let outcome = outcome(session.run("a secret task").unwrap()).await;
    assert!(outcome.error.is_none());
    session.close().await.unwrap();
    insta::assert_snapshot!(ended.0.lock().unwrap().join("\n"));
}
