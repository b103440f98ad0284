//! Stored files: a large artifact, `load_file`, a catalogue's inserts, and `run_python` through the service.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::principal::{Level, Principal};
use cantle_core::sandbox::{
    Backend as _, ByteRange, Sandbox, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest,
};
use cantle_core::tool::ToolContext;
use cantle_files::object_store::ObjectStore;
use cantle_files::object_store::buffered::BufWriter;
use cantle_files::object_store::local::LocalFileSystem;
use cantle_files::object_store::path::Path as ObjectPath;
use cantle_files::{FileStore, Files, MemoryRecords, NewFile, Quota, Records as _, SqliteRecords};
use futures_util::TryStreamExt as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::ReaderStream;

use crate::process::{median, peak_memory_mb, run_part};
use crate::report::Report;
use crate::sandboxes::{in_runtime, milliseconds};
use crate::serving::{Client, Served};

const BYTES: u64 = 1_000_000_000;
const REPEATS: usize = 3;
const LOADED_BYTES: u64 = 1_000_000;
const ROUNDS: usize = 50;
const INSERTS: usize = 1000;
const CHUNK_BYTES: usize = 1 << 20;
const OWNER: &str = "owner";

/// The statements of an insert, with the settings of a catalogue. Prints the seconds.
const PYTHON_INSERTS: &str = "import sqlite3, sys, time
file, count = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(file, isolation_level=None)
db.execute('PRAGMA synchronous = FULL')
db.execute('PRAGMA journal_mode = WAL')
started = time.perf_counter()
for n in range(count):
    db.execute('BEGIN IMMEDIATE')
    db.execute('INSERT INTO cantle_file_usage VALUES (?, 0, 0) ON CONFLICT DO NOTHING', ('python',))
    db.execute('UPDATE cantle_file_usage SET files = files + 1, bytes = bytes + ?1 '
               'WHERE owner = ?2 AND files + 1 <= ?3 AND bytes + ?1 <= ?4', (1, 'python', 10**6, 10**12))
    db.execute('INSERT INTO cantle_files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
               (f'{n:036}', 'python', 'chart.png', f'generated/{n:032}_chart.png', 'image/png', 1, 64 * 'a',
                None, 1, 'run', '{}'))
    db.execute('COMMIT')
print(time.perf_counter() - started)";

/// Measures each part in a separate process.
pub(crate) fn measure(report: &mut Report, cantle: &Path) -> Result<()> {
    let answer = run_part(&["stored-files"])?;
    let number = |name: &str| answer[name].as_f64().context("not a number");
    let what = "1 GB of a local sandbox into a directory store / `object_store` with SHA-256";
    report.at_least(what, number("rate")?, "x", 0.8);
    report.at_most("the same: peak memory", number("peak_mb")?, "MB", 64.0);
    let what = "`load_file` of 1 MB beyond the store";
    report.at_most(what, number("load_ms")?, "ms", 20.0);
    let what = "inserts of a SQLite catalogue / Python's `sqlite3`";
    report.at_least(what, number("inserts")?, "x", 0.8);
    report.add("the same: an insert", number("insert_ms")?, "ms");
    let cantle = cantle.to_str().context("the path is no text")?;
    let answer = run_part(&["tool-service", cantle])?;
    let number = |name: &str| answer[name].as_f64().context("not a number");
    let raw = number("raw_ms")?;
    let what = "`run_python` of `print(1)` through the service, leased sandbox";
    report.at_most(what, number("call_ms")?, "ms", 1.3 * raw + 5.0);
    report.add("raw `python3 -c 'print(1)'`", raw, "ms");
    Ok(())
}

/// Part: everything but the service.
pub(crate) fn run() -> Result<()> {
    let answer = in_runtime(async {
        let directory = tempfile::tempdir()?;
        let context = SandboxContext::new(RunId::new(), Policy::workspace());
        let sandbox = LocalBackend::new().open(context).await?;
        let (rate, peak_mb) = large_artifact(&*sandbox, directory.path()).await?;
        let load_ms = load_file(&sandbox).await?;
        sandbox.close().await?;
        let (inserts, insert_ms) = inserts(&directory.path().join("catalogue.sqlite")).await?;
        Ok(json!({
            "rate": rate, "peak_mb": peak_mb, "load_ms": load_ms, "inserts": inserts, "insert_ms": insert_ms,
        }))
    })?;
    println!("{answer}");
    Ok(())
}

/// Returns the time of `object_store` alone, relative to that of storing a sandbox's file, and the peak memory of the latter.
async fn large_artifact(sandbox: &dyn Sandbox, directory: &Path) -> Result<(f64, f64)> {
    let make = SpawnRequest::shell(format!("head -c {BYTES} /dev/urandom > artifact"));
    ensure!(sandbox.run(make).await?.exit.status.success());
    let path = SandboxPath::new("artifact")?;
    let copy = directory.join("copy");
    sandbox.download(&path, &copy).await?;
    let store = FileStore::directory(directory.join("objects"))?;
    let files = Files::open(store, MemoryRecords::new()).await?;
    let plain = directory.join("plain");
    std::fs::create_dir(&plain)?;
    let plain = LocalFileSystem::new_with_prefix(&plain)?.with_fsync(true);
    let plain: Arc<dyn ObjectStore> = Arc::new(plain);
    let (mut ours, mut raw, mut peak_mb) = (Vec::new(), Vec::new(), None);
    for _ in 0..REPEATS {
        let started = Instant::now();
        let content = sandbox.read(&path, ByteRange::all()).await?;
        let record = files
            .put(OWNER, NewFile::named("artifact"), content)
            .await?;
        ours.push(milliseconds(started));
        // `object_store` alone has larger buffers.
        let first_peak_mb = peak_memory_mb()?;
        peak_mb.get_or_insert(first_peak_mb);
        files.remove(OWNER, record.id).await?;

        let started = Instant::now();
        let file = tokio::fs::File::open(&copy).await?;
        let mut content = ReaderStream::with_capacity(file, CHUNK_BYTES);
        let mut writer = BufWriter::new(Arc::clone(&plain), ObjectPath::from("artifact"));
        let mut digest = Sha256::new();
        while let Some(chunk) = content.try_next().await? {
            digest.update(&chunk);
            writer.put(chunk).await?;
        }
        writer.shutdown().await?;
        std::hint::black_box(digest.finalize());
        raw.push(milliseconds(started));
    }
    let rate = median(&mut raw) / median(&mut ours);
    Ok((rate, peak_mb.context("nothing was stored")?))
}

/// Returns the time of a call beyond that of reading the file from the store.
async fn load_file(sandbox: &Arc<dyn Sandbox>) -> Result<f64> {
    let files = Files::open(FileStore::memory(), MemoryRecords::new()).await?;
    let content = vec![7; LOADED_BYTES as usize];
    let record = files.put_bytes(OWNER, NewFile::named("a"), content).await?;
    let tools = cantle_code_executor::tools(&files);
    let tool = tools.iter().find(|tool| tool.name() == "load_file");
    let tool = tool.context("there is no such tool")?;
    let (mut calls, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut cx = ToolContext::new(RunId::new(), "call");
        cx.sandbox = Some(Arc::clone(sandbox));
        cx.principal = Some(Principal::new(OWNER, Level::Guest)?);
        let started = Instant::now();
        tool.call(json!({ "file_id": record.id }), cx).await?;
        calls.push(milliseconds(started));
        let started = Instant::now();
        files.read_bytes(OWNER, record.id, LOADED_BYTES).await?;
        reads.push(milliseconds(started));
    }
    Ok(median(&mut calls) - median(&mut reads))
}

/// Returns the time of Python's inserts relative to that of a catalogue's, and the latter for one.
async fn inserts(file: &Path) -> Result<(f64, f64)> {
    let records = SqliteRecords::open(file).await?;
    let files = Files::open(FileStore::memory(), MemoryRecords::new()).await?;
    let mut record = files
        .put_bytes(OWNER, NewFile::named("chart.png"), "x")
        .await?;
    let quota = Quota::new(1_000_000, 1 << 40);
    let started = Instant::now();
    for number in 0..INSERTS {
        record.id = cantle_files::FileId::from_u128(1 + number as u128);
        record.key = format!("generated/{number:032x}_chart.png");
        records.insert(&record, quota).await?;
    }
    let ours = milliseconds(started);
    let other = file.with_extension("python");
    drop(SqliteRecords::open(&other).await?);
    let mut python = tokio::process::Command::new("python3");
    python.args(["-c", PYTHON_INSERTS]).arg(&other);
    let output = python.arg(INSERTS.to_string()).output().await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let seconds: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
    Ok((seconds * 1000.0 / ours, ours / INSERTS as f64))
}

/// Part: calls of the service.
pub(crate) fn run_service(cantle: &str) -> Result<()> {
    let served = Served::start_with(Path::new(cantle), ["--tools"])?;
    let answer = in_runtime(async {
        let client = Client::new(served.address);
        let arguments = json!({ "code": "print(1)" });
        // The service's Python: another one may be a script of a version manager.
        let asked = json!({ "code": "import sys; print(sys.executable)" });
        let asked = client.call_tool("run_python", &asked).await?;
        let python = asked["stdout"].as_str().context("not a text")?.trim();
        let (mut raw, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut command = tokio::process::Command::new(python);
            command.args(["-c", "print(1)"]).stdin(Stdio::null());
            let started = Instant::now();
            ensure!(command.output().await?.status.success());
            raw.push(milliseconds(started));
            let started = Instant::now();
            client.call_tool("run_python", &arguments).await?;
            calls.push(milliseconds(started));
        }
        Ok(json!({ "raw_ms": median(&mut raw), "call_ms": median(&mut calls) }))
    })?;
    println!("{answer}");
    Ok(())
}
