//! `.dockerignore`: which paths of a build context are left out.
//!
//! A line is a pattern of Go's `filepath.Match`, in which `**` also stands for any number of directories. The last
//! line that matches a path or a directory above it decides; `!` includes again.

use globset::{GlobBuilder, GlobMatcher};

use super::normalized;

/// The rules of a `.dockerignore` file.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoreRules {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    glob: GlobMatcher,
    includes: bool,
}

impl IgnoreRules {
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self {
            rules: lines.filter_map(Rule::parse).collect(),
        }
    }

    /// Whether the file or directory at `path` (relative, with `/`) is left out.
    pub(crate) fn excludes(&self, path: &str) -> bool {
        let mut excluded = false;
        for rule in &self.rules {
            if rule.includes == excluded && rule.matches(path) {
                excluded = !rule.includes;
            }
        }
        excluded
    }

    /// Whether paths below an excluded directory may be included again.
    pub(crate) fn has_inclusions(&self) -> bool {
        self.rules.iter().any(|rule| rule.includes)
    }
}

impl Rule {
    /// Parses a line; `None` if it is empty or not a valid pattern.
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (includes, pattern) = match line.strip_prefix('!') {
            Some(pattern) => (true, pattern.trim()),
            None => (false, line),
        };
        // Go has neither alternatives (`{a,b}`) nor negation by `!`.
        let mut pattern = normalized(pattern).replace("[!", "[\\!");
        for brace in ["{", "}"] {
            let escaped = format!("\\{brace}");
            pattern = pattern.replace(&escaped, brace).replace(brace, &escaped);
        }
        let glob = GlobBuilder::new(&pattern)
            .literal_separator(true)
            .backslash_escape(true)
            .build();
        Some(Self {
            glob: glob.ok().filter(|_| !pattern.is_empty())?.compile_matcher(),
            includes,
        })
    }

    /// Whether the rule matches a path or a directory above it.
    fn matches(&self, path: &str) -> bool {
        let parents = path
            .match_indices('/')
            .filter_map(|(end, _)| path.get(..end));
        parents.chain([path]).any(|path| self.glob.is_match(path))
    }
}

#[cfg(test)]
mod tests {
    use super::IgnoreRules;

    #[track_caller]
    fn check(text: &str, excluded: &[&str], included: &[&str]) {
        let ignore = IgnoreRules::parse(text);
        for path in excluded {
            assert!(ignore.excludes(path), "{path} is included");
        }
        for path in included {
            assert!(!ignore.excludes(path), "{path} is excluded");
        }
    }

    #[test]
    fn name_excludes_the_path_and_everything_below() {
        check("/a/b/\n", &["a/b", "a/b/c"], &["a", "b", "a/bc", "x/a/b"]);
    }

    #[test]
    fn star_matches_within_a_component() {
        check(
            "*.md\n*/t?mp\n",
            &["x.md", "a/temp", "a/temp/x"],
            &["a/x.md", "temp", "a/b/temp"],
        );
    }

    #[test]
    fn double_star_crosses_directories() {
        let excluded = ["x.log", "a/x.log", "a/b/x.log", "docs/a", "docs/a/b"];
        check("**/*.log\ndocs/**\n", &excluded, &["docs", "x.logs"]);
    }

    #[test]
    fn last_matching_line_decides() {
        check("*.md\n!README.md\n", &["a.md"], &["README.md"]);
        check("!README.md\n*.md\n", &["a.md", "README.md"], &[]);
        check("a\n!a/b/c\n", &["a", "a/b", "a/b/d"], &["a/b/c", "a/b/c/d"]);
        check("*\n!src\n", &["a", "a/b"], &["src", "src/a"]);
    }

    #[test]
    fn classes_and_escapes_follow_go() {
        check(
            "[a-c]x\n[^a-c]y\n\\*z\n",
            &["bx", "dy", "*z"],
            &["dx", "by", "az"],
        );
        check("[a\n", &[], &["a", "[a"]);
        check("{a,b}\n[!c]d\n", &["{a,b}", "!d"], &["a", "b", "ad"]);
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        let ignore = IgnoreRules::parse("\u{feff}# a comment\n\n  \n/\n.\n");
        assert!(!ignore.excludes("a") && !ignore.has_inclusions());
    }
}
