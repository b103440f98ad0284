//! Widespread programs run under the system call filter: processes, threads, pipes, files, loopback sockets.

use std::fs;
use std::path::{Path, PathBuf};

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, ReadRoots, Strictness};
use cantle_core::sandbox::{Backend as _, SandboxContext};
use cantle_testkit::lane;

use super::support::{run, write};

/// Runs a line that ends with `echo ran`, if its program is installed, with namespaces and without.
async fn runs(program: &str, source: (&str, &'static str), line: &str) {
    let directories = ["/usr/local/bin", "/usr/local/go/bin", "/usr/bin"].map(Path::new);
    if !directories.iter().any(|it| it.join(program).exists()) {
        return lane::skip(&format!("{program} is not installed"));
    }
    let all = LocalBackend::new().with_path("/usr/local/bin:/usr/local/go/bin:/usr/bin:/bin");
    let without_namespaces = all.clone().without(Mechanism::Namespaces);
    for backend in [all, without_namespaces] {
        let mut policy = Policy::workspace();
        policy.read_roots = Some(ReadRoots::system().with_paths(configurations(program)));
        policy.strictness = Strictness::BestEffort;
        let sandbox = backend
            .open(SandboxContext::new(RunId::new(), policy))
            .await
            .unwrap();
        write(&*sandbox, source.0, source.1).await;
        let output = run(&*sandbox, line).await;
        let mechanisms = &sandbox.info().mechanisms;
        assert!(
            mechanisms.iter().any(|it| it == "system call filter"),
            "{mechanisms:?}"
        );
        assert_eq!(
            output.stdout.text().lines().last(),
            Some("ran"),
            "{output:?}"
        );
        sandbox.close().await.unwrap();
    }
}

/// Returns the directories with a program's configuration outside the system directories.
fn configurations(program: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("/etc").unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name == program || name.starts_with(&format!("{program}-"))
    };
    paths.filter(is_its).collect()
}

#[tokio::test]
async fn bash_runs() {
    let line = "diff <(seq 9) <(seq 9) && (sleep 0 & wait) && seq 9 | sort -n | tail -1 && mkfifo f && \
                { echo piped > f & } && read -r < f && rm f && echo ran";
    runs("bash", ("unused", ""), line).await;
}

#[tokio::test]
async fn python_runs() {
    let script = r"
import asyncio, subprocess, socket, tempfile, threading, mmap
import multiprocessing
assert subprocess.run(['true']).returncode == 0
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
async def main():
    process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
    assert (await process.communicate(b'x'))[0] == b'x'
asyncio.run(main())
def work(pipe):
    pipe.send(1)
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context('fork').Process(target=work, args=(theirs,))
child.start(); assert ours.recv() == 1; child.join()
with tempfile.TemporaryFile() as file:
    file.truncate(4096); mmap.mmap(file.fileno(), 4096).close()
";
    runs(
        "python3",
        ("test.py", script),
        "python3 test.py && echo ran",
    )
    .await;
}

#[tokio::test]
async fn node_runs() {
    let script = r"
const { execFileSync } = require('child_process');
const { Worker } = require('worker_threads');
const fs = require('fs');
execFileSync('true');
fs.promises.writeFile('file', 'x').then(() => fs.promises.readFile('file')).then(() => {
    new Worker('process.exit(0)', { eval: true }).on('exit', () => console.log('done'));
});
";
    let line = "node test.js && [ -s file ] && echo ran";
    runs("node", ("test.js", script), line).await;
}

#[tokio::test]
async fn go_runs() {
    let source = r#"
package main

import ("fmt"; "os/exec")

func main() {
    done := make(chan error)
    go func() { done <- exec.Command("true").Run() }()
    if <-done == nil { fmt.Println("ran") }
}
"#;
    let line = "export GOCACHE=$PWD/cache GOPATH=$PWD/path GOTOOLCHAIN=local && go run main.go";
    runs("go", ("main.go", source), line).await;
}

#[tokio::test]
async fn java_runs() {
    let source = r#"
public class Main {
    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(() -> {});
        thread.start();
        thread.join();
        if (new ProcessBuilder("true").start().waitFor() == 0) System.out.println("ran");
    }
}
"#;
    let line = "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC Main.java";
    runs("java", ("Main.java", source), line).await;
}

#[tokio::test]
async fn git_runs() {
    let line = "export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=user \
                GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=user@example.org; git init -q . && git add file && \
                git commit -qm first && git clone -q . copy && git -C copy gc -q && git -C copy fsck && \
                cmp file copy/file && echo ran";
    runs("git", ("file", "x"), line).await;
}

#[tokio::test]
async fn apt_runs() {
    let line = r#"
mkdir -p repository lists/partial cache/archives/partial && touch repository/Packages status
cat > sources.list <<< "deb [trusted=yes] file:$PWD/repository ./"
apt-get -q -o Dir::Etc::SourceList=$PWD/sources.list -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Parts=/dev/null \
    -o Dir::State=$PWD -o Dir::State::Lists=$PWD/lists -o Dir::State::Status=$PWD/status -o Dir::Cache=$PWD/cache \
    -o APT::Sandbox::User= update && ls lists/*_Packages && echo ran"#;
    runs("apt-get", ("unused", ""), line).await;
}
