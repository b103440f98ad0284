//! File names that are safe as object keys and on every file system, and the media types of their extensions.

use cantle_core::sandbox::media_type_of_name;

/// Bytes of a name. A key has 33 more, and file systems allow 255 for one component.
const MAX_BYTES: usize = 200;
/// Bytes of an extension that survives shortening, with its dot.
const MAX_EXTENSION_BYTES: usize = 20;

/// Returns the last component of a path as a name of letters (also decomposed ones), digits, `-`, `_` and `.` that
/// begins with none of `.` and `-`: other characters become `_`, and a long name is shortened before its extension.
///
/// ```
/// assert_eq!(cantle_files::safe_name("../my report.pdf"), "my_report.pdf");
/// ```
pub fn safe_name(name: &str) -> String {
    let name = name.trim_end_matches(['/', '\\']);
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default().trim();
    let safe: String = name
        .chars()
        .map(|it| {
            if it.is_alphanumeric() || "-_.".contains(it) || is_mark(it) {
                it
            } else {
                '_'
            }
        })
        .collect();
    let safe = safe.trim_start_matches(['.', '-']);
    if safe.chars().all(|it| it == '_' || it == '.') {
        return "file".to_owned();
    }
    if safe.len() <= MAX_BYTES {
        return safe.to_owned();
    }
    let extension = extension(safe).filter(|it| it.len() <= MAX_EXTENSION_BYTES);
    let extension = extension.unwrap_or_default();
    let end = safe.floor_char_boundary(MAX_BYTES - extension.len());
    format!("{}{extension}", safe.get(..end).unwrap_or_default())
}

/// Returns whether a character is the accent of a letter in the decomposed form that macOS gives to names.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{3099}' | '\u{309a}')
}

/// Returns the media type that a file name's extension stands for.
pub fn media_type(name: &str) -> &'static str {
    media_type_of_name(name).unwrap_or("application/octet-stream")
}

/// Returns the extension with its dot.
fn extension(name: &str) -> Option<&str> {
    name.rfind('.').and_then(|dot| name.get(dot..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_safe() {
        for (given, safe) in [
            ("chart.png", "chart.png"),
            ("my report (1).pdf", "my_report__1_.pdf"),
            ("../../etc/passwd", "passwd"),
            ("..\\..\\boot.ini", "boot.ini"),
            ("..", "file"),
            ("", "file"),
            ("/", "file"),
            ("dir/", "dir"),
            (".bashrc", "bashrc"),
            ("-rf", "rf"),
            ("a\0b\n\u{1b}[31m.txt", "a_b___31m.txt"),
            ("año 数据.csv", "año_数据.csv"),
            ("re\u{301}sume\u{301}.pdf", "re\u{301}sume\u{301}.pdf"),
            ("カ\u{3099}.txt", "カ\u{3099}.txt"),
            ("a#1", "a_1"),
            ("a%2F..%2Fb?x=1&y", "a_2F.._2Fb_x_1_y"),
            ("\u{202e}gpj.exe", "_gpj.exe"),
        ] {
            assert_eq!(safe_name(given), safe, "{given:?}");
        }
    }

    #[test]
    fn a_long_name_keeps_its_extension_and_whole_characters() {
        let safe = safe_name(&format!("{}.csv", "é".repeat(300)));
        assert_eq!((safe.len(), safe.ends_with("é.csv")), (200, true));
        assert_eq!(safe_name(&"x".repeat(255)).len(), 200);
        assert_eq!(safe_name(&format!("a.{}", "x".repeat(255))).len(), 200);
    }

    #[test]
    fn media_types_come_from_extensions() {
        assert_eq!(media_type("A.PNG"), "image/png");
        assert_eq!(media_type("a.tar.zip"), "application/zip");
        assert_eq!(media_type("rel.dat"), "application/octet-stream");
        assert_eq!(media_type("png"), "application/octet-stream");
    }
}
