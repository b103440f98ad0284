//! OpenTelemetry spans of runs, exported over OTLP (HTTP, Protocol Buffers).
//!
//! A [`Telemetry`] owns the exporter; [`RunSpans`] makes spans from the [events](cantle_core::event) of a run and its
//! sub-agents. Names follow the semantic conventions for generative AI, version 0.1.0
//! (<https://github.com/open-telemetry/semantic-conventions-genai>); what they don't know begins with `cantle.`.
//!
//! Ending a span puts it into a bounded queue, so a slow or missing collector neither delays a run nor fails it: spans
//! that don't fit are dropped and counted. Prompts, answers, arguments and results are left out unless the caller asks
//! for them.

#![forbid(unsafe_code)]

mod client;
mod exporter;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, Key};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{ResourceDetector as _, SdkProvidedResourceDetector};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider};

use self::exporter::{CountingExporter, Counts};
pub use self::spans::{ContentFilter, RunSpans};

/// The path of traces below the base URL of a collector.
const TRACES_PATH: &str = "/v1/traces";

/// An exporter of spans. Dropping it without [`close`](Self::close) loses the spans that wait.
#[derive(Clone, Debug)]
pub struct Telemetry {
    provider: SdkTracerProvider,
    counts: Arc<Counts>,
}

/// An error of preparing the export of spans; the cause is the [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[error("failed to prepare the export of spans")]
pub struct TelemetryError {
    kind: TelemetryErrorKind,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// The kind of a [`TelemetryError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TelemetryErrorKind {
    /// The client of the collector can't be made, for example because a certificate can't be read.
    Client,
    /// A URL or a variable is invalid.
    Configuration,
}

impl TelemetryError {
    /// Returns the kind of error.
    pub fn kind(&self) -> TelemetryErrorKind {
        self.kind
    }
}

/// Numbers of exported and lost spans of a [`Telemetry`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportReport {
    /// Number of spans that the collector has accepted.
    pub exported: u64,
    /// Number of sampled spans that it has not.
    pub lost: u64,
    /// The latest failure.
    pub error: Option<String>,
}

impl Telemetry {
    /// Creates an exporter to a collector; without a URL, to the one that `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` names, else to port 4318 of this machine. Headers, time limits, the queue and the
    /// resource are configured by the other `OTEL_*` variables. `url` is a base URL, or ends in `/v1/traces`.
    ///
    /// Reads certificates and starts a thread.
    ///
    /// # Errors
    /// If a URL or a variable is invalid, or no TLS configuration can be made.
    pub fn new(url: Option<&str>) -> Result<Self, TelemetryError> {
        let failed = |kind, source| TelemetryError { kind, source };
        let client = client::BlockingClient::new();
        let client = client.map_err(|error| failed(TelemetryErrorKind::Client, error))?;
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client);
        if let Some(url) = url {
            let url = url.trim_end_matches('/');
            let base = url.strip_suffix(TRACES_PATH).unwrap_or(url);
            exporter = exporter.with_endpoint(format!("{base}{TRACES_PATH}"));
        }
        let exporter = exporter
            .build()
            .map_err(|error| failed(TelemetryErrorKind::Configuration, error.into()))?;
        let counts = Arc::new(Counts::default());
        let exporter = CountingExporter::new(exporter, Arc::clone(&counts));
        let processor = BatchSpanProcessor::builder(exporter).build();
        // Either variable may name the service: OTEL_SERVICE_NAME, or OTEL_RESOURCE_ATTRIBUTES.
        let service = SdkProvidedResourceDetector.detect();
        let service = service.get(&Key::from_static_str("service.name"));
        let service = service.filter(|name| !name.as_str().starts_with("unknown_service"));
        let resource =
            Resource::builder().with_service_name(service.unwrap_or_else(|| "cantle".into()));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource.build())
            .build();
        Ok(Self { provider, counts })
    }

    /// Returns whether the standard variables name a collector, and don't turn traces off.
    pub fn is_configured() -> bool {
        let value = |name: &str| std::env::var(name).unwrap_or_default();
        let endpoints = [
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ];
        endpoints.iter().any(|name| !value(name).is_empty())
            && !value("OTEL_SDK_DISABLED").eq_ignore_ascii_case("true")
            && value("OTEL_TRACES_EXPORTER") != "none"
    }

    /// Returns a maker of spans for one run. `provider` names the model provider as the conventions do, `content` lets
    /// messages, arguments and results pass.
    pub fn run_spans(&self, provider: Option<String>, content: Option<ContentFilter>) -> RunSpans {
        let scope = InstrumentationScope::builder("cantle")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let tracer = self.provider.tracer_with_scope(scope);
        RunSpans::new(tracer, Arc::clone(&self.counts), provider, content)
    }

    /// Exports what waits, within a time limit, and reports what was lost. Blocks.
    pub fn close(self, limit: Duration) -> ExportReport {
        let closed = self.provider.shutdown_with_timeout(limit);
        let mut report = self.counts.report();
        if report.lost > 0 && report.error.is_none() {
            report.error = closed.err().map(|error| error.to_string());
        }
        report
    }
}
