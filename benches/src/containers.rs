//! Containers: cost of a sandbox compared with direct calls of the engine's API.
//!
//! `CANTLE_TEST_DOCKER_HOST` (or `DOCKER_HOST`) names the engine and `CANTLE_TEST_DOCKER_IMAGE` an image
//! with `bash` and `head`; without them this part is skipped. Direct calls use the same HTTP client
//! as the backend, so the difference is the backend's overhead.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bollard::Docker;
use bollard::container::AttachContainerResults;
use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, DownloadFromContainerOptionsBuilder,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use cantle_backends_docker::DockerBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ByteRange, Sandbox, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest,
    WriteOptions,
};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::process::{median, peak_memory_mb, run_part};
use crate::report::Report;

const OPENINGS: usize = 15;
const COMMAND_ROUNDS: usize = 10;
/// Commands per round, and iterations of the compared loop.
const COMMANDS: usize = 20;
const REPEATS: usize = 5;

const BYTES: u64 = 1_000_000_000;
/// Chunk size of uploads.
const PIECE_BYTES: usize = 128 * 1024;

/// Label of the containers created without a backend.
const LABEL: &str = "cantle.bench";

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    if EngineConfig::find().is_none() {
        eprintln!("SKIPPED containers: CANTLE_TEST_DOCKER_HOST and _IMAGE name no engine");
        return Ok(());
    }
    let answer = run_part(&["containers"])?;
    let number = |name: &str| answer[name].as_f64().context("not a number");
    report.add(
        "a container, created and started",
        number("engine_ms")?,
        "ms",
    );
    for (name, what) in [("open", ""), ("sealed", ", read-only image")] {
        report.at_most(
            format!("open, one command / create, start{what}"),
            number(name)?,
            "x",
            1.2,
        );
    }
    report.add(
        "`bash -c true` in a container by itself",
        number("itself_ms")?,
        "ms",
    );
    report.at_most(
        "… as a command of ours, beyond that",
        number("beyond_ms")?,
        "ms",
        5.0,
    );

    let answer = run_part(&["container-bytes"])?;
    let number = |name: &str| answer[name].as_f64().context("not a number");
    let rate = |seconds: f64| BYTES as f64 / 1e6 / seconds;
    for (name, what, beside, goal) in [
        ("in", "into a container", "the archive API", 0.5),
        ("out", "out of a container", "the archive API", 0.9),
        ("output", "of output of a container", "a raw attach", 0.8),
    ] {
        let (ours, theirs) = (number(name)?, number(&format!("raw_{name}"))?);
        report.add(format!("1 GB {what}"), rate(ours), "MB/s");
        report.at_least(format!("… / {beside}"), theirs / ours, "x", goal);
    }
    report.at_most("… all of it: peak memory", number("peak_mb")?, "MB", 64.0);
    Ok(())
}

/// Part: opens sandboxes and runs commands in one.
pub(crate) fn run() -> Result<()> {
    part(async |engine: &Engine| {
        let (mut raw, mut open, mut sealed) = (Vec::new(), Vec::new(), Vec::new());
        let backend = engine.backend();
        let read_only = engine.backend().with_read_only_root();
        for round in 0..=OPENINGS {
            let times = [
                engine.create_and_start().await?,
                first_command(&backend).await?,
                first_command(&read_only).await?,
            ];
            // The first container of an image includes one-time set-up.
            if round > 0 {
                for (times, time) in [&mut raw, &mut open, &mut sealed].into_iter().zip(times) {
                    times.push(time);
                }
            }
        }
        let raw = median(&mut raw);
        let sandbox = open_one(&backend).await?;
        let commands = commands(&*sandbox).await;
        sandbox.close().await?;
        let (itself, ours) = commands?;
        Ok(json!({
            "engine_ms": raw * 1e3,
            "open": median(&mut open) / raw,
            "sealed": median(&mut sealed) / raw,
            "itself_ms": itself * 1e3,
            "beyond_ms": (ours - itself) * 1e3,
        }))
    })
}

/// Part: a gigabyte in each direction.
pub(crate) fn run_bytes() -> Result<()> {
    part(async |engine: &Engine| {
        let sandbox = open_one(&engine.backend()).await?;
        let moved = engine.bytes(&*sandbox).await;
        sandbox.close().await?;
        moved
    })
}

fn part(work: impl AsyncFn(&Engine) -> Result<Value>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(async {
        let engine = Engine::connect()?;
        let answer = work(&engine).await;
        let swept = engine.sweep().await;
        let answer = answer?;
        swept?;
        anyhow::Ok(answer)
    })?;
    println!("{answer}");
    Ok(())
}

/// Engine host and image.
struct EngineConfig {
    host: String,
    image: String,
}

impl EngineConfig {
    fn find() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            host: variable("CANTLE_TEST_DOCKER_HOST").or_else(|| variable("DOCKER_HOST"))?,
            image: variable("CANTLE_TEST_DOCKER_IMAGE")?,
        })
    }
}

/// Client of the engine's API.
struct Engine {
    docker: Docker,
    config: EngineConfig,
    own: String,
}

impl Engine {
    fn connect() -> Result<Self> {
        let config = EngineConfig::find().context("no engine is named")?;
        Ok(Self {
            docker: Docker::connect_with_host(&config.host)?,
            config,
            own: std::process::id().to_string(),
        })
    }

    fn backend(&self) -> DockerBackend {
        DockerBackend::from_image(&self.config.image).with_host(&self.config.host)
    }

    async fn create(&self, command: &[&str]) -> Result<String> {
        let body = ContainerCreateBody {
            image: Some(self.config.image.clone()),
            entrypoint: Some(command.iter().map(|&word| word.to_owned()).collect()),
            labels: Some([(LABEL.to_owned(), self.own.clone())].into()),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            open_stdin: Some(true),
            stdin_once: Some(true),
            // Same options as the backend's.
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                log_config: Some(HostConfigLogConfig {
                    typ: Some("none".to_owned()),
                    config: None,
                }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        Ok(self.docker.create_container(None, body).await?.id)
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let options = RemoveContainerOptionsBuilder::default().force(true).build();
        Ok(self.docker.remove_container(id, Some(options)).await?)
    }

    /// Removes leftover containers of this benchmark.
    async fn sweep(&self) -> Result<()> {
        for id in self.labelled(LABEL, &self.own).await? {
            self.remove(&id).await?;
        }
        Ok(())
    }

    async fn labelled(&self, label: &str, value: &str) -> Result<Vec<String>> {
        let filters = [("label".to_owned(), vec![format!("{label}={value}")])];
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters.into())
            .build();
        let listed = self.docker.list_containers(Some(options)).await?;
        Ok(listed.into_iter().filter_map(|found| found.id).collect())
    }

    async fn create_and_start(&self) -> Result<f64> {
        let started = Instant::now();
        let id = self.create(&["sleep", "600"]).await?;
        self.docker.start_container(&id, None).await?;
        let time = started.elapsed().as_secs_f64();
        self.remove(&id).await?;
        Ok(time)
    }

    /// Transfers a gigabyte as an upload, a download and output, alternating backend and raw API.
    async fn bytes(&self, sandbox: &dyn Sandbox) -> Result<Value> {
        let found = self.labelled("cantle.sandbox", &sandbox.info().id).await?;
        let container = found.first().context("the sandbox has no container")?;
        let (ours, theirs): (SandboxPath, SandboxPath) = ("ours".parse()?, "theirs".parse()?);
        let mut times: [Vec<f64>; 6] = Default::default();
        for _ in 0..REPEATS {
            let round = [
                timed(self.put(container, "/workspace", "theirs")).await?,
                timed(write(sandbox, &ours)).await?,
                timed(self.fetch(container, "/workspace/theirs")).await?,
                timed(read(sandbox, &ours)).await?,
                self.attached_output().await?,
                timed(output(sandbox)).await?,
            ];
            for (times, time) in times.iter_mut().zip(round) {
                times.push(time);
            }
            sandbox.remove(&ours).await?;
            sandbox.remove(&theirs).await?;
        }
        let [raw_in, into, raw_out, out, raw_output, output] = times.map(|mut it| median(&mut it));
        Ok(json!({
            "raw_in": raw_in, "in": into, "raw_out": raw_out, "out": out,
            "raw_output": raw_output, "output": output, "peak_mb": peak_memory_mb()?,
        }))
    }

    async fn put(&self, container: &str, directory: &str, name: &str) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_path(name)?;
        header.set_size(BYTES);
        header.set_mode(0o644);
        header.set_cksum();
        let header = Bytes::copy_from_slice(header.as_bytes());
        let rest = BYTES.next_multiple_of(512) - BYTES + 1024;
        let end = Bytes::from(vec![0; usize::try_from(rest)?]);
        let archive = stream::iter([header])
            .chain(pieces())
            .chain(stream::iter([end]));
        let options = UploadToContainerOptionsBuilder::default()
            .path(directory)
            .build();
        let body = bollard::body_stream(archive);
        let put = self
            .docker
            .upload_to_container(container, Some(options), body);
        Ok(put.await?)
    }

    async fn fetch(&self, container: &str, path: &str) -> Result<()> {
        let options = DownloadFromContainerOptionsBuilder::default()
            .path(path)
            .build();
        let archive = self
            .docker
            .download_from_container(container, Some(options));
        ensure!(drained(archive).await? > BYTES);
        Ok(())
    }

    /// Returns the seconds of the output alone; the command waits for a line first.
    async fn attached_output(&self) -> Result<f64> {
        let line = format!("read line; exec {}", writer().join(" "));
        let id = self.create(&["bash", "-c", &line]).await?;
        let options = AttachContainerOptionsBuilder::default()
            .stdin(true)
            .stdout(true)
            .stream(true)
            .build();
        let AttachContainerResults { output, mut input } =
            self.docker.attach_container(&id, Some(options)).await?;
        self.docker.start_container(&id, None).await?;
        let started = Instant::now();
        input.write_all(b"\n").await?;
        let output = output.map(|piece| piece.map(bollard::container::LogOutput::into_bytes));
        let total = drained(output).await?;
        let time = started.elapsed().as_secs_f64();
        self.remove(&id).await?;
        ensure!(total == BYTES, "{total} bytes came");
        Ok(time)
    }
}

async fn open_one(backend: &DockerBackend) -> Result<Arc<dyn Sandbox>> {
    let cx = SandboxContext::new(RunId::new(), Policy::workspace());
    Ok(backend.open(cx).await?)
}

async fn first_command(backend: &DockerBackend) -> Result<f64> {
    let started = Instant::now();
    let sandbox = open_one(backend).await?;
    let ran = succeed(&*sandbox, "true").await;
    let time = started.elapsed().as_secs_f64();
    sandbox.close().await?;
    ran.map(|()| time)
}

/// Returns the seconds of `bash -c true` in a loop inside the container and as a sandbox command.
async fn commands(sandbox: &dyn Sandbox) -> Result<(f64, f64)> {
    let (mut itself, mut ours) = (Vec::new(), Vec::new());
    let line = |count: usize| format!("for i in $(seq {count}); do bash -c true; done");
    for _ in 0..COMMAND_ROUNDS {
        for _ in 0..COMMANDS {
            ours.push(timed(succeed(sandbox, "true")).await?);
        }
        // Excludes the overhead around the loop.
        let short = timed(succeed(sandbox, &line(1))).await?;
        let long = timed(succeed(sandbox, &line(1 + COMMANDS))).await?;
        itself.push((long - short) / COMMANDS as f64);
    }
    Ok((median(&mut itself), median(&mut ours)))
}

async fn succeed(sandbox: &dyn Sandbox, line: &str) -> Result<()> {
    let output = sandbox.run(SpawnRequest::shell(line)).await?;
    ensure!(output.exit.status.success(), "{output:?}");
    Ok(())
}

async fn write(sandbox: &dyn Sandbox, path: &SandboxPath) -> Result<()> {
    let options = WriteOptions::default().with_size(BYTES);
    let data = Box::pin(pieces().map(Ok));
    Ok(sandbox.write(path, options, data).await?)
}

async fn read(sandbox: &dyn Sandbox, path: &SandboxPath) -> Result<()> {
    let data = sandbox.read(path, ByteRange::all()).await?;
    ensure!(drained(data).await? == BYTES);
    Ok(())
}

async fn output(sandbox: &dyn Sandbox) -> Result<()> {
    let request = SpawnRequest::argv(writer());
    let mut total = 0;
    let exit = sandbox
        .exec(request, &mut |chunk| total += chunk.bytes.len() as u64)
        .await?;
    if !exit.status.success() || total != BYTES {
        bail!("{total} bytes came, and {exit:?}");
    }
    Ok(())
}

/// Returns a command that writes a gigabyte in large pieces.
fn writer() -> [String; 5] {
    const PIECE: u64 = 100_000;
    let count = format!("count={}", BYTES / PIECE);
    [
        "dd",
        "if=/dev/zero",
        "status=none",
        &format!("bs={PIECE}"),
        &count,
    ]
    .map(str::to_owned)
}

/// Returns a gigabyte of shared pieces.
fn pieces() -> impl Stream<Item = Bytes> + Send + 'static {
    let piece = Bytes::from((0..PIECE_BYTES).map(|at| at as u8).collect::<Vec<_>>());
    stream::unfold(BYTES, move |left| {
        let length = left.min(PIECE_BYTES as u64);
        let piece = piece.slice(..length as usize);
        std::future::ready((length > 0).then_some((piece, left - length)))
    })
}

/// Drains a stream and returns its number of bytes.
async fn drained<E>(data: impl Stream<Item = Result<Bytes, E>>) -> Result<u64>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut data = std::pin::pin!(data);
    let mut total = 0;
    while let Some(piece) = data.next().await {
        total += piece?.len() as u64;
    }
    Ok(total)
}

/// Returns the elapsed seconds.
async fn timed(work: impl Future<Output = Result<()>>) -> Result<f64> {
    let started = Instant::now();
    work.await?;
    Ok(started.elapsed().as_secs_f64())
}
