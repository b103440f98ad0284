//! Hosts and wording in the files of the repository.

use std::path::PathBuf;

use super::{assert_none, sources, texts};

/// Hosts of package indexes. In halves, so that this file does not name them.
const INDEX_HOSTS: [(&str, &str); 6] = [
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("npmjs", ".org"),
    ("npmjs", ".com"),
    ("crates", ".io"),
    ("debian", ".org"),
];

/// Real hosts: model providers, sources of facts, and services that Cantle talks to.
const REAL_HOSTS: &[&str] = &[
    "amazonaws.com",
    "anthropic.com",
    "azure.com",
    "bing.com",
    "cerebras.ai",
    "claude.com",
    "cloud.google.com",
    "connectrpc.com",
    "deepseek.com",
    "docker.io",
    "duckduckgo.com",
    "e2b.dev",
    "fireworks.ai",
    "github.com",
    "google.com",
    "google.dev",
    "googleapis.com",
    "groq.com",
    "html.spec.whatwg.org",
    "httpoxy.org",
    "iana.org",
    "json-schema.org",
    "keepachangelog.com",
    "kernel.org",
    "kimi.ai",
    "kimi.com",
    "litellm.ai",
    "man7.org",
    "microsoft.com",
    "mistral.ai",
    "moonshot.ai",
    "ollama.com",
    "openai.com",
    "openrouter.ai",
    "opentelemetry.io",
    "protobuf.dev",
    "search.brave.com",
    "searxng.org",
    "semver.org",
    "tavily.com",
    "together.ai",
    "together.xyz",
    "url.spec.whatwg.org",
    "vllm.ai",
    "w3.org",
    "x.ai",
];

/// Endings by which a word is taken for a host.
const TOP_LEVELS: [&str; 6] = ["com", "org", "net", "example", "test", "dev"];

/// The text files that people write.
fn written() -> Vec<(PathBuf, String)> {
    let directories = [
        "crates", "xtask", "examples", "benches", "docs", ".ci", ".github",
    ];
    let extensions = ["rs", "md", "toml", "sh", "yml", "yaml", "py", "mjs", "bash"];
    texts(&directories, &extensions)
}

/// Returns the words of a line that look like host names. A word before a parenthesis is a method.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    let is_end = |c: char| !(c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c));
    let words = line
        .split_inclusive(is_end)
        .filter(|word| !word.ends_with('('));
    let words = words.map(move |word| word.trim_end_matches(is_end).trim_matches(['.', '-']));
    words.filter(|word| {
        let Some((name, top)) = word.rsplit_once('.') else {
            return false;
        };
        // A tail such as `profile.dev` is a field.
        TOP_LEVELS.contains(&top) && (top != "dev" || name.contains('.')) && !name.is_empty()
    })
}

fn is_allowed(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let examples = ["example.com", "example.org"];
    let mut domains = examples.iter().chain(REAL_HOSTS);
    domains.any(|domain| host == **domain || host.ends_with(&format!(".{domain}")))
}

#[test]
fn no_package_index_is_named() {
    let marks = INDEX_HOSTS.map(|(one, other)| format!("{one}{other}"));
    let mut found = Vec::new();
    for (path, text) in written() {
        for (index, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                found.push(format!(
                    "{}:{} names a package index",
                    path.display(),
                    index + 1
                ));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn example_hosts_are_reserved_for_examples() {
    let mut found = Vec::new();
    for (path, text) in written() {
        for (index, line) in text.lines().enumerate() {
            for host in hosts(line).filter(|host| !is_allowed(host)) {
                found.push(format!("{}:{}: {host}", path.display(), index + 1));
            }
        }
    }
    assert_none(&found);
}

/// Openings of doc comments and words that the project's style avoids. In halves, as above.
const VOICE: [(&str, &str); 8] = [
    ("no", "body"),
    ("No", "body"),
    ("some", "body"),
    ("Some", "body"),
    ("/// Wh", "at "),
    ("/// Wh", "o "),
    ("//! Wh", "at "),
    ("/// The same ", "with"),
];

#[test]
fn comments_are_in_plain_language() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        for (index, line) in text.lines().enumerate() {
            let Some(at) = line.find("//") else { continue };
            // The user of that name is not a person.
            let user = format!("`{}{}`", "no", "body");
            let comment = line[at..].replace(&user, "");
            for (one, other) in VOICE {
                if comment.contains(&format!("{one}{other}")) {
                    found.push(format!("{}:{}: {}", path.display(), index + 1, comment));
                }
            }
        }
    }
    assert_none(&found);
}

#[test]
fn host_names_are_found() {
    let other = ["web", "test"].join(".");
    let line =
        format!("https://a.b.example.com/x, \"{other}:80\"; profile.dev, it.test_all, a.test(b)");
    assert_eq!(
        hosts(&line).collect::<Vec<_>>(),
        ["a.b.example.com", other.as_str()]
    );
    assert!(is_allowed("models.example.com") && is_allowed("API.OpenAI.com"));
    assert!(!is_allowed(&["evil", "example.com"].concat()) && !is_allowed(&other));
}
