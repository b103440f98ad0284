//! Parsing of `Retry-After` headers, and of the delays in error messages.

use std::time::{Duration, SystemTime};

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

/// Returns the requested delay from `retry-after-ms` (OpenAI, Azure), from `retry-after` in seconds or
/// as a date, or from LiteLLM's `llm_provider-retry-after`, which forwards its provider's header.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let milliseconds = value("retry-after-ms").and_then(|text| text.parse::<f64>().ok());
    let precise = milliseconds.and_then(|it| Duration::try_from_secs_f64(it / 1000.0).ok());
    if precise.is_some() {
        return precise;
    }
    let delay = value(RETRY_AFTER.as_str()).or_else(|| value("llm_provider-retry-after"))?;
    if let Ok(seconds) = delay.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(delay).ok()?;
    // The date is one of the server's clock. With another clock, the delay could exceed every limit.
    let now = value(DATE.as_str()).and_then(|text| httpdate::parse_http_date(text).ok());
    let now = now.unwrap_or_else(SystemTime::now);
    // A date in the past means no delay.
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

/// Returns the delay that a message asks for: "Please try again in 1m2.5s" (OpenAI, Groq), "Please retry in 19.4s"
/// (Gemini), "Please retry after 45 seconds" (Azure).
pub(super) fn delay_in_message(message: &str) -> Option<Duration> {
    let mut phrases = ["try again in ", "retry in ", "retry after "].into_iter();
    let (_, delay) = phrases.find_map(|phrase| message.split_once(phrase))?;
    parse_delay(delay)
}

/// Returns the delay at the start of `text`, such as `1m2.5s`, `350ms` or `2 seconds`.
pub(super) fn parse_delay(mut text: &str) -> Option<Duration> {
    let mut total: Option<f64> = None;
    while let Some(end) = text.find(|c: char| c.is_ascii_alphabetic()) {
        let (number, rest) = text.split_at(end);
        let Ok(number) = number.trim().parse::<f64>() else {
            break;
        };
        let end = rest.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, rest) = rest.split_at(end.unwrap_or(rest.len()));
        let seconds = match unit {
            "h" | "hour" | "hours" => 3600.0,
            "m" | "minute" | "minutes" => 60.0,
            "s" | "second" | "seconds" => 1.0,
            "ms" => 0.001,
            _ => break,
        };
        total = Some(total.unwrap_or(0.0) + number * seconds);
        text = rest;
    }
    Duration::try_from_secs_f64(total?).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, SystemTime};

    use reqwest::header::{HeaderMap, HeaderName};

    use super::{delay_in_message, retry_after};

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
        // By the server's clock.
        let headers = [
            ("date", "Wed, 21 Oct 2015 07:28:00 GMT"),
            ("retry-after", "Wed, 21 Oct 2015 07:28:09 GMT"),
        ];
        assert_eq!(read(&headers), Some(Duration::from_secs(9)));
    }

    #[test]
    fn invalid_values_are_ignored() {
        for invalid in ["soon", "-3", "NaN", "inf", ""] {
            assert_eq!(read(&[("retry-after", invalid)]), None, "{invalid}");
        }
        assert_eq!(read(&[]), None);
        assert_eq!(
            read(&[("retry-after-ms", "-1"), ("retry-after", "2")]),
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn delays_in_messages_are_parsed() {
        for (message, milliseconds) in [
            (
                "Rate limit reached. Please try again in 1.9s. Visit",
                Some(1900),
            ),
            ("Please try again in 350ms.", Some(350)),
            ("Please try again in 1h2m3.5s", Some(3_723_500)),
            ("Please retry in 19.25s.", Some(19_250)),
            ("Please retry after 45 seconds. Please go", Some(45_000)),
            ("Please try again in 1 minute.", Some(60_000)),
            ("Please try again in a moment.", None),
            ("Please try again in -3s.", None),
            ("Please try again in 3 fortnights.", None),
            ("Please try again later.", None),
        ] {
            let expected = milliseconds.map(Duration::from_millis);
            assert_eq!(delay_in_message(message), expected, "{message}");
        }
    }
}
