//! A directory of kept runs, with one directory per run.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::event::RunStatus;
use cantle_core::ids::RunId;
use sha2::{Digest as _, Sha256};

use super::commit_queue::CommitQueue;
use super::error::{StoreError, StoreErrorKind};
use super::format::{BackgroundAgentRecord, End, Entry, Header, Line};
use super::lock::Lock;
use super::media::MediaFiles;
use super::overview::{self, KeptRun, KeptStatus};
use super::reader::JournalReader;
use super::seal::Seal;
use super::writer::{FILE_NAME, Journal};
use crate::rules::{Fact, Machine};

/// The directory of a run's sub-agents, with one store per call.
const SUB_AGENTS: &str = "agents";

/// Start of the name of a run's directory until it has its first record.
const NEW: &str = ".new-";

/// A directory of kept runs, which can be listed and resumed. Its functions block.
///
/// Only its owner may read it: a journal holds the whole conversation.
#[derive(Clone, Debug)]
pub struct RunStore {
    directory: PathBuf,
    queue: Arc<CommitQueue>,
}

/// A kept run that no other process can resume or remove until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct LockedRun {
    directory: PathBuf,
    lock: Lock,
}

/// The content of a journal.
#[derive(Debug)]
pub(crate) struct JournalContent {
    /// The header, with the sandbox that the run uses now.
    pub(crate) header: Header,
    pub(crate) facts: Vec<Fact>,
    /// The end of the run, if the journal ends with it.
    pub(crate) end: Option<End>,
    /// Time that processes worked on the run, as far as its facts tell.
    pub(crate) time_used: Duration,
}

impl JournalContent {
    /// Whether the run is finished. Only its files can still be delivered.
    pub(crate) fn is_finished(&self) -> bool {
        let end = self.end.as_ref();
        end.is_some_and(|end| end.status == RunStatus::Finished)
    }

    /// The state of the run, as far as the tools are known.
    pub(crate) fn replay(self) -> Machine {
        let tools = Arc::new(self.header.tool_traits());
        let Header {
            rules, messages, ..
        } = self.header;
        Machine::replay(rules, tools, messages, self.facts)
    }

    fn read(reader: &mut JournalReader, directory: &Path) -> Result<Self, StoreError> {
        let media = MediaFiles::new(directory);
        let header = reader.header(&media)?;
        let mut clock = WorkClock::new(header.time);
        let mut content = Self {
            header,
            facts: Vec::new(),
            end: None,
            time_used: Duration::ZERO,
        };
        while let Some(entry) = reader.next(&media)? {
            match entry {
                Entry::Header(_) => return Err(reader.line_error("a second header")),
                Entry::End(end) => content.end = Some(end),
                Entry::Fact { fact } => {
                    clock.add(&fact);
                    if let Fact::Resumed {
                        new_sandbox: Some(sandbox),
                        ..
                    } = &*fact
                    {
                        content.header.sandbox.clone_from(&sandbox.handle);
                    }
                    content.facts.push(fact.into_owned());
                    content.end = None;
                }
            }
        }
        content.time_used = clock.used;
        Ok(content)
    }
}

impl RunStore {
    /// A store in this directory, which is created when the first run begins.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            queue: Arc::default(),
        }
    }

    /// Returns the store's directory, with a directory for each run.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the directory of a run, whether or not the run exists.
    pub fn run_directory(&self, run: RunId) -> PathBuf {
        self.directory.join(run.to_string())
    }

    /// Returns the store with the sub-agents of a call.
    pub(crate) fn of_call(&self, run: RunId, call_id: &str) -> Self {
        // The model chooses the id, which may not be a valid file name.
        let name = format!("{:x}", Sha256::digest(call_id));
        Self {
            directory: self.run_directory(run).join(SUB_AGENTS).join(name),
            queue: Arc::clone(&self.queue),
        }
    }

    /// Returns the kept runs, latest first, and the errors of unreadable ones.
    ///
    /// # Errors
    /// If the directory can't be read. A missing directory has no runs.
    pub fn list(&self) -> Result<(Vec<KeptRun>, Vec<StoreError>), StoreError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            Err(error) => return Err(StoreError::io("read", &self.directory, &error)),
        };
        let mut runs = Vec::new();
        let mut unreadable = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| StoreError::io("read", &self.directory, &error))?;
            let name = entry.file_name();
            let Some(run) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match self.get(run) {
                Ok(run) => runs.push(run),
                Err(_) if !has_begun(&entry.path()) => {}
                Err(error) => unreadable.push(error),
            }
        }
        runs.sort_by_key(|run: &KeptRun| std::cmp::Reverse(run.run));
        Ok((runs, unreadable))
    }

    /// Returns one run.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`], or an error of reading the journal.
    pub fn get(&self, run: RunId) -> Result<KeptRun, StoreError> {
        let directory = self.run_directory(run);
        let read = || overview::read(&mut self.open_journal(run)?, &directory);
        let mut kept = read()?;
        if kept.status == KeptStatus::Interrupted {
            if !Lock::is_held(&directory)? {
                // It may have ended meanwhile.
                return read();
            }
            kept.status = KeptStatus::Running;
        }
        Ok(kept)
    }

    /// Removes a run's directory with its journal. A sandbox elsewhere is not removed.
    ///
    /// # Errors
    /// [`StoreErrorKind::InUse`] if a process works on it; [`StoreErrorKind::NotFound`].
    pub fn remove(&self, run: RunId) -> Result<(), StoreError> {
        self.lock(run)?.remove()
    }

    /// Locks a run, so that no other process can resume or remove it.
    ///
    /// # Errors
    /// [`StoreErrorKind::InUse`] if a process works on it; [`StoreErrorKind::NotFound`].
    pub fn lock(&self, run: RunId) -> Result<LockedRun, StoreError> {
        let directory = self.run_directory(run);
        if !directory.is_dir() {
            return Err(not_found(run));
        }
        let lock = Lock::try_lock(&directory)?.ok_or_else(|| in_use(run))?;
        Ok(LockedRun { directory, lock })
    }

    /// Begins the journal of a run.
    pub(crate) async fn begin(&self, header: Header) -> Result<Journal, StoreError> {
        let (store, run) = (self.clone(), header.run);
        let begun = self.queue.run(move || store.begin_blocking(header)).await;
        begun.unwrap_or_else(|_| {
            let message = format!("run {run} can't begin: the program is ending");
            Err(StoreError::new(StoreErrorKind::Io, message))
        })
    }

    fn begin_blocking(&self, header: Header) -> Result<Journal, StoreError> {
        let directory = self.run_directory(header.run);
        // A run appears with its first record, so that a killed process leaves no run without one.
        let new = self.directory.join(format!("{NEW}{}", header.run));
        let changed = changed_by_creating(&self.directory)
            .map_err(|error| StoreError::io("create", &new, &error))?;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(&new)
            .map_err(|error| StoreError::io("create", &new, &error))?;
        let lock = Lock::try_lock(&new)?.ok_or_else(|| in_use(header.run))?;
        let begin = || -> io::Result<File> {
            let file = self.write_header(&new, header)?;
            fs::rename(&new, &directory)?;
            for directory in &changed {
                File::open(directory)?.sync_all()?;
            }
            Ok(file)
        };
        match begin() {
            Ok(file) => Ok(Journal::new(&directory, file, lock, 1, &self.queue)),
            Err(error) => {
                let _ = fs::remove_dir_all(&new);
                Err(StoreError::io("write", &directory.join(FILE_NAME), &error))
            }
        }
    }

    /// Removes directories of runs that never began because their process was killed, if they are older than
    /// `grace`, and returns them. Blocks.
    ///
    /// # Errors
    /// If one can't be removed.
    pub fn remove_incomplete(&self, grace: Duration) -> Result<Vec<PathBuf>, StoreError> {
        let failed = |path: &Path, error: io::Error| StoreError::io("remove", path, &error);
        let mut removed = Vec::new();
        for entry in fs::read_dir(&self.directory).into_iter().flatten() {
            let path = entry
                .map_err(|error| failed(&self.directory, error))?
                .path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let is_new = name.starts_with(NEW);
            if !is_new && (name.parse::<RunId>().is_err() || has_begun(&path)) {
                continue;
            }
            let modified = fs::metadata(&path).and_then(|found| found.modified());
            let age = modified.map(|modified| modified.elapsed().unwrap_or_default());
            if age.is_ok_and(|age| age >= grace)
                && let Some(_lock) = Lock::try_lock(&path)?
            {
                fs::remove_dir_all(&path).map_err(|error| failed(&path, error))?;
                removed.push(path);
            }
        }
        Ok(removed)
    }

    fn write_header(&self, directory: &Path, header: Header) -> io::Result<File> {
        let line = Line::new(&Entry::Header(Box::new(header)))?;
        let seal = Seal {
            batch: 0,
            following: 0,
        };
        let line = line.finish(&MediaFiles::new(directory), seal)?;
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(directory.join(FILE_NAME))?;
        file.write_all(&line)?;
        file.sync_all()?;
        // A new file name is durable only once its directory is synced.
        File::open(directory)?.sync_all()?;
        Ok(file)
    }

    /// Reads the journal of a run.
    pub(crate) fn read(&self, run: RunId) -> Result<JournalContent, StoreError> {
        JournalContent::read(&mut self.open_journal(run)?, &self.run_directory(run))
    }

    /// Returns the background sub-agents that a run started, in order, and the errors of unreadable sub-agents.
    pub(crate) fn background_agents(
        &self,
        run: RunId,
    ) -> (Vec<BackgroundAgentRecord>, Vec<StoreError>) {
        let (runs, unreadable) = sub_agents(&self.run_directory(run));
        let records = runs.iter().map(|run| &run.note);
        let mut records: Vec<_> = records
            .filter_map(BackgroundAgentRecord::from_note)
            .collect();
        records.sort_by_key(|record| record.number);
        (records, unreadable)
    }

    /// Opens the journal of a run for resuming, and cuts off incomplete lines.
    pub(crate) fn reopen(&self, run: RunId) -> Result<(JournalContent, Journal), StoreError> {
        let LockedRun { directory, lock } = self.lock(run)?;
        let mut reader = self.open_journal(run)?;
        let content = JournalContent::read(&mut reader, &directory)?;
        let path = directory.join(FILE_NAME);
        let reopened = || -> io::Result<File> {
            let file = OpenOptions::new().append(true).open(&path)?;
            file.set_len(reader.intact_bytes())?;
            Ok(file)
        };
        let file = reopened().map_err(|error| StoreError::io("write", &path, &error))?;
        let journal = Journal::new(&directory, file, lock, reader.next_batch(), &self.queue);
        Ok((content, journal))
    }

    fn open_journal(&self, run: RunId) -> Result<JournalReader, StoreError> {
        let path = self.run_directory(run).join(FILE_NAME);
        JournalReader::open(&path)?.ok_or_else(|| not_found(run))
    }
}

impl LockedRun {
    /// Removes the run's directory with its journal. A sandbox elsewhere is not removed. Blocks.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn remove(self) -> Result<(), StoreError> {
        let directory = &self.directory;
        fs::remove_dir_all(directory).map_err(|error| StoreError::io("remove", directory, &error))
    }
}

impl KeptRun {
    /// Returns the kept runs of sub-agents, and the errors of unreadable ones. Blocks.
    pub fn sub_agents(&self) -> (Vec<Self>, Vec<StoreError>) {
        sub_agents(&self.directory)
    }
}

/// Returns a directory in which a file is to be created, those of its parents that do not exist yet, and the one that does:
/// their entries are durable only once they are synced.
fn changed_by_creating(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = std::path::absolute(directory)?;
    let is_missing = |directory: &&Path| !directory.exists();
    let missing = directory.ancestors().take_while(is_missing).count();
    let changed = directory.ancestors().take(missing + 1);
    Ok(changed.map(Path::to_owned).collect())
}

/// Returns whether a run's directory has a journal with a first record, or one that can't be read.
fn has_begun(directory: &Path) -> bool {
    let journal = match File::open(directory.join(FILE_NAME)) {
        Ok(journal) => journal,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    let mut first = Vec::new();
    let read = BufReader::new(journal).read_until(b'\n', &mut first);
    read.is_err() || first.ends_with(b"\n")
}

/// Returns the kept runs of a run's sub-agents, and the errors of unreadable ones.
fn sub_agents(run_directory: &Path) -> (Vec<KeptRun>, Vec<StoreError>) {
    let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
    let directory = run_directory.join(SUB_AGENTS);
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            unreadable.push(StoreError::io("read", &directory, &error));
            None
        }
        entries => entries.ok(),
    };
    for entry in entries.into_iter().flatten().flatten() {
        match RunStore::new(entry.path()).list() {
            Ok((listed, errors)) => {
                runs.extend(listed);
                unreadable.extend(errors);
            }
            Err(error) => unreadable.push(error),
        }
    }
    (runs, unreadable)
}

fn not_found(run: RunId) -> StoreError {
    StoreError::new(StoreErrorKind::NotFound, format!("no run {run} is kept"))
}

fn in_use(run: RunId) -> StoreError {
    let message = format!("another process works on run {run}");
    StoreError::new(StoreErrorKind::InUse, message)
}

/// The error of resuming a finished run.
pub(crate) fn already_finished(run: RunId) -> StoreError {
    let message = format!("run {run} is finished; there is nothing left to do");
    StoreError::new(StoreErrorKind::Finished, message)
}

/// Adds up the time that processes worked on a run, as far as facts tell.
#[derive(Debug)]
pub(crate) struct WorkClock {
    /// Time of the latest fact, in seconds since the Unix epoch.
    pub(crate) latest: f64,
    pub(crate) used: Duration,
}

impl WorkClock {
    pub(crate) fn new(start: f64) -> Self {
        Self {
            latest: start,
            used: Duration::ZERO,
        }
    }

    pub(crate) fn add(&mut self, fact: &Fact) {
        let now = match fact {
            Fact::Resumed { time, .. } => {
                self.latest = *time;
                return;
            }
            Fact::ModelAnswered { message, .. } => message.request_end_time,
            Fact::CallStarted { time, .. } => Some(*time),
            Fact::CallFinished { outcome, .. } => Some(outcome.time),
            // Other model calls record a duration, but no time.
            other => other
                .model_call()
                .map(|call| self.latest + call.duration.as_secs_f64()),
        };
        if let Some(now) = now {
            self.used += Duration::try_from_secs_f64(now - self.latest).unwrap_or_default();
            self.latest = now;
        }
    }
}

#[cfg(test)]
mod tests;
