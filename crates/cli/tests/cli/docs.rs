//! Runs the command blocks of the documentation.
//!
//! Every `sh`, `bash` and `console` block of README.md and docs/*.md is run by bash with `set -eu`, top to
//! bottom, all blocks of one file in the same temporary directory. In a `console` block, lines that begin with
//! `$ ` are commands; the block passes when its first other line has been printed, and is then
//! killed.
//!
//! A block finds `cantle` on its `PATH`; `cargo run --release -- ARGS` runs that program, too. `MODEL_URL` is
//! a model server on loopback that plays every model: its first turn runs `ls -la`, its second calls the
//! finish tool. Runs without flags use it as well. `INDEX_HOST` is a host name. There are no other files
//! than those that earlier blocks or marks have made.
//!
//! Marks are HTML comments directly above a block, one a line:
//!
//! ```text
//! <!-- not run: needs a key -->                the block is not run, for this reason
//! <!-- run: model -->                          for readers: `MODEL_URL` is the scripted server
//! <!-- run: docker -->                         needs a container engine; its image is replaced by the tests' image
//! <!-- setup: mkdir data; echo 1 > data/a -->  run before the block, in the same shell
//! <!-- exits: 3 -->                            the expected exit code of the block, 0 otherwise
//! ```

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer};
use tokio::process::Command;
use tokio::time::timeout;

use crate::{command, finish};

/// The time for one block.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// A fenced block of commands with its marks.
#[derive(Debug, Default, PartialEq)]
struct Block {
    line: usize,
    script: String,
    /// The line by which a `console` block has succeeded.
    expected: Option<String>,
    not_run: Option<String>,
    needs_docker: bool,
    setup: String,
    exit_code: i32,
}

/// Returns the command blocks of a document.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut marks = Block::default();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let trimmed = line.trim();
        if let Some(language) = trimmed.strip_prefix("```") {
            let body = lines.by_ref().map(|(_, line)| line.trim_start());
            let body: Vec<&str> = body.take_while(|line| !line.starts_with("```")).collect();
            let is_console = language == "console";
            let command = |line: &&str| match is_console {
                true => line.strip_prefix("$ ").map(str::to_owned),
                false => Some((*line).to_owned()),
            };
            let script = match language {
                "sh" | "bash" | "console" => body.iter().filter_map(command).collect(),
                _ => Vec::new(),
            };
            let script = script.join("\n");
            let expected = body
                .iter()
                .find(|line| is_console && !line.starts_with("$ "));
            let expected = expected.map(|line| (*line).to_owned());
            let block = Block {
                line: index + 1,
                script,
                expected,
                ..std::mem::take(&mut marks)
            };
            if !block.script.is_empty() {
                blocks.push(block);
            }
        } else if let Some(mark) = trimmed
            .strip_prefix("<!-- ")
            .and_then(|line| line.strip_suffix(" -->"))
        {
            match mark.split_once(": ") {
                Some(("not run", reason)) => marks.not_run = Some(reason.to_owned()),
                Some(("run", "docker")) => marks.needs_docker = true,
                Some(("setup", line)) => marks.setup += &format!("{line}\n"),
                Some(("exits", code)) => marks.exit_code = code.parse().expect("an exit code"),
                _ => {}
            }
        } else if !trimmed.is_empty() {
            marks = Block::default();
        }
    }
    blocks
}

/// Makes the programs that blocks call.
fn make_programs(bin: &Path) {
    symlink(env!("CARGO_BIN_EXE_cantle"), bin.join("cantle")).unwrap();
    let cargo = bin.join("cargo");
    let script = "#!/bin/sh\n\
        case \"$*\" in\n\
        'run --release -- '*) shift 3; exec cantle \"$@\";;\n\
        'xtask '*) echo \"CI runs cargo $*\"; exit 0;;\n\
        esac\n\
        echo \"mark this block as not run: cargo $*\" >&2\nexit 1\n";
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
}

async fn run_blocks(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    let script = Script::new()
        .turn(command("ls -la"))
        .turn(finish("Done.", &[]))
        .repeat_last();
    let server = ScriptedServer::start(script).await.unwrap();
    let url = server.url();
    let [directory, home, bin] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    // Root's state is else the machine's, which others use. Commands run as another user there.
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711)).unwrap();
    make_programs(bin.path());
    let path = format!(
        "{}:{}",
        bin.path().display(),
        std::env::var("PATH").unwrap()
    );
    for block in blocks(&text) {
        let at = format!("{}:{}", file.display(), block.line);
        if let Some(reason) = &block.not_run {
            println!("{at} is not run: {reason}");
            continue;
        }
        let mut script = format!("set -eu\n{}{}\n", block.setup, block.script);
        let mut bash = Command::new("bash");
        bash.env_clear();
        if block.needs_docker {
            let engine = ["CANTLE_TEST_DOCKER_HOST", "CANTLE_TEST_DOCKER_IMAGE"].map(std::env::var);
            let [Ok(host), Ok(image)] = engine else {
                lane::skip(&format!("{at} needs a container engine"));
                continue;
            };
            script = script.replace("debian:12-slim", &image);
            bash.env("DOCKER_HOST", host);
        }
        let output = tempfile::NamedTempFile::new().unwrap();
        let stdout = output.reopen().unwrap();
        bash.arg("-c")
            .arg(&script)
            .current_dir(directory.path())
            .env("PATH", &path)
            .env("HOME", home.path())
            .env("XDG_STATE_HOME", home.path().join("state"))
            .env("NO_PROXY", "127.0.0.1")
            .env("INDEX_HOST", "index.example.com")
            .env("MODEL_URL", &url)
            .env("CANTLE_BASE_URL", &url)
            .env("CANTLE_MODEL", "scripted")
            .env("CANTLE_API_KEY", "sk-scripted")
            .stdin(Stdio::null())
            .stderr(stdout.try_clone().unwrap())
            .stdout(stdout)
            .kill_on_drop(true);
        let printed = || fs::read_to_string(output.path()).unwrap_or_default();
        let mut child = bash.spawn().unwrap();
        let has_printed = async {
            while !block
                .expected
                .as_ref()
                .is_some_and(|line| printed().contains(line))
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let code = async {
            tokio::select! {
                status = child.wait() => status.unwrap().code(),
                () = has_printed => Some(block.exit_code),
            }
        };
        let code = timeout(BLOCK_TIMEOUT, code).await;
        let code = code.unwrap_or_else(|_| panic!("{at} did not end\n{}", printed()));
        assert_eq!(code, Some(block.exit_code), "{at}\n{script}\n{}", printed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_documentation_works() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = docs
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    files.push(root.join("README.md"));
    files.sort();
    for file in files {
        run_blocks(&file).await;
    }
}

/// All pages are in the table of contents, and the site's links lead somewhere.
#[test]
fn documentation_is_a_site() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let names = fs::read_dir(&docs)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    let pages = || {
        names
            .iter()
            .filter_map(|name| name.strip_suffix(".md"))
            .filter(|name| *name != "SUMMARY")
    };
    for page in pages() {
        assert!(
            contents.contains(&format!("({page}.md)")),
            "SUMMARY.md lacks {page}.md"
        );
    }

    let Ok(mdbook) = std::env::var("CANTLE_TEST_MDBOOK") else {
        return lane::skip("mdBook belongs to the full lane");
    };
    let site = tempfile::tempdir().unwrap();
    let mut build = std::process::Command::new(mdbook);
    let built = build
        .arg("build")
        .arg(&docs)
        .arg("--dest-dir")
        .arg(site.path())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success() && !log.contains("WARN"), "{log}");
    for page in pages() {
        let text = fs::read_to_string(site.path().join(format!("{page}.html"))).unwrap();
        let links = text
            .split("href=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap());
        for link in links.filter(|link| !link.contains(':')) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() {
                format!("{page}.html")
            } else {
                file.to_owned()
            };
            let target = fs::read(site.path().join(&file))
                .unwrap_or_else(|_| panic!("{page} links to {link}"));
            let anchor = format!("id=\"{anchor}\"");
            let has_anchor = String::from_utf8_lossy(&target).contains(&anchor);
            assert!(has_anchor || anchor == "id=\"\"", "{page} links to {link}");
        }
    }
}

#[test]
fn marks_belong_to_the_block_below_them() {
    let text = "<!-- not run: lost -->\ntext\n```sh\none\ntwo\n```\n\n<!-- setup: a -->\n<!-- setup: b -->\n\
                <!-- exits: 3 -->\n```console\n$ three\noutput\n```\n```rust\nfn main() {}\n```\n\
                <!-- not run: needs a key -->\n```bash\nfour\n```\n";
    let script = |line, script: &str| Block {
        line,
        script: script.to_owned(),
        ..Block::default()
    };
    assert_eq!(
        blocks(text),
        [
            script(3, "one\ntwo"),
            Block {
                setup: "a\nb\n".to_owned(),
                exit_code: 3,
                expected: Some("output".to_owned()),
                ..script(11, "three")
            },
            Block {
                not_run: Some("needs a key".to_owned()),
                ..script(19, "four")
            },
        ]
    );
}
