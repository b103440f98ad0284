use cantle_core::llm::{LlmError, LlmErrorKind};
use reqwest::header::HeaderMap;
use serde_json::json;

use super::ErrorContext;
use crate::http::retry_after::tests::header_map;

const KEY: &str = "sk-very-secret-0123456789";

fn context() -> ErrorContext {
    ErrorContext {
        base_url: "http://localhost:8000/v1".to_owned(),
        path: "/chat/completions",
        response: "a chat completion",
        model: "qwen3".to_owned(),
        key: Some(KEY.into()),
        proxy: None,
    }
}

fn status_error(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> LlmError {
    context().status_error(status, &header_map(headers), body)
}

fn with_advice(error: &LlmError) -> String {
    match error.advice() {
        Some(advice) => format!("{error}\n{advice}"),
        None => error.to_string(),
    }
}

#[test]
fn statuses_decide_the_kind() {
    let kinds: Vec<_> = [
        400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 422, 429, 498, 500, 501, 502, 503, 504,
        529,
    ]
    .into_iter()
    .map(|status| {
        let error = status_error(status, &[], b"");
        assert_eq!(error.status(), Some(status));
        let retried = if error.kind().is_transient() {
            ", retried"
        } else {
            ""
        };
        format!("{status} {:?}{retried}", error.kind())
    })
    .collect();
    insta::assert_snapshot!(kinds.join("\n"));
}

#[test]
fn names_in_the_body_take_precedence() {
    let named = |status, code: &str, kind: &str| {
        let body = json!({"error": {"message": "m", "type": kind, "code": code}}).to_string();
        status_error(status, &[], body.as_bytes()).kind()
    };
    assert_eq!(
        named(429, "insufficient_quota", "insufficient_quota"),
        LlmErrorKind::Permission
    );
    assert_eq!(
        named(400, "model_not_found", "invalid_request_error"),
        LlmErrorKind::NotFound
    );
    let litellm = json!({"error": {"message": "400: {'error': 'chat: Invalid model name passed in model=m. Call `/v1/models` \
        to view available models for your key.'}", "type": "None", "code": "400"}});
    let error = status_error(400, &[], litellm.to_string().as_bytes());
    assert_eq!(error.kind(), LlmErrorKind::NotFound);
    assert_eq!(
        named(400, "invalid_api_key", "invalid_request_error"),
        LlmErrorKind::Authentication
    );
    assert_eq!(
        named(413, "rate_limit_exceeded", "tokens"),
        LlmErrorKind::RateLimited
    );
    assert_eq!(
        named(400, "tool_use_failed", "invalid_request_error"),
        LlmErrorKind::Interrupted
    );
    let litellm = json!({"error": {"message": r#"litellm.BadRequestError: GroqException - {"code":"tool_use_failed"}"#,
        "type": null, "code": "400"}});
    let error = status_error(400, &[], litellm.to_string().as_bytes());
    assert_eq!(error.kind(), LlmErrorKind::Interrupted);
}

#[test]
fn refused_keys_and_lasting_failures_are_recognized_by_their_messages() {
    let missing =
        r#"litellm.APIConnectionError: OllamaException - {"error":"model 'qwen3' not found"}"#;
    let unloaded = "model requires more system memory (5.6 GiB) than is available (3.2 GiB)";
    let allocation = "llama runner process has terminated: cudaMalloc failed: out of memory";
    let image = "image input is not supported - hint: you may need to provide the mmproj";
    for (status, message, expected) in [
        (
            400,
            "API key not valid. Please pass a valid API key.",
            LlmErrorKind::Authentication,
        ),
        (
            400,
            "Incorrect API key provided: sk***YA.",
            LlmErrorKind::Authentication,
        ),
        (
            400,
            "The tool `api_key` is invalid.",
            LlmErrorKind::InvalidRequest,
        ),
        (500, missing, LlmErrorKind::NotFound),
        (500, unloaded, LlmErrorKind::NotFound),
        (500, allocation, LlmErrorKind::Server),
        (500, image, LlmErrorKind::Unsupported),
        (500, "The model failed.", LlmErrorKind::Server),
        (503, unloaded, LlmErrorKind::Server),
    ] {
        let body = json!({"error": {"message": message, "code": status}}).to_string();
        let error = status_error(status, &[], body.as_bytes());
        assert_eq!(error.kind(), expected, "{message}");
    }
    let body = json!([{"error": {"code": 400, "message": "API key not valid."}}]).to_string();
    let error = status_error(400, &[], body.as_bytes());
    assert_eq!(
        error.advice(),
        Some("Check the API key: it must be one for http://localhost:8000/v1.")
    );
    let body = json!({"error": {"message": unloaded}}).to_string();
    assert_eq!(
        with_advice(&status_error(500, &[], body.as_bytes())),
        "the provider failed to load the model: model requires more system memory (5.6 GiB) than is available (3.2 GiB) \
         (HTTP 500)\nUse a model that http://localhost:8000/v1 has, and has the memory for."
    );
}

#[test]
fn a_lasting_lack_of_quota_is_no_rate_limit() {
    let kind = |message: &str, r#type: &str| {
        let body = json!({"error": {"message": message, "type": r#type}}).to_string();
        status_error(429, &[], body.as_bytes()).kind()
    };
    let balance =
        "Your account org-1 is suspended due to insufficient balance, please recharge your account";
    let excluded = "Quota exceeded for metric: generate_content_free_tier_requests, limit: 0, model: gemini-3.1-pro\n\
        Please retry in 17.3s.";
    let exceeded = excluded.replace("limit: 0", "limit: 20");
    for (message, r#type, expected) in [
        (
            balance,
            "exceeded_current_quota_error",
            LlmErrorKind::Permission,
        ),
        (
            "Insufficient balance or no resource package.",
            "1113",
            LlmErrorKind::Permission,
        ),
        (excluded, "", LlmErrorKind::Permission),
        (&*exceeded, "", LlmErrorKind::RateLimited),
    ] {
        assert_eq!(kind(message, r#type), expected, "{message}");
    }
}

#[test]
fn the_message_is_found_in_every_format() {
    for body in [
        json!({"error": {"message": "M", "type": null, "param": null, "code": null}}),
        json!({"error": {"message": "M", "code": 400}}),
        json!({"error": "M"}),
        json!({"error": true, "message": "M"}),
        json!([{"error": {"message": "M"}}]),
        json!({"object": "error", "message": "M", "code": 400}),
        json!({"message": "M"}),
        json!({"detail": "M"}),
        json!({"detail": [{"msg": "M", "loc": ["body"], "input": "long"}]}),
        json!({"choices": [{"error": {"message": "M"}}]}),
    ] {
        let error = status_error(400, &[], body.to_string().as_bytes());
        assert_eq!(
            error.to_string(),
            "the provider rejected the request: M (HTTP 400)",
            "{body}"
        );
    }
}

#[test]
fn delays_are_read_from_headers_and_bodies() {
    let gemini = json!([{"error": {"code": 429, "message": "Quota exceeded.", "details": [
        {"@type": "type.googleapis.com/google.rpc.Help"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "19s"},
    ]}}]);
    let openai =
        json!({"error": {"message": "Please try again in 1.9s.", "code": "rate_limit_exceeded"}});
    let delay = |headers: &[(&'static str, &str)], body: &serde_json::Value| {
        let error = status_error(429, headers, body.to_string().as_bytes());
        error.retry_after().unwrap().as_millis()
    };
    assert_eq!(delay(&[], &gemini), 19_000);
    assert_eq!(delay(&[], &openai), 1900);
    assert_eq!(delay(&[("retry-after", "3")], &openai), 3000);
}

#[test]
fn messages_and_advice() {
    let html = b"<html>\n<head><title>502 Bad Gateway</title></head><body>nginx</body></html>";
    let model = json!({"error": {"message": "The model `qwen3` does not exist.", "type": "NotFoundError", "code": 404}});
    let openrouter = json!({"error": {"message": "Provider returned error", "code": 400,
        "metadata": {"raw": "unknown field", "provider_name": "X"}}});
    let litellm = json!({"error": {"message": "No connected db.", "type": "no_db_connection",
        "param": null, "code": "400"}});
    let texts: Vec<_> = [
        status_error(401, &[], b"{\"error\":{\"message\":\"Bad key\"}}"),
        status_error(400, &[], litellm.to_string().as_bytes()),
        status_error(402, &[], b""),
        status_error(404, &[], model.to_string().as_bytes()),
        status_error(404, &[], b"404 page not found\n"),
        status_error(
            404,
            &[("content-type", "Text/HTML; charset=utf-8")],
            b"<p>no",
        ),
        status_error(429, &[("retry-after", "7")], b"slow down"),
        status_error(502, &[], html),
        status_error(400, &[], openrouter.to_string().as_bytes()),
        status_error(
            307,
            &[("location", "https://elsewhere.example.com/v1")],
            b"{\"message\":\"moved\"}",
        ),
        status_error(
            400,
            &[],
            b"{\"error\":{\"code\":\"context_length_exceeded\"}}",
        ),
    ]
    .iter()
    .map(with_advice)
    .collect();
    insta::assert_snapshot!(texts.join("\n\n"));
}

#[test]
fn the_error_of_a_provider_behind_openrouter_is_quoted() {
    let error = |raw: serde_json::Value| {
        let body = json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}});
        status_error(400, &[], body.to_string().as_bytes())
    };
    for (raw, quoted) in [
        (json!("unknown field"), ": unknown field"),
        (
            json!({"error": {"message": "unknown field"}}),
            r#": {"error":{"message":"unknown field"}}"#,
        ),
        (json!(null), ""),
    ] {
        assert_eq!(
            error(raw).to_string(),
            format!(
                "the provider rejected the request: Provider returned error{quoted} (HTTP 400)"
            )
        );
    }
    let overflow = json!({"message": "This model's maximum context length is 8192 tokens."});
    assert_eq!(error(overflow).kind(), LlmErrorKind::ContextOverflow);
}

#[test]
fn models_that_need_responses_are_recognized() {
    let message =
        "Tools with reasoning are not supported for this model. Please use /v1/responses.";
    let body =
        json!({"error": {"message": message, "type": "invalid_request_error", "code": null}});
    let error = status_error(400, &[], body.to_string().as_bytes());
    assert_eq!(error.kind(), LlmErrorKind::InvalidRequest);
    assert_eq!(
        error.advice(),
        Some("Use OpenAI Responses (`--api responses`) for this model.")
    );
}

#[test]
fn organizations_that_may_not_stream_are_recognized() {
    let message = "Your organization must be verified to stream this model.";
    let body = json!({"error": {"message": message, "type": "invalid_request_error", "code": "unsupported_value"}});
    let error = status_error(400, &[], body.to_string().as_bytes());
    assert_eq!(error.kind(), LlmErrorKind::InvalidRequest);
    assert_eq!(
        error.advice(),
        Some("Verify the organization, or turn streaming off (`--no-stream`).")
    );
}

#[test]
fn a_missing_key_has_its_own_advice() {
    let context = ErrorContext {
        key: None,
        ..context()
    };
    let error = context.status_error(401, &HeaderMap::new(), b"");
    assert_eq!(
        error.advice(),
        Some("Set an API key for http://localhost:8000/v1: the request had none.")
    );
}

#[test]
fn the_key_is_removed_from_server_messages() {
    let echo = json!({"error": {"message": format!("Incorrect API key provided: {KEY}."),
        "metadata": {"raw": format!("Bearer {KEY}")}}})
    .to_string();
    let plain = format!("you sent {KEY}");
    let location = format!("http://elsewhere.example.com/?key={KEY}");
    let page = format!("<html><title>{KEY}</title></html>");
    let none = HeaderMap::new();
    for error in [
        status_error(401, &[], echo.as_bytes()),
        status_error(500, &[], plain.as_bytes()),
        status_error(302, &[("location", &location)], b""),
        status_error(500, &[], page.as_bytes()),
        context().body_error(echo.as_bytes()).unwrap(),
        context().invalid_body(&none, plain.as_bytes(), KEY),
        context().invalid_body(&none, page.as_bytes(), ""),
        context().event_error(&plain),
        context().protocol(&plain),
    ] {
        let shown = format!("{error} {error:?} {:?}", error.advice());
        assert!(!shown.contains(KEY), "{shown}");
    }
}

#[test]
fn long_messages_are_truncated() {
    let long = "ü".repeat(5000);
    let error = status_error(500, &[], long.as_bytes());
    assert!(error.to_string().chars().count() < 1050, "{error}");
}

#[test]
fn errors_with_a_successful_status_are_classified() {
    let kind = |body: serde_json::Value| {
        let error = context().body_error(body.to_string().as_bytes());
        error.map(|error| (error.kind(), error.status()))
    };
    assert_eq!(
        kind(json!({"error": {"message": "busy", "code": 429}})),
        Some((LlmErrorKind::RateLimited, None))
    );
    assert_eq!(
        kind(json!({"error": {"message": "gone", "code": "502"}})),
        Some((LlmErrorKind::Server, None))
    );
    assert_eq!(
        kind(json!({"error": {"message": "too long", "type": "exceed_context_size_error"}})),
        Some((LlmErrorKind::ContextOverflow, None))
    );
    assert_eq!(
        kind(json!({"error": {"message": "odd", "type": "BadRequestError"}})),
        Some((LlmErrorKind::InvalidRequest, None))
    );
    // Codes of failed responses.
    for (code, expected) in [
        ("server_error", LlmErrorKind::Server),
        ("invalid_prompt", LlmErrorKind::InvalidRequest),
        ("image_parse_error", LlmErrorKind::InvalidRequest),
        ("bio_policy", LlmErrorKind::InvalidRequest),
        ("content_filter", LlmErrorKind::InvalidRequest),
    ] {
        assert_eq!(
            kind(json!({"error": {"message": "odd", "code": code}})),
            Some((expected, None))
        );
    }
    assert_eq!(
        kind(json!({"object": "error", "message": "broken"})),
        Some((LlmErrorKind::Server, None))
    );
    assert_eq!(kind(json!({"error": null, "choices": []})), None);
    assert_eq!(kind(json!({})), None);
}
