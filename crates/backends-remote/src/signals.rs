//! Signal names as printed by Go, in which envd is written, e.g. `signal: killed`.

use cantle_core::sandbox::Signal;

/// The signal in `signal: killed` or `signal: aborted (core dumped)`.
pub(crate) fn number(status: &str) -> Option<i32> {
    let name = status.strip_prefix("signal: ")?;
    let name = name.strip_suffix(" (core dumped)").unwrap_or(name);
    match Signal::from_description(name) {
        Some(signal) => Some(signal.as_raw()),
        None => name.strip_prefix("signal ")?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn names_map_to_numbers() {
        assert_eq!(number("signal: killed"), Some(9));
        assert_eq!(number("signal: segmentation fault (core dumped)"), Some(11));
        assert_eq!(number("signal: signal 40"), Some(40));
        assert_eq!(number("exit status 3"), None);
    }
}
