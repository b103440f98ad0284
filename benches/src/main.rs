//! Measures the goals of `docs/performance.md`.
//!
//! `cantle-bench [--cantle PATH] [--json FILE]` runs everything and prints a table. Each part runs
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

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::report::Report;

/// Same allocator as `cantle`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut cantle = None;
    let mut json = None;
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
            other => bail!("unknown argument `{other}`"),
        }
    }

    let mut report = Report::default();
    let mut failures = Vec::new();
    // A failing part does not stop the others.
    let mut done = |measured: Result<()>| failures.extend(measured.err());
    done(client_loop::measure(&mut report));
    done(sessions::measure(&mut report));
    done(clients::measure(&mut report));
    if let Some(cantle) = &cantle {
        done(startup::measure(&mut report, cantle));
        done(records::measure(&mut report, cantle));
    }
    done(commands::measure(&mut report));
    done(sandboxes::measure(&mut report));
    done(output::measure(&mut report));
    done(python::measure(&mut report));
    done(outside::measure(&mut report));
    done(stored::measure(&mut report, cantle.as_deref()));
    done(containers::measure(&mut report));
    if let Some(cantle) = &cantle {
        done(serving::measure(&mut report, cantle));
    }
    print!("{report}");
    if let Some(path) = json {
        std::fs::write(&path, report.to_json()?)?;
        println!("written to {}", path.display());
    }
    for failure in &failures {
        eprintln!("{failure:#}");
    }
    ensure!(failures.is_empty(), "some of it could not be measured");
    Ok(())
}
