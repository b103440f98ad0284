//! Export of a run's spans to an OpenTelemetry collector (`--otlp`, the `OTEL_*` variables), in builds that have it.

#[cfg(feature = "otel")]
pub(crate) use enabled::RunTelemetry;
#[cfg(not(feature = "otel"))]
pub(crate) use missing::NoTelemetry as RunTelemetry;

#[cfg(feature = "otel")]
mod enabled {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use cantle::core::secret::SecretText;
    use cantle_otel::{ContentFilter, RunSpans, Telemetry};

    use crate::config::ModelSource;
    use crate::environment::variable;
    use crate::export::Redactor;

    /// How long the end of a command waits for the collector.
    const CLOSE_LIMIT: Duration = Duration::from_secs(5);

    /// The variable that lets content pass, as in other instrumentations of models.
    const CAPTURE: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

    /// The exporter of a session's runs.
    #[derive(Debug)]
    pub(crate) struct RunTelemetry {
        telemetry: Telemetry,
        provider: Option<String>,
        /// The variables of commands; their values are redacted.
        variables: BTreeMap<String, SecretText>,
    }

    impl RunTelemetry {
        /// Returns the exporter to a collector, or to the one of the standard variables, if there is any.
        pub(crate) fn new(
            url: Option<&str>,
            model: &ModelSource,
            variables: &BTreeMap<String, SecretText>,
        ) -> anyhow::Result<Option<Self>> {
            if url.is_none() && !Telemetry::is_configured() {
                return Ok(None);
            }
            let provider = match model {
                ModelSource::Endpoint(_, endpoint) => endpoint.provider,
                ModelSource::Recording(_) => None,
            };
            Ok(Some(Self {
                telemetry: Telemetry::new(url)?,
                provider: provider.map(|provider| provider.to_string()),
                variables: variables.clone(),
            }))
        }

        /// Returns the maker of the spans of one run.
        pub(crate) fn spans(&self) -> RunSpans {
            let captures =
                variable(CAPTURE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
            let content = captures.then(|| {
                let redactor = Redactor::with_values(&self.variables);
                Box::new(move |text: &str| redactor.text(text)) as ContentFilter
            });
            self.telemetry.run_spans(self.provider.clone(), content)
        }

        /// Exports what waits, and returns what to tell the user if spans were lost.
        pub(crate) async fn close(&self) -> Option<String> {
            let telemetry = self.telemetry.clone();
            let closed = tokio::task::spawn_blocking(move || telemetry.close(CLOSE_LIMIT));
            let report = closed.await.ok().filter(|report| report.lost > 0)?;
            let spans = report.exported + report.lost;
            let error = report.error.map(|error| format!(": {error}"));
            let error = error.unwrap_or_default();
            Some(format!(
                "OpenTelemetry: {} of {spans} spans were not exported{error}",
                report.lost
            ))
        }
    }
}

#[cfg(not(feature = "otel"))]
mod missing {
    use std::collections::BTreeMap;

    use anyhow::bail;
    use cantle::core::event::Event;
    use cantle::core::secret::SecretText;

    use crate::config::ModelSource;

    /// The exporter of a session's runs and the maker of their spans, which this build lacks.
    #[derive(Debug)]
    pub(crate) enum NoTelemetry {}

    impl NoTelemetry {
        pub(crate) fn new(
            url: Option<&str>,
            _: &ModelSource,
            _: &BTreeMap<String, SecretText>,
        ) -> anyhow::Result<Option<Self>> {
            if url.is_some() {
                bail!(
                    "this build of cantle has no OpenTelemetry; build it with `--features otel`, or use the one of \
                     `cargo xtask dist`"
                );
            }
            Ok(None)
        }

        pub(crate) fn spans(&self) -> Self {
            match *self {}
        }

        pub(crate) fn record(&mut self, _: &Event) {
            match *self {}
        }

        pub(crate) async fn close(&self) -> Option<String> {
            match *self {}
        }
    }
}
