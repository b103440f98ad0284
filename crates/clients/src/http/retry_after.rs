//! Parsing of `Retry-After` headers.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// Returns the requested delay from `retry-after-ms` (OpenAI, Azure), from `retry-after` in seconds or
/// as a date, or from LiteLLM's `llm_provider-retry-after`, which forwards its provider's header.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let milliseconds = value("retry-after-ms").and_then(|text| text.parse::<f64>().ok());
    if let Some(milliseconds) = milliseconds {
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok();
    }
    let delay = value(RETRY_AFTER.as_str()).or_else(|| value("llm_provider-retry-after"))?;
    if let Ok(seconds) = delay.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(delay).ok()?;
    // A date in the past means no delay.
    Some(
        date.duration_since(SystemTime::now())
            .unwrap_or(Duration::ZERO),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, SystemTime};

    use reqwest::header::{HeaderMap, HeaderName};

    use super::retry_after;

    /// Builds a header map; used by the tests of several modules.
    pub(in crate::http) fn header_map(headers: &[(&'static str, &str)]) -> HeaderMap {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        headers.collect()
    }

    fn read(headers: &[(&'static str, &str)]) -> Option<Duration> {
        retry_after(&header_map(headers))
    }

    #[test]
    fn every_header_variant_is_parsed() {
        assert_eq!(read(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(
            read(&[("retry-after", " 0.5 ")]),
            Some(Duration::from_millis(500))
        );
        assert_eq!(
            read(&[("retry-after-ms", "12.5"), ("retry-after", "1")]),
            Some(Duration::from_micros(12_500))
        );
        assert_eq!(
            read(&[("llm_provider-retry-after", "3")]),
            Some(Duration::from_secs(3))
        );
    }

    #[test]
    fn a_date_becomes_the_time_until_then() {
        let date = SystemTime::now() + Duration::from_secs(100);
        let wait = read(&[("retry-after", &httpdate::fmt_http_date(date))]).unwrap();
        assert!(
            wait > Duration::from_secs(90) && wait <= Duration::from_secs(100),
            "{wait:?}"
        );
        assert_eq!(
            read(&[("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")]),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn invalid_values_are_ignored() {
        for invalid in ["soon", "-3", "NaN", "inf", ""] {
            assert_eq!(read(&[("retry-after", invalid)]), None, "{invalid}");
        }
        assert_eq!(read(&[]), None);
    }
}
