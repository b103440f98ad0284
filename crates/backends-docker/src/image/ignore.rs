//! `.dockerignore`: what of a build's context stays at home.
//!
//! The rules are Docker's: a line is a pattern of Go's `filepath.Match` in which `**` stands for any
//! number of directories; the last line that matches a path or a directory above it decides; `!`
//! takes back.

/// The lines of a `.dockerignore`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ignore {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    components: Vec<String>,
    keeps: bool,
}

impl Ignore {
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let rules = text.lines().filter_map(|line| {
            if line.starts_with('#') {
                return None;
            }
            let line = line.trim();
            let (keeps, pattern) = match line.strip_prefix('!') {
                Some(pattern) => (true, pattern.trim()),
                None => (false, line),
            };
            let mut components: Vec<String> = Vec::new();
            for component in pattern.split('/') {
                match component {
                    "" | "." => {}
                    ".." => {
                        components.pop();
                    }
                    name => components.push(name.to_owned()),
                }
            }
            (!components.is_empty()).then_some(Rule { components, keeps })
        });
        Self {
            rules: rules.collect(),
        }
    }

    /// Whether the file or directory at `path` (relative, joined by `/`) stays at home.
    pub(crate) fn excludes(&self, path: &str) -> bool {
        let components: Vec<_> = path.split('/').collect();
        let mut excluded = false;
        for rule in &self.rules {
            if rule.keeps == excluded && rule.matches_or_above(&components) {
                excluded = !rule.keeps;
            }
        }
        excluded
    }

    /// Whether something below a directory that stays at home may be taken along all the same.
    pub(crate) fn takes_back(&self) -> bool {
        self.rules.iter().any(|rule| rule.keeps)
    }
}

impl Rule {
    fn matches_or_above(&self, path: &[&str]) -> bool {
        (1..=path.len()).any(|length| {
            let above = path.get(..length).unwrap_or_default();
            components_match(&self.components, above)
        })
    }
}

fn components_match(pattern: &[String], path: &[&str]) -> bool {
    let Some((first, rest)) = pattern.split_first() else {
        return path.is_empty();
    };
    if first == "**" {
        // A trailing one stands for something, not for nothing.
        let least = usize::from(rest.is_empty());
        return (least..=path.len())
            .any(|skipped| components_match(rest, path.get(skipped..).unwrap_or_default()));
    }
    path.split_first().is_some_and(|(name, below)| {
        let (pattern, name): (Vec<_>, Vec<_>) = (first.chars().collect(), name.chars().collect());
        name_matches(&pattern, &name) && components_match(rest, below)
    })
}

/// Matches one component: `*`, `?`, `[a-z]`, `[^a-z]` and `\` before anything.
fn name_matches(pattern: &[char], name: &[char]) -> bool {
    let Some((first, rest)) = pattern.split_first() else {
        return name.is_empty();
    };
    if *first == '*' {
        return (0..=name.len())
            .any(|taken| name_matches(rest, name.get(taken..).unwrap_or_default()));
    }
    let Some((character, below)) = name.split_first() else {
        return false;
    };
    match first {
        '?' => name_matches(rest, below),
        '[' => match class(rest) {
            Some((class, rest)) => class.has(*character) && name_matches(rest, below),
            None => false,
        },
        '\\' => rest
            .split_first()
            .is_some_and(|(literal, rest)| literal == character && name_matches(rest, below)),
        literal => literal == character && name_matches(rest, below),
    }
}

struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
}

impl Class {
    fn has(&self, character: char) -> bool {
        let within = |(low, high): &(char, char)| (*low..=*high).contains(&character);
        self.ranges.iter().any(within) != self.negated
    }
}

/// Reads a class up to its `]`; returns what follows it.
fn class(pattern: &[char]) -> Option<(Class, &[char])> {
    let (negated, mut rest) = match pattern.split_first() {
        Some(('^', rest)) => (true, rest),
        _ => (false, pattern),
    };
    let mut ranges = Vec::new();
    loop {
        let (low, after) = literal(rest)?;
        let (high, after) = match after.split_first() {
            Some(('-', after)) => literal(after)?,
            _ => (low, after),
        };
        ranges.push((low, high));
        match after.split_first() {
            Some((']', after)) => return Some((Class { negated, ranges }, after)),
            _ => rest = after,
        }
    }
}

fn literal(pattern: &[char]) -> Option<(char, &[char])> {
    match pattern.split_first()? {
        ('\\', rest) => rest
            .split_first()
            .map(|(character, rest)| (*character, rest)),
        (character, rest) => Some((*character, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::Ignore;

    #[track_caller]
    fn check(text: &str, excluded: &[&str], included: &[&str]) {
        let ignore = Ignore::parse(text);
        for path in excluded {
            assert!(ignore.excludes(path), "{path} comes along");
        }
        for path in included {
            assert!(!ignore.excludes(path), "{path} stays at home");
        }
    }

    #[test]
    fn a_name_means_that_place_and_all_below_it() {
        check("/a/b/\n", &["a/b", "a/b/c"], &["a", "b", "a/bc", "x/a/b"]);
    }

    #[test]
    fn a_star_stays_within_a_component() {
        check(
            "*.md\n*/t?mp\n",
            &["x.md", "a/temp", "a/temp/x"],
            &["a/x.md", "temp", "a/b/temp"],
        );
    }

    #[test]
    fn two_stars_cross_directories() {
        let excluded = ["x.log", "a/x.log", "a/b/x.log", "docs/a", "docs/a/b"];
        check("**/*.log\ndocs/**\n", &excluded, &["docs", "x.logs"]);
    }

    #[test]
    fn the_last_line_decides() {
        check("*.md\n!README.md\n", &["a.md"], &["README.md"]);
        check("!README.md\n*.md\n", &["a.md", "README.md"], &[]);
        check("a\n!a/b/c\n", &["a", "a/b", "a/b/d"], &["a/b/c", "a/b/c/d"]);
        check("*\n!src\n", &["a", "a/b"], &["src", "src/a"]);
    }

    #[test]
    fn classes_and_escapes_are_gos() {
        check(
            "[a-c]x\n[^a-c]y\n\\*z\n",
            &["bx", "dy", "*z"],
            &["dx", "by", "az"],
        );
        check("[a\n", &[], &["a", "[a"]);
    }

    #[test]
    fn comments_and_empty_lines_are_nothing() {
        let ignore = Ignore::parse("\u{feff}# a comment\n\n  \n/\n.\n");
        assert!(!ignore.excludes("a") && !ignore.takes_back());
    }
}
