use proptest::prelude::*;

use super::*;

fn words(line: &str) -> Vec<String> {
    split(line).unwrap_or_else(|refusal| panic!("{line:?}: {refusal:?}"))
}

#[test]
fn words_are_split_and_quoted_as_in_bash() {
    for (line, expected) in [
        ("ls", &["ls"][..]),
        ("  ls\t-la  \n", &["ls", "-la"]),
        ("git commit -m 'a  b'", &["git", "commit", "-m", "a  b"]),
        (r#"a "b c"d' e'f"#, &["a", "b cd ef"]),
        (r"a\ b \'c\' \;", &["a b", "'c'", ";"]),
        (r#"echo "\"\\\$\`" "\n""#, &["echo", "\"\\$`", "\\n"]),
        (r"cat a\ ", &["cat", "a "]),
        ("cat a\\ \t\n", &["cat", "a "]),
        (r"cat a\\ ", &["cat", r"a\"]),
        (r"echo '\n'", &["echo", "\\n"]),
        ("echo '' \"\"", &["echo", "", ""]),
        ("a \\\n b", &["a", "b"]),
        ("a\\\nb", &["ab"]),
        ("echo \"a\\\nb\"", &["echo", "ab"]),
        // Operators that are quoted are text, and nothing is ever expanded.
        ("grep 'a;b|c&d' \"<(>)`\"", &["grep", "a;b|c&d", "<(>)`"]),
        ("echo \"$(rm x)\" '\n'", &["echo", "$(rm x)", "\n"]),
        (
            "echo $HOME ~ *.rs {a,b} #x !!",
            &["echo", "$HOME", "~", "*.rs", "{a,b}", "#x", "!!"],
        ),
        ("env A=1 x", &["env", "A=1", "x"]),
        ("'A=1' x", &["A=1", "x"]),
        ("A\\=1", &["A=1"]),
        ("1A=1", &["1A=1"]),
        ("--x=1", &["--x=1"]),
        ("größe ß", &["größe", "ß"]),
    ] {
        assert_eq!(words(line), expected, "{line:?}");
    }
}

#[test]
fn shell_syntax_is_refused_with_advice() {
    let lines = [
        "a; b",
        "a\nb",
        "a && b",
        "sleep 9 &",
        "a | b",
        "a < b",
        "a > b",
        "a 2>&1",
        "(a)",
        "a)",
        "a $(b)",
        "a `b`",
        "A=1 b",
        "A+=1",
        "A[0]=1 b",
        "a 'b",
        "a \"b",
        "a \"b\\",
        "a \\",
        "\\\n",
    ];
    let refused = lines.map(|line| match split(line) {
        Ok(words) => panic!("{line:?} was taken as {words:?}"),
        Err(refusal) => format!("{line:?}\n{refusal}"),
    });
    insta::assert_snapshot!(refused.join("\n"));
}

#[test]
fn commands_have_one_canonical_form() {
    for (line, expected) in [
        ("git   status", "git status"),
        ("g'i't \"status\"", "git status"),
        ("git \\status", "git status"),
        ("echo 'it'\"'\"'s'", "echo 'it'\"'\"'s'"),
        ("echo it\\'s", "echo 'it'\"'\"'s'"),
        ("cat \"a b\" ''", "cat 'a b' ''"),
        ("echo a;b", ""),
        ("echo 'a;b' ~ * ü", "echo 'a;b' '~' '*' 'ü'"),
    ] {
        let form = split(line).map(|words| join(&words)).unwrap_or_default();
        assert_eq!(form, expected, "{line:?}");
    }
}

proptest! {
    #[test]
    fn whatever_words_are_joined_split_again(words in prop::collection::vec("[^\\x00]{0,8}", 1..5)) {
        // The first word as written is quoted where it could be an assignment.
        let mut argv = words;
        argv[0].insert(0, '/');
        prop_assert_eq!(split(&join(&argv)), Ok(argv));
    }

    #[test]
    fn no_line_panics_and_each_has_one_form(line in "[a-c=+ \\t\\n\\\\'\"$`;&|<>()\\[\\]~*#ü]{0,24}") {
        if let Ok(words) = split(&line) {
            prop_assert!(!words.is_empty());
            let form = join(&words);
            // A word that looks like an assignment only because its quotes are gone stays refused.
            if let Ok(again) = split(&form) {
                prop_assert_eq!(again, words);
            }
        }
    }
}
