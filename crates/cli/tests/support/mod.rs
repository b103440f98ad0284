//! What the tests of the binary share: running it, waiting, and comparing what it says.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// For [`Place::command_with_signals`]: each signal does what it does by default.
pub(crate) const HEARD: &str = "--default-signal=INT,TERM,HUP";

/// For everything that is waited for, however slow the machine is.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A directory to run `cantle` in, with an environment that has nothing of ours.
pub(crate) struct Place {
    directory: TempDir,
    variables: Vec<(String, String)>,
    program: PathBuf,
}

/// How a run of the program ended.
#[derive(Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
            program: env!("CARGO_BIN_EXE_cantle").into(),
        }
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(path)
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, path: impl AsRef<Path>) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    /// The names below a directory, sorted; none where it isn't there.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Waits until there is something at a path.
    pub(crate) async fn appeared(&self, path: impl AsRef<Path>) {
        let path = self.path(path);
        until(|| path.exists()).await;
    }

    pub(crate) fn result(&self, output_dir: &str) -> Value {
        let path = Path::new(output_dir).join("cantle-result.json");
        serde_json::from_str(&self.read(path)).unwrap()
    }

    pub(crate) fn set(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// The model and the server that runs are to use, as environment variables.
    pub(crate) fn served_by(self, url: &str) -> Self {
        self.set("CANTLE_BASE_URL", url)
            .set("CANTLE_MODEL", "scripted")
    }

    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.command_of(&self.program);
        command.args(args);
        command
    }

    /// The same, whose pid is to be sent signals. Whoever started the tests may ignore some of them
    /// (`nohup`, a job in the background of a script), and the program would too: `how` sets that
    /// right, as options of `env`.
    pub(crate) fn command_with_signals<A: AsRef<OsStr>>(
        &self,
        how: &[&str],
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = self.command_of("env");
        command.args(how).arg(&self.program).args(args);
        command
    }

    /// The same where nobody may make namespaces; see [`without_namespaces`].
    pub(crate) async fn run_without_namespaces<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Option<Ended> {
        let mut command = self.command_of("unshare");
        command
            .args(without_namespaces()?)
            .arg(&self.program)
            .args(args);
        Some(ended(command.spawn().unwrap()).await)
    }

    /// Another program, in the same place.
    pub(crate) fn command_of(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.directory.path())
            .env("XDG_STATE_HOME", self.directory.path().join(".local/state"))
            .env("NO_PROXY", "127.0.0.1")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs it to its end, without input.
    pub(crate) async fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ended {
        ended(self.command(args).spawn().unwrap()).await
    }

    /// Runs it to its end with this input.
    pub(crate) async fn run_with(
        &self,
        args: impl IntoIterator<Item = &str>,
        input: &[u8],
    ) -> Ended {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let write = async move {
            // A program that doesn't read its input is fine.
            let _ = stdin.write_all(input).await;
        };
        tokio::join!(write, ended(child)).1
    }
}

/// Waits for a program's end.
pub(crate) async fn ended(child: Child) -> Ended {
    let output = timeout(DEADLINE, child.wait_with_output()).await;
    Ended::from(output.unwrap().unwrap())
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// Everything it said, for snapshots: without times and addresses that differ each time.
    pub(crate) fn told(&self, place: &Place) -> String {
        let here = place.path("");
        let text = format!(
            "exit code {}\n--- stdout\n{}--- stderr\n{}",
            self.code.unwrap_or(-1),
            self.stdout,
            self.stderr
        );
        let text = text.replace(here.to_str().unwrap().trim_end_matches('/'), "HERE");
        redact(&without_walls(&text))
    }
}

/// Text without the walls that this machine has.
fn without_walls(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let parts: Vec<&str> = line.split(" · ").collect();
        match parts[..] {
            [place @ "sandbox   local", _, reached] => format!("{place} · WALLS · {reached}"),
            _ => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Text without what differs each time: ids of runs, local ports, and times in seconds.
pub(crate) fn redact(text: &str) -> String {
    let is_hex = |c: char| c.is_ascii_hexdigit();
    let words = text.split_inclusive(|c| !is_hex(c)).map(|word| {
        match word.trim_end_matches(|c| !is_hex(c)) {
            id if id.len() == 32 => word.replace(id, "RUN"),
            _ => word.to_owned(),
        }
    });
    let text: String = words.collect();
    let mut redacted = String::new();
    let mut rest = &*text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from_digit) = rest.split_at(at);
        redacted.push_str(before);
        let end = from_digit.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, after) = from_digit.split_at(end.unwrap_or(from_digit.len()));
        if before.ends_with("127.0.0.1:") || redacted.ends_with("127.0.0.1:") {
            redacted.push_str("PORT");
        } else if after.starts_with(" s") && number.contains('.') {
            redacted.push('T');
        } else {
            redacted.push_str(number);
        }
        rest = after;
    }
    redacted + rest
}

/// Sends a signal to a program.
pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Waits until it is so.
async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, wait).await.unwrap();
}

/// A word in the arguments of processes by which they are found, whatever namespace they are in.
#[derive(Debug)]
pub(crate) struct Mark(String);

impl Mark {
    /// One that no other process has.
    pub(crate) fn new(place: &Place) -> Self {
        let name = place.directory.path().file_name().unwrap();
        Self(format!("mark-{}", name.to_str().unwrap()))
    }

    /// The arguments of all processes that have it in one.
    fn processes(&self) -> Vec<Vec<String>> {
        let read = |entry: std::fs::DirEntry| {
            let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
            let arguments = String::from_utf8_lossy(&arguments).into_owned();
            arguments.contains(&self.0).then(|| {
                let words = arguments.trim_end_matches('\0').split('\0');
                words.map(str::to_owned).collect()
            })
        };
        let entries = std::fs::read_dir("/proc").unwrap();
        entries.filter_map(|entry| read(entry.ok()?)).collect()
    }

    /// Waits for a bash that has it as its last argument.
    pub(crate) async fn appeared(&self) {
        let is_it = |process: &Vec<String>| {
            process.first().is_some_and(|name| name == "bash") && process.last() == Some(&self.0)
        };
        self.wait(|processes| processes.iter().any(is_it)).await;
    }

    /// Waits until no process has it.
    pub(crate) async fn gone(&self) {
        self.wait(<[_]>::is_empty).await;
    }

    async fn wait(&self, done: impl Fn(&[Vec<String>]) -> bool) {
        until(|| done(&self.processes())).await;
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Arguments for [`Place::command_of`] `unshare`, before those of the program: an ordinary user on a
/// machine where nobody may make namespaces. `None`, said aloud, where that can't be had.
pub(crate) fn without_namespaces() -> Option<Vec<&'static str>> {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let args = vec![
        "--user",
        "--map-user=1000",
        "--map-group=1000",
        "--keep-caps",
        "bash",
        "-c",
        script,
    ];
    let tried = std::process::Command::new("unshare")
        .args(&args)
        .arg("true")
        .output();
    if tried.is_ok_and(|output| output.status.success()) {
        return Some(args);
    }
    eprintln!("SKIPPED: no user namespace, to forbid further ones in");
    None
}

/// What a peer's test finds in its environment; `None`, said aloud, where the peer isn't there.
///
/// # Panics
/// Where it isn't there, though `CANTLE_REQUIRE` names it.
pub(crate) fn peer<const N: usize>(peer: &str, variables: [&str; N]) -> Option<[String; N]> {
    let values = variables.map(|name| std::env::var(name).unwrap_or_default());
    if values.iter().all(|value| !value.is_empty()) {
        return Some(values);
    }
    let required = std::env::var("CANTLE_REQUIRE").unwrap_or_default();
    let mut required = required.split(',').map(str::trim);
    assert!(
        !required.any(|name| name == peer || name == "all"),
        "{peer} is required, but {variables:?} are not all set"
    );
    eprintln!("SKIPPED: {peer} is not there ({})", variables.join(", "));
    None
}
