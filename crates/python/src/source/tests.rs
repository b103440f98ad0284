use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;

fn error(source: impl AsRef<[u8]>) -> (String, usize, usize) {
    let error = SourceFacts::of(source.as_ref()).syntax_error.unwrap();
    (error.message, error.line, error.column)
}

#[test]
fn imports_have_their_place() {
    let source = "import a.b, c as d\nif x:\n  from e.f import g, h\nfrom . import i\nfrom ..j import *\n\
                  'ü'; import k\ndef f():\n\timport c\n";
    let imports = SourceFacts::of(source.as_bytes()).imports.into_iter();
    let imports: Vec<_> = imports
        .map(|it| (it.module, it.level, it.line, it.column))
        .collect();
    let expected = [
        ("a.b", 0, 1, 8),
        ("c", 0, 1, 13),
        ("e.f", 0, 3, 3),
        ("", 1, 4, 1),
        ("j", 2, 5, 1),
        ("k", 0, 6, 13),
        ("c", 0, 8, 9),
    ];
    let expected = expected.map(|(module, level, line, at)| (module.to_owned(), level, line, at));
    assert_eq!(imports, expected);
}

#[test]
fn dynamic_imports_are_seen() {
    let source = "x = [importlib.import_module('os')]\n__import__('os').system('id')\nexec('import os')\n\
                  model.eval()\nre.compile('a')\n";
    let dynamic = SourceFacts::of(source.as_bytes()).dynamic.into_iter();
    let dynamic: Vec<_> = dynamic
        .map(|it| (it.function, it.line, it.column))
        .collect();
    let expected = [
        ("importlib.import_module", 1, 6),
        ("__import__", 2, 1),
        ("exec", 3, 1),
    ];
    assert_eq!(
        dynamic,
        expected.map(|(name, line, at)| (name.to_owned(), line, at))
    );
}

#[test]
fn many_calls_are_located_in_one_pass() {
    // Counting from the start of the text or of the line for each call would take too long.
    let on_lines = "(exec(0)\nif eval(0) else 0)\n".repeat(15_000);
    let facts = SourceFacts::of(on_lines.as_bytes());
    let last = facts.dynamic.last().unwrap();
    assert_eq!((last.function.as_str(), last.line), ("eval", 30_000));
    let on_a_line = "exec();".repeat(70_000);
    let facts = SourceFacts::of(on_a_line.as_bytes());
    let last = facts.dynamic.last().unwrap();
    assert_eq!((last.line, last.column), (1, 7 * 69_999 + 1));
}

#[test]
fn no_list_allows_all_modules_and_an_empty_list_none() {
    let facts = SourceFacts::of(b"import os.path, osx\nimport os.path\nfrom .x import y\n");
    let forbidden = |allowed: Option<&[&str]>| {
        let allowed = allowed.map(|it| it.iter().map(ToString::to_string).collect::<Vec<_>>());
        let found = facts.forbidden_imports(allowed.as_deref());
        found.map(|it| it.module.clone()).collect::<Vec<_>>()
    };
    assert_eq!(forbidden(None), [""; 0]);
    assert_eq!(forbidden(Some(&[])), ["os.path", "osx"]);
    assert_eq!(forbidden(Some(&["os"])), ["osx"]);
    assert_eq!(forbidden(Some(&["os.path", "osx"])), [""; 0]);
}

#[test]
fn hostile_source_is_refused_by_name() {
    let repeated = |text: &str, count: usize| text.repeat(count);
    assert_eq!(
        error(repeated("(", 20_000)).0,
        "too many nested parentheses"
    );
    assert_eq!(error(b"x = 1\ny = '\xff'").0, "the source is not UTF-8");
    assert_eq!(
        error(b"x = 1\n\0"),
        ("source code cannot contain null bytes".into(), 2, 1)
    );
    let too_large = "the source has 10000000 bytes; at most 1048576 are accepted";
    assert_eq!(error(repeated("x", 10_000_000)).0, too_large);
    let deep = "the expression is too complex";
    assert_eq!(error(repeated("-", 500_000) + "x").0, deep);
    assert_eq!(error(repeated("x.", 500_000) + "x").0, deep);
    assert_eq!(error(repeated("x+", 500_000) + "x").0, deep);
    assert_eq!(error(repeated("lambda:", 100_000) + "x").0, deep);
    assert_eq!(
        error(repeated("f'{", 100_000)).0,
        "too many nested parentheses"
    );
    let indented: String = (0..200)
        .map(|depth| " ".repeat(depth) + "if x:\n")
        .collect();
    assert_eq!(error(indented).0, "too many levels of indentation");
}

#[test]
fn the_deepest_accepted_source_fits_the_stack() {
    for (open, count) in [
        ("-", 2400),
        ("x.", 1200),
        ("lambda:", 450),
        ("not ", 2400),
        ("x**", 1200),
    ] {
        let source = open.repeat(count) + "x";
        let error = SourceFacts::of(source.as_bytes()).syntax_error;
        assert_eq!(error, None, "{open}");
    }
    let brackets = "(".repeat(199) + &"-".repeat(1900) + "x" + &")".repeat(199);
    assert_eq!(SourceFacts::of(brackets.as_bytes()).syntax_error, None);
    let list = format!("x = [{}]", "1, 'a' 'b', ".repeat(50_000));
    assert_eq!(SourceFacts::of(list.as_bytes()).syntax_error, None);
}

#[test]
fn no_repetition_of_tokens_overflows_the_stack() {
    let tokens = [
        "x", "1", "'s'", "(", ")", "[", "]", "{", "}", "f'{", ",", ";", ":", ".", "=", ":=", "-",
        "**", "*", "@", "->", "not", "in", "is", "if", "else", "for", "while", "with", "as",
        "async", "await", "lambda", "yield", "from", "import", "def", "class", "try", "except",
        "match", "case", "type", "return", "del", "\n",
    ];
    let is_full = cantle_testkit::lane::is_full();
    let length = if is_full { 4000 } else { 1500 };
    // What separators keep open, and a sample of the others.
    let kept = ["lambda", "yield", "f'{", "if", "await"];
    let pairs = tokens.iter().enumerate().flat_map(|(i, a)| {
        let seconds = tokens.iter().enumerate();
        let chosen = seconds.filter(move |(j, b)| {
            is_full || (i * 7 + j) % 127 == 0 || kept.contains(a) && kept.contains(b)
        });
        chosen.map(move |(_, b)| [*a, *b, "x"])
    });
    let long = [
        ["lambda", "a,", "b:"],
        ["yield", "a", ","],
        ["if x:", "a", ";"],
        ["if x:", "a,", "b;"],
    ];
    for pattern in pairs.chain(long) {
        let source = format!("{} ", pattern.join(" ")).repeat(length);
        SourceFacts::of(source.as_bytes());
    }
}

#[test]
fn syntax_is_that_of_the_version() {
    let source = b"try: pass\nexcept* ValueError: pass\n";
    let error = SourceFacts::for_minor_version(source, 10).syntax_error;
    let expected =
        "cannot use `except*` on Python 3.10 (syntax was added in Python 3.11) (line 2, column 7)";
    assert_eq!(error.unwrap().to_string(), expected);
    assert_eq!(
        SourceFacts::for_minor_version(source, 11).syntax_error,
        None
    );
    assert_eq!(SourceFacts::of(source).syntax_error, None);
}

/// Source whose verdict depends on the version.
const VERSIONED: [&str; 9] = [
    "match x:\n    case 1: pass\n",
    "type X = int\n",
    "def f[T](x: T): pass\n",
    "def f[T = int](x: T): pass\n",
    "f'{x[\"a\"]}' f'{'b'}'\n",
    "x[*a]\n",
    "def f(*args: *T): pass\n",
    "t'{x}'\n",
    "try: pass\nexcept A, B: pass\n",
];

/// Source whose verdict and line are compared with those of each CPython at hand.
const CORPUS: &str = include_str!("corpus.txt");

#[test]
fn verdicts_and_lines_are_those_of_cpython() {
    let script = "import ast, json, sys, warnings\nwarnings.simplefilter('ignore')\nlines = []\n\
                  for source in json.load(sys.stdin):\n try: ast.parse(source); lines.append(0)\n\
                  \x20except SyntaxError as error: lines.append(error.lineno)\n\
                  json.dump([sys.version_info[1], lines], sys.stdout)";
    let corpus: Vec<_> = CORPUS.split("\n----\n").chain(VERSIONED).collect();
    let home = std::env::home_dir().unwrap_or_default();
    let others = std::fs::read_dir(home.join(".pyenv/versions"));
    let others = others.into_iter().flatten().flatten();
    let others = others.filter(|it| {
        let minor = it.file_name().to_str().and_then(|name| {
            name.strip_prefix("3.")?
                .split('.')
                .next()?
                .parse::<u32>()
                .ok()
        });
        minor.is_some_and(|minor| minor >= 9)
    });
    let others = others.map(|it| it.path().join("bin/python"));
    for python in std::iter::once("python3".into()).chain(others) {
        compare_with(&python, script, &corpus);
    }
}

fn compare_with(python: &std::path::Path, script: &str, corpus: &[&str]) {
    let mut child = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = serde_json::to_vec(corpus).unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    let (minor, mut expected): (u8, Vec<usize>) = serde_json::from_slice(&output.stdout).unwrap();
    let found = corpus.iter().map(|source| {
        let error = SourceFacts::for_minor_version(source.as_bytes(), minor).syntax_error;
        error.map_or(0, |error| error.line)
    });
    let mut found: Vec<_> = found.collect();
    assert!(expected.contains(&0) && expected.iter().any(|line| *line > 1));
    if minor == 9 {
        // It tells where a missing bracket was noticed, and later versions where it was opened.
        for line in found.iter_mut().chain(&mut expected) {
            *line = usize::from(*line > 0);
        }
    }
    for ((source, found), expected) in corpus.iter().zip(&found).zip(&expected) {
        assert_eq!(found, expected, "{}: {source}", python.display());
    }
}
