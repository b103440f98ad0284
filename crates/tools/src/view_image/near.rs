//! Names that a wrong one may have been meant as.

use cantle_core::sandbox::{FileKind, Sandbox, SandboxPath};

/// Names that are looked at, and that are told.
const LOOKED_AT: usize = 1_000;
const TOLD: usize = 3;
/// Characters of a name that are compared.
const COMPARED: usize = 64;

/// A sentence with the files beside a path whose names are like its own; nothing where there are
/// none, or none can be listed.
pub(super) async fn names(sandbox: &dyn Sandbox, path: &SandboxPath) -> String {
    let (Some(wanted), Some(parent)) = (path.file_name(), path.parent()) else {
        return String::new();
    };
    let wanted = String::from_utf8_lossy(wanted);
    let Ok(entries) = sandbox.list(&parent).await else {
        return String::new();
    };
    let files = entries.iter().filter(|entry| entry.kind == FileKind::File);
    let mut near: Vec<(usize, String)> = files
        .take(LOOKED_AT)
        .map(|entry| entry.path.to_lossy())
        .map(|name| (distance(&wanted.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= (wanted.chars().count() / 3).max(2))
        .collect();
    near.sort();
    let names: Vec<String> = near
        .into_iter()
        .take(TOLD)
        .map(|(_, name)| format!("`{name}`"))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!(" Beside it there is {}.", names.join(", "))
}

/// How many characters must be put in, taken out or replaced to make one name of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(COMPARED).collect();
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (row, a) in one.chars().take(COMPARED).enumerate() {
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
    fn a_distance_counts_the_characters_that_differ() {
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
