//! Suggestions of similar file names.

use cantle_core::sandbox::{FileKind, Sandbox, SandboxPath};

/// Maximum number of names that are compared, and that are suggested.
const MAX_CANDIDATES: usize = 1_000;
const MAX_SUGGESTIONS: usize = 3;
/// Maximum number of characters of a name that are compared.
const MAX_NAME_CHARS: usize = 64;

/// Returns a sentence with similarly named files in the same directory; empty if there are none.
pub(super) async fn suggest(sandbox: &dyn Sandbox, path: &SandboxPath) -> String {
    let (Some(wanted), Some(parent)) = (path.file_name(), path.parent()) else {
        return String::new();
    };
    let wanted = String::from_utf8_lossy(wanted);
    let Ok(entries) = sandbox.list(&parent).await else {
        return String::new();
    };
    let files = entries.iter().filter(|entry| entry.kind == FileKind::File);
    let mut similar: Vec<(usize, String)> = files
        .take(MAX_CANDIDATES)
        .map(|entry| entry.path.to_string())
        .map(|name| (distance(&wanted.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= (wanted.chars().count() / 3).max(2))
        .collect();
    similar.sort();
    let names: Vec<String> = similar
        .into_iter()
        .take(MAX_SUGGESTIONS)
        .map(|(_, name)| format!("`{name}`"))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!(" Beside it there is {}.", names.join(", "))
}

/// Returns the Levenshtein distance.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(MAX_NAME_CHARS).collect();
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (row, a) in one.chars().take(MAX_NAME_CHARS).enumerate() {
        let mut left = row + 1;
        let mut costs = vec![left];
        for (b, pair) in other.iter().zip(above.windows(2)) {
            if let [diagonal, up] = pair {
                let replaced = diagonal + usize::from(a != *b);
                left = replaced.min(up + 1).min(left + 1);
                costs.push(left);
            }
        }
        above = costs;
    }
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distance_counts_differing_characters() {
        let cases = [
            ("", "", 0),
            ("abc", "", 3),
            ("", "abc", 3),
            ("chart.png", "chart.png", 0),
            ("chart.png", "charts.png", 1),
            ("chart.png", "cahrt.png", 2),
            ("kitten", "sitting", 3),
            ("größe", "grösse", 2),
        ];
        for (one, other, expected) in cases {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }
}
