//! Recorded refusals: which of them say that the conversation is too long.

use std::fs;
use std::path::Path;

use cantle_core::llm::LlmErrorKind;
use cantle_testkit::openai::{Fault, Reply, Turn};
use serde::Deserialize;
use serde_json::Value;

use crate::support::{MODES, failure, serve};

#[derive(Deserialize)]
struct Recorded {
    status: u16,
    kind: LlmErrorKind,
    body: Value,
}

#[tokio::test]
async fn every_providers_overflow_is_recognized() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/overflow");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let recorded: Recorded = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        let overflow = recorded.kind == LlmErrorKind::ContextOverflow;
        assert_eq!(overflow, !name.starts_with("not_"), "{name}");

        let reply = Reply::new(
            recorded.status,
            "application/json",
            recorded.body.to_string(),
        );
        let server = serve(Turn::text("").fault_always(Fault::Reply(reply))).await;
        for streams in MODES {
            let error = failure(&server, streams).await;
            assert_eq!(error.kind(), recorded.kind, "{name}: {error}");
            assert_eq!(error.status(), Some(recorded.status), "{name}");
        }
        seen += 1;
    }
    assert!(seen > 30, "{seen} recordings were found");
}

/// LiteLLM, where the provider behind it refuses after the stream has begun:
/// <https://github.com/BerriAI/litellm/issues/6629>
#[tokio::test]
async fn an_overflow_event_is_recognized() {
    let error = serde_json::json!({
        "message": "litellm.BadRequestError: BedrockException: Context Window Error - Input is too long for requested model.",
        "type": null, "param": null, "code": "400"
    });
    let server = serve(Turn::text("").fault_always(Fault::ErrorEvent { after: 0, error })).await;
    for streams in MODES {
        let error = failure(&server, streams).await;
        assert_eq!(error.kind(), LlmErrorKind::ContextOverflow);
    }
}
