//! Helpers for tests of the binary: running it, waiting, and comparing its output.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use cantle_testkit::lane;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Option of [`TestEnv::command_with_signals`] that resets signals to their defaults.
pub(crate) const DEFAULT_SIGNALS: &str = "--default-signal=INT,TERM,HUP";

/// Deadline of every wait, for slow machines.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A directory to run `cantle` in, with a clean environment.
pub(crate) struct TestEnv {
    directory: TempDir,
    variables: Vec<(String, String)>,
    program: PathBuf,
}

/// Exit code and output of a program.
#[derive(Debug, PartialEq)]
pub(crate) struct Exited {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
            program: env!("CARGO_BIN_EXE_cantle").into(),
        }
    }

    /// Sets another build of the program.
    pub(crate) fn with_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
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

    /// Returns the sorted names in a directory; none if it does not exist.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Waits until a path exists.
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

    /// Sets the variables of another environment, too.
    pub(crate) fn with_variables_of(mut self, other: &Self) -> Self {
        self.variables.extend_from_slice(&other.variables);
        self
    }

    /// Sets the model and the server of runs.
    pub(crate) fn with_server(self, url: &str) -> Self {
        self.set("CANTLE_BASE_URL", url)
            .set("CANTLE_MODEL", "scripted")
    }

    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.command_of(&self.program);
        command.args(args);
        command
    }

    /// Returns a command for a test that sends signals. A parent process may ignore some of them (`nohup`, a
    /// background job of a script), which the program would inherit; `how` are options of `env` that reset them.
    pub(crate) fn command_with_signals<A: AsRef<OsStr>>(
        &self,
        how: &[&str],
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = self.command_of("env");
        command.args(how).arg(&self.program).args(args);
        command
    }

    /// Runs the program where namespaces are forbidden; see [`without_namespaces`].
    pub(crate) async fn run_without_namespaces<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Option<Exited> {
        let mut command = self.command_of("unshare");
        command
            .args(without_namespaces()?)
            .arg(&self.program)
            .args(args);
        Some(wait_for_exit(command.spawn().unwrap()).await)
    }

    /// Returns a command of another program in this environment.
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

    /// Runs the program without input.
    pub(crate) async fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Exited {
        wait_for_exit(self.command(args).spawn().unwrap()).await
    }

    /// Runs the program with this input.
    pub(crate) async fn run_with(
        &self,
        args: impl IntoIterator<Item = &str>,
        input: &[u8],
    ) -> Exited {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let write = async move {
            // The program need not read its input.
            let _ = stdin.write_all(input).await;
        };
        tokio::join!(write, wait_for_exit(child)).1
    }
}

/// Waits until a program exits.
pub(crate) async fn wait_for_exit(child: Child) -> Exited {
    let output = timeout(DEADLINE, child.wait_with_output()).await;
    Exited::from(output.unwrap().unwrap())
}

impl From<Output> for Exited {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Exited {
    /// Returns exit code and output for snapshots, without values that vary.
    pub(crate) fn transcript(&self, env: &TestEnv) -> String {
        let here = env.path("");
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

/// Removes this machine's isolation mechanisms from a text.
fn without_walls(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let parts: Vec<&str> = line.split(" · ").collect();
        match parts[..] {
            [place @ ("sandbox   local" | "Sandbox: local"), _, reached] => {
                format!("{place} · WALLS · {reached}")
            }
            _ => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Removes values that vary: ids of runs, local ports and seconds.
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
        } else if (after.starts_with(" s") || after.starts_with(" tokens/s"))
            && number.contains('.')
        {
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

/// Waits until a condition holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, wait).await.unwrap();
}

/// Returns an address of this test program alone, so that any port of it is free.
pub(crate) fn own_address(port: u16) -> String {
    let id = std::process::id().to_be_bytes();
    let (second, last) = (100 + id[1] % 100, id[3].max(1));
    format!("127.{second}.{}.{last}:{port}", id[2])
}

/// A unique argument by which processes are found in any namespace.
#[derive(Debug)]
pub(crate) struct Mark(String);

impl Mark {
    pub(crate) fn new(env: &TestEnv) -> Self {
        let name = env.directory.path().file_name().unwrap();
        Self(format!("mark-{}", name.to_str().unwrap()))
    }

    /// Returns the arguments of all processes with this mark.
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

    /// Waits for a bash whose last argument is this mark.
    pub(crate) async fn appeared(&self) {
        let is_marked_bash = |process: &Vec<String>| {
            process.first().is_some_and(|name| name == "bash") && process.last() == Some(&self.0)
        };
        self.wait(|processes| processes.iter().any(is_marked_bash))
            .await;
    }

    /// Waits until no process has this mark.
    pub(crate) async fn gone(&self) {
        self.wait(<[_]>::is_empty).await;
    }

    /// Waits until the arguments of the processes with this mark fulfil a condition.
    pub(crate) async fn wait(&self, done: impl Fn(&[Vec<String>]) -> bool) {
        until(|| done(&self.processes())).await;
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the arguments of `unshare` that run a program as an ordinary user where namespaces are forbidden.
///
/// `None`, with a message, if this machine does not support that.
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
    eprintln!("SKIPPED: user namespaces are not available");
    None
}

/// Returns the path of the static program with all features, which the full lane has.
pub(crate) fn static_program() -> Option<String> {
    if !lane::is_full() {
        lane::skip("the static program belongs to the full lane");
        return None;
    }
    let [program] = peer("static", ["CANTLE_TEST_STATIC_BIN"])?;
    Some(program)
}

/// Returns the variables of a peer program; `None`, with a message, if they are not set.
///
/// # Panics
/// If they are not set, although `CANTLE_REQUIRE` names the peer.
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
    eprintln!(
        "SKIPPED: {peer} is not available ({})",
        variables.join(", ")
    );
    None
}
