use std::error::Error as _;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use super::*;

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn skill(&self, directory: &str, content: impl AsRef<[u8]>) -> &Self {
        let place = self.path().join(directory);
        std::fs::create_dir_all(&place).expect("a directory");
        std::fs::write(place.join(FILE), content).expect("written");
        self
    }

    fn load(&self) -> Skills {
        Skills::load(self.path()).expect("a directory")
    }

    /// Returns the prompt section and the warnings, without the directory's own path.
    fn report(&self) -> String {
        let skills = self.load();
        let section = skills.prompt_section().unwrap_or_else(|| "none".to_owned());
        let warnings = skills.warnings().join("\n");
        let report = format!("{section}\n\n{warnings}\n");
        let real = self.path().canonicalize().expect("it is there");
        report.replace(&real.display().to_string(), "[skills]")
    }
}

#[test]
fn skills_are_listed_by_name_with_path_and_description() {
    let directory = Directory::new();
    directory
        .skill(
            "pdf",
            "---\nname: pdf-forms\ndescription: Fills in PDF forms.\nlicense: MIT\nallowed-tools: [a, b]\n---\n# How\n",
        )
        .skill(
            "data_analysis",
            "---\ndescription: >\n  Analyses tables\n  and draws charts.\nname: \"data: analysis\"\nmetadata:\n  version: 1.0\n---",
        )
        .skill("numbers", "---\nname: 2024\ndescription: 'It''s quoted.'\n---\n");
    std::fs::write(directory.path().join("README.md"), "not a skill").expect("written");
    std::fs::create_dir(directory.path().join(".git")).expect("made");
    insta::assert_snapshot!(directory.report());
    assert_eq!(directory.load().directory(), directory.path());
}

#[test]
fn line_ends_of_windows_and_a_byte_order_mark_are_fine() {
    let directory = Directory::new();
    directory
        .skill(
            "a",
            "\u{feff}---\r\nname: a\r\ndescription: With both.\r\n---\r\nText\r\n",
        )
        .skill("b", "---  \nname: b\ndescription: With blanks.\n--- \t\n");
    let skills = directory.load();
    assert_eq!(skills.warnings(), [""; 0]);
    let listed: Vec<_> = skills
        .listed
        .iter()
        .map(|skill| (skill.name.as_str(), skill.description.as_str()))
        .collect();
    assert_eq!(listed, [("a", "With both."), ("b", "With blanks.")]);
}

#[test]
fn an_invalid_skill_is_a_warning_with_its_path_and_reason() {
    let directory = Directory::new();
    let huge = "x".repeat(100_000);
    directory
        .skill("01-none", "# Only text\n")
        .skill("02-empty", "")
        .skill("03-open", "---\nname: a\ndescription: b\n")
        .skill(
            "04-huge",
            format!("---\nname: a\ndescription: {huge}\n---\n"),
        )
        .skill(
            "05-colon",
            "---\nname: a\ndescription: Use it: always\n---\n",
        )
        .skill("06-tab", "---\nname: a\n\tdescription: b\n---\n")
        .skill("07-list", "---\n- name\n- description\n---\n")
        .skill("08-type", "---\nname: [a]\ndescription: b\n---\n")
        .skill("09-twice", "---\nname: a\nname: b\ndescription: c\n---\n")
        .skill("10-name", "---\ndescription: b\n---\n")
        .skill("11-description", "---\nname: a\ndescription: '  '\n---\n")
        .skill("12-null", "---\nname: a\ndescription:\n---\n")
        .skill("13-nothing", "---\n---\n")
        .skill("14-latin", b"---\nname: a\ndescription: Gr\xfc\xdfe\n---\n")
        .skill("15-quote", "---\nname: \"a\ndescription: b\n---\n")
        .skill("16-anchor", "---\nname: *a\ndescription: b\n---\n")
        .skill(
            "20-whole",
            format!("---\nname: whole\ndescription: Long file.\n---\n{huge}"),
        );
    std::fs::create_dir(directory.path().join("17-no-file")).expect("made");
    std::fs::create_dir_all(directory.path().join("18-directory").join(FILE)).expect("made");
    let fifo = directory.path().join("19-pipe");
    std::fs::create_dir(&fifo).expect("made");
    rustix::fs::mkfifoat(rustix::fs::CWD, fifo.join(FILE), rustix::fs::Mode::RUSR).expect("made");
    insta::assert_snapshot!(directory.report());
}

#[test]
fn links_are_followed_as_far_as_they_are_uploaded() {
    let outside = Directory::new();
    outside.skill("other", "---\nname: other\ndescription: Elsewhere.\n---\n");
    let directory = Directory::new();
    directory.skill("real", "---\nname: real\ndescription: Here.\n---\n");
    let at = |name: &str| directory.path().join(name);
    symlink(outside.path().join("other"), at("escape")).expect("linked");
    symlink("nowhere", at("dangling")).expect("linked");
    symlink("real/SKILL.md", at("file")).expect("linked");
    std::fs::create_dir_all(at("shared/real")).expect("made");
    std::fs::write(
        at("shared/real").join(FILE),
        "---\nname: shared\ndescription: Linked.\n---\n",
    )
    .expect("written");
    std::fs::write(
        at("shared").join(FILE),
        "---\nname: all\ndescription: All.\n---\n",
    )
    .expect("written");
    symlink("shared/real", at("link")).expect("linked");
    std::fs::create_dir(at("partly")).expect("made");
    symlink(
        outside.path().join("other").join(FILE),
        at("partly").join(FILE),
    )
    .expect("linked");
    insta::assert_snapshot!(directory.report());
}

#[test]
fn of_two_with_one_name_the_first_is_listed() {
    let directory = Directory::new();
    directory
        .skill("b", "---\nname: same\ndescription: Second.\n---\n")
        .skill("a", "---\nname: same\ndescription: First.\n---\n")
        .skill("c", "---\nname: same\ndescription: Third.\n---\n");
    insta::assert_snapshot!(directory.report());
}

#[test]
fn long_texts_and_long_lists_are_cut() {
    let directory = Directory::new();
    let long = "word ".repeat(1_000);
    directory.skill(
        "long",
        format!("---\nname: {long}\ndescription: {long}\n---\n"),
    );
    let [skill] = &directory.load().listed[..] else {
        panic!("one is listed");
    };
    assert_eq!(skill.name.chars().count(), MAX_NAME_CHARS + 1);
    assert_eq!(skill.description.chars().count(), MAX_DESCRIPTION_CHARS + 1);

    let directory = Directory::new();
    for number in 0..205 {
        let name = format!("s{number:03}");
        directory.skill(&name, format!("---\nname: {name}\ndescription: d\n---\n"));
    }
    let section = directory.load().prompt_section().expect("they are listed");
    assert_eq!(section.lines().count(), 1 + MAX_LISTED + 1);
    assert!(section.ends_with("\n- and 5 more; list the directory to see them"));
}

#[test]
fn a_name_that_is_not_utf_8_is_a_warning() {
    let directory = Directory::new();
    let name = OsStr::from_bytes(b"gr\xfcn");
    std::fs::create_dir(directory.path().join(name)).expect("made");
    assert_eq!(
        directory.load().warnings(),
        ["The skill `gr\u{fffd}n` is not listed for the model: its name is not UTF-8."]
    );
    assert_eq!(directory.load().prompt_section(), None);
}

#[test]
fn a_directory_that_can_not_be_read_is_an_error() {
    let directory = Directory::new();
    directory.skill("a", "");
    for (path, why) in [
        (
            directory.path().join("missing"),
            "No such file or directory",
        ),
        (directory.path().join("a").join(FILE), "Not a directory"),
    ] {
        let error = Skills::load(&path).expect_err(why);
        let expected = format!("the skills in `{}` can't be read: {why}", path.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(error.source().is_none(), "the message has it");
    }
}
