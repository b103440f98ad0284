//! Measures the goals of `docs/performance.md`.
//!
//! `cantle-bench --cantle PATH [--json FILE] [--only AREA]…` measures these areas, or all, and prints a table. Each part runs
//! in a child process (this program with the part's name), which isolates peak memory and CPU time;
//! the scripted server is such a process too. Compared values are measured interleaved in one run.

mod client_loop;
mod clients;
mod commands;
mod containers;
mod output;
mod outside;
mod process;
mod python;
mod records;
mod report;
mod sandboxes;
mod serving;
mod sessions;
mod soak;
mod startup;
mod stored;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::report::Report;

/// Same allocator as `cantle`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures an area, and adds its numbers to the report. The path is that of the `cantle` program.
type Measure = fn(&mut Report, &Path) -> Result<()>;

/// The areas that `--only` selects, by name.
const AREAS: [(&str, Measure); 13] = [
    ("loop", |report, _| client_loop::measure(report)),
    ("sessions", |report, _| sessions::measure(report)),
    ("clients", |report, _| clients::measure(report)),
    ("startup", startup::measure),
    ("records", records::measure),
    ("commands", |report, _| commands::measure(report)),
    ("sandboxes", |report, _| sandboxes::measure(report)),
    ("output", |report, _| output::measure(report)),
    ("python", |report, _| python::measure(report)),
    ("outside", |report, _| outside::measure(report)),
    ("files", stored::measure),
    ("containers", |report, _| containers::measure(report)),
    ("server", serving::measure),
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut cantle = None;
    let mut json = None;
    let mut chosen = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            // Parts, run in child processes.
            "serve" => {
                let turns = value()?.parse()?;
                let latency = Duration::from_millis(value()?.parse()?);
                return client_loop::serve(turns, latency);
            }
            "sessions" => return sessions::run(&value()?, false),
            "kept-sessions" => return sessions::run(&value()?, true),
            "resume" => return sessions::resume(&value()?),
            "keep-runs" => {
                let (store, url) = (value()?, value()?);
                return records::keep(&store, &url, value()?.parse()?, value()?.parse()?);
            }
            "loop" => return client_loop::run(&value()?, value()?.parse()?),
            "limited-agents" => return clients::run_limited(),
            "output" => return output::run(value()?.parse()?),
            "sandboxes" => return sandboxes::run(value()?.parse()?),
            "many-sandboxes" => return sandboxes::run_many(),
            "containers" => return containers::run(),
            "container-bytes" => return containers::run_bytes(),
            "python" => return python::run(),
            "mcp-servers" => return outside::run_servers(),
            "web-page" => return outside::run_page(),
            "browser" => return outside::run_browser(),
            "busy-sandbox" => return sandboxes::run_busy(),
            "disk-images" => return sandboxes::run_images(),
            "stored-files" => return stored::run(),
            "tool-service" => return stored::run_service(&value()?),
            "serve-bytes" => return serving::run_bytes(&value()?),
            "serve-load" => return serving::run_load(&value()?),
            "serve-cycles" => return serving::run_cycles(&value()?),
            "soak-library" => {
                let (directory, seed) = (value()?, value()?.parse()?);
                let (sandboxes, on_host_disk) = (value()?.parse()?, value()?.parse()?);
                return soak::run_library(&directory, seed, sandboxes, on_host_disk);
            }
            "soak" => {
                let cantle = PathBuf::from(value()?);
                let time = Duration::from_secs(value()?.parse()?);
                let (sandboxes, seed) = (value()?.parse()?, value()?.parse()?);
                let soak = soak::Soak {
                    time,
                    sandboxes,
                    seed,
                };
                return soak::run(&cantle, &soak);
            }
            "--cantle" => cantle = Some(PathBuf::from(value()?)),
            "--json" => json = Some(PathBuf::from(value()?)),
            "--only" => chosen.push(value()?),
            other => bail!("unknown argument `{other}`"),
        }
    }
    let names = AREAS.map(|(name, _)| name);
    if let Some(unknown) = chosen.iter().find(|it| !names.contains(&it.as_str())) {
        bail!("`{unknown}` is no area; there are {}", names.join(", "));
    }
    let cantle = cantle.context("--cantle PATH is missing")?;

    let mut report = Report::default();
    let mut failures = Vec::new();
    for (name, measure) in AREAS {
        // A failing area does not stop the others.
        if chosen.is_empty() || chosen.iter().any(|it| it == name) {
            failures.extend(measure(&mut report, &cantle).err());
        }
    }
    print!("{report}");
    if let Some(path) = json {
        // A measurement of some areas keeps the rows of the others.
        let earlier = std::fs::read(&path).ok().filter(|_| !chosen.is_empty());
        let earlier =
            earlier.and_then(|earlier| serde_json::from_slice::<serde_json::Value>(&earlier).ok());
        std::fs::write(&path, report.to_json(&earlier.unwrap_or_default())?)?;
        println!("written to {}", path.display());
    }
    for failure in &failures {
        eprintln!("{failure:#}");
    }
    ensure!(failures.is_empty(), "some of it could not be measured");
    Ok(())
}
