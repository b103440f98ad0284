//! `cantle trust`: makes the settings and the notes of a directory count.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use cantle::core::escape::for_decision;
use cantle::mcp::McpServer;

use super::print;
use crate::agents_md;
use crate::args::TrustArgs;
use crate::exit::{Failure, FailureExt as _};
use crate::run_servers;
use crate::settings::file::FILE_NAME;
use crate::settings::layers::Project;
use crate::state_dir::StateDir;
use crate::text::size;
use crate::trust::{TrustRecord, canonical};

/// Performs the command, and returns the exit code.
pub(crate) fn perform(args: &TrustArgs) -> Result<u8, Failure> {
    let mut record = StateDir::find()
        .and_then(|state| TrustRecord::read(&state))
        .usage()?;
    let directory = args.directory.as_deref().unwrap_or(Path::new("."));
    if args.list {
        let directories = record.directories();
        let lines = directories.map(|path| for_decision(&path.to_string_lossy()) + "\n");
        print(lines.collect::<String>())?;
    } else if args.remove {
        remove(&mut record, directory)?;
    } else {
        add(&mut record, directory)?;
    }
    Ok(0)
}

/// Removes a directory from the record.
fn remove(record: &mut TrustRecord, directory: &Path) -> Result<(), Failure> {
    // It may be gone.
    let listed = canonical(directory).or_else(|_| std::path::absolute(directory));
    let listed = listed.usage()?;
    if record.get(&listed).is_none() {
        let message = format!(
            "{} is not trusted; `cantle trust --list` lists the directories that are",
            listed.display()
        );
        return Err(anyhow!(message)).usage();
    }
    record.set(listed, None).internal()
}

/// Records a directory with its files, and prints what takes effect there.
fn add(record: &mut TrustRecord, directory: &Path) -> Result<(), Failure> {
    std::env::set_current_dir(directory)
        .with_context(|| format!("failed to enter {}", directory.display()))
        .usage()?;
    let directory = canonical(Path::new(".")).usage()?;
    // Relative paths, as in the settings, are the names in the record.
    let mut project = Project::read(Path::new("")).usage()?;
    project.read_named().usage()?;
    let notes = project
        .files
        .read(Path::new(agents_md::FILE_NAME))
        .usage()?;
    let servers = run_servers::to_be_trusted(&mut project.files).usage()?;
    if project.is_empty() && notes.is_none() && servers.is_none() {
        let message = format!(
            "there is no {FILE_NAME} with settings, no {} and no {} in {}",
            agents_md::FILE_NAME,
            run_servers::FILE_NAME,
            directory.display()
        );
        return Err(anyhow!(message)).usage();
    }
    if let Some(problem) = project.files.problem() {
        let message = format!(
            "{problem}, so it can't be trusted; make sure that only you own it and can write to it"
        );
        return Err(anyhow!(message)).usage();
    }
    let servers = servers.unwrap_or_default();
    let mut text = format!(
        "Trusted: {}\n\n",
        for_decision(&directory.to_string_lossy())
    );
    text.push_str(&describe(&project, notes.as_deref(), &servers));
    record
        .set(directory, Some(project.files.digests().clone()))
        .internal()?;
    print(&text)
}

/// Describes the settings, servers and notes that take effect, and for how long.
fn describe(project: &Project, notes: Option<&str>, servers: &[McpServer]) -> String {
    let mut text = String::new();
    let (settings, profiles) = (&project.file.settings, &project.file.profiles);
    let with_profile = |name: &String| format!(" with --profile {}", for_decision(name));
    let profiles = profiles
        .iter()
        .map(|(name, settings)| (with_profile(name), settings));
    let always = (!settings.is_empty()).then(|| (String::new(), settings));
    for (when, settings) in always.into_iter().chain(profiles) {
        let _ = writeln!(text, "These settings take effect there{when}:");
        for (name, value) in settings {
            let _ = writeln!(text, "  {name} = {}", for_decision(&value.to_string()));
        }
    }
    for server in servers {
        let _ = writeln!(
            text,
            "The tools of the MCP server `{}` ({}) are offered there: {}",
            server.name(),
            server.place(),
            for_decision(&server.written()),
        );
    }
    if let Some(notes) = notes {
        let bytes = size(notes.len() as u64);
        let _ = writeln!(
            text,
            "{} ({bytes}) is part of the instructions there,",
            agents_md::FILE_NAME
        );
    }
    text.push_str("\nas long as these files do not change:\n");
    for (name, digest) in project.files.digests() {
        let _ = writeln!(text, "  {}  sha256 {digest}", for_decision(name));
    }
    text.push_str("\n`cantle trust --remove` removes this trust.\n");
    text
}
