//! An exporter that counts what reached the collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use parking_lot::Mutex;

use crate::ExportReport;

/// Numbers of spans.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Number of sampled spans that have ended.
    pub(crate) ended: AtomicU64,
    exported: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Counts {
    /// Returns what has become of the spans so far: one that ended and was not exported is lost.
    pub(crate) fn report(&self) -> ExportReport {
        let exported = self.exported.load(Ordering::Relaxed);
        let error = self.error.lock();
        ExportReport {
            exported,
            lost: self.ended.load(Ordering::Relaxed).saturating_sub(exported),
            error: error.clone(),
        }
    }
}

/// Counts the spans that another exporter sends.
#[derive(Debug)]
pub(crate) struct CountingExporter<E> {
    exporter: E,
    counts: Arc<Counts>,
}

impl<E> CountingExporter<E> {
    pub(crate) fn new(exporter: E, counts: Arc<Counts>) -> Self {
        Self { exporter, counts }
    }
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let exported = self.exporter.export(batch).await;
        match &exported {
            Ok(()) => drop(self.counts.exported.fetch_add(count, Ordering::Relaxed)),
            Err(error) => {
                *self.counts.error.lock() = Some(error.to_string());
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
