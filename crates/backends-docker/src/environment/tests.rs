use super::*;
use crate::options::Options;

fn read(text: &str) -> Vec<(String, String)> {
    let variables = parse(text).into_iter();
    variables
        .map(|(name, value)| (name, value.expose().to_owned()))
        .collect()
}

#[track_caller]
fn check(text: &str, expected: &[(&str, &str)]) {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    assert_eq!(read(text), expected.iter().map(owned).collect::<Vec<_>>());
}

#[test]
fn file_is_parsed_with_shell_quoting() {
    check(
        "A=1\nB = two words \n\n# C=3\nexport D=4 # four\nE=\n",
        &[("A", "1"), ("B", "two words"), ("D", "4"), ("E", "")],
    );
    check(
        "A='x # \\n \"y\"'\nB=\"a\\nb \\\"c\\\" \\z\" # d\nC=#x\n",
        &[("A", "x # \\n \"y\""), ("B", "a\nb \"c\" \\z"), ("C", "#x")],
    );
    check(
        "KEY=\"-----BEGIN\nabc\n-----END\"\nA=1",
        &[("A", "1"), ("KEY", "-----BEGIN\nabc\n-----END")],
    );
    check("\u{feff}A=ü=1\r\nnothing\n=x\nB C=1\n", &[("A", "ü=1")]);
}

#[test]
fn unterminated_quote_drops_only_its_line() {
    check("A=\"x\nB=2\n", &[("B", "2")]);
}

fn options(names: &[&str], file: &Path) -> Options {
    let backend = crate::DockerBackend::from_image("x")
        .pass_environment(names.iter().copied())
        .with_environment_file(file);
    backend.options().clone()
}

#[test]
fn process_environment_overrides_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("variables");
    std::fs::write(&file, "BOTH=file\nFILE=file\nOTHER=x").unwrap();
    let own = |name: &str| (name != "FILE").then(|| "own".to_owned());
    let found = inherited(&options(&["BOTH", "FILE"], &file), &own).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|(name, value)| (&**name, value.expose()))
        .collect();
    assert_eq!(found, [("BOTH", "own"), ("FILE", "file")]);
}

#[test]
fn missing_variable_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("variables");
    let missing = inherited(&options(&["KEY"], &file), &|_| None).unwrap_err();
    assert!(
        missing.to_string().contains("failed to read the variables"),
        "{missing}"
    );
    std::fs::write(&file, "OTHER=the secret").unwrap();
    let missing = inherited(&options(&["KEY"], &file), &|_| None).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "the variable `KEY` is to be inherited but isn't set"
    );
}
