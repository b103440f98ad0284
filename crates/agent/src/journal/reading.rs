//! Reading a journal: its lines, up to the last whole one.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::IgnoredAny;

use super::record::VERSION;
use super::seal::{self, Seal, Sealed};
use super::store::{StoreError, StoreErrorKind};

/// The lines of a journal, one after the other.
pub(super) struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    number: usize,
    /// Bytes of the whole lines so far.
    whole: u64,
    latest: Option<Seal>,
}

impl Lines {
    /// Opens a journal; `None` where there is none.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, StoreError> {
        match File::open(path) {
            Ok(file) => Ok(Some(Self {
                reader: BufReader::new(file),
                path: path.to_owned(),
                number: 0,
                whole: 0,
                latest: None,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", path, error)),
        }
    }

    /// When something was last written.
    pub(super) fn modified(&self) -> io::Result<SystemTime> {
        self.reader.get_ref().metadata()?.modified()
    }

    /// Bytes of the whole lines so far.
    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// The number of the next batch.
    pub(super) fn next_batch(&self) -> u64 {
        self.latest.map_or(0, |seal| seal.batch) + 1
    }

    /// The first line, of a version that is known.
    pub(super) fn header(&mut self) -> Result<Vec<u8>, StoreError> {
        #[derive(serde::Deserialize)]
        struct Version {
            version: u32,
        }
        let line = self.read()?.ok_or_else(|| self.unreadable("it is empty"))?;
        let version: Version =
            serde_json::from_slice(&line).map_err(|error| self.unreadable(&error.to_string()))?;
        if version.version != VERSION {
            return Err(self.unreadable(&format!(
                "its version is {}, and this program reads {VERSION}",
                version.version
            )));
        }
        match seal::look(&line) {
            Sealed::Broken => return Err(self.wrong("its sum is another")),
            Sealed::Whole(seal) => self.latest = Some(seal),
            Sealed::Never => {}
        }
        self.whole += line.len() as u64 + 1;
        Ok(line)
    }

    /// The next line, up to the last whole one.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(line) = self.read()? else {
            return Ok(None);
        };
        match seal::look(&line) {
            Sealed::Whole(seal) => self.latest = Some(seal),
            Sealed::Broken => return self.torn("its sum is another"),
            Sealed::Never => {
                if let Err(error) = serde_json::from_slice::<IgnoredAny>(&line) {
                    return self.torn(&error.to_string());
                }
            }
        }
        self.whole += line.len() as u64 + 1;
        Ok(Some(line))
    }

    /// A line that is none. Where it may be of the last batch, which a crash can have torn, the journal
    /// ends before it; what was on the disk once is not cut off.
    fn torn(&mut self, why: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let error = self.wrong(why);
        let mut last_batch = self.latest.map(|seal| match seal.left {
            0 => seal.batch + 1,
            _ => seal.batch,
        });
        while let Some(line) = self.read()? {
            match seal::look(&line) {
                Sealed::Whole(seal) if *last_batch.get_or_insert(seal.batch) == seal.batch => {}
                Sealed::Whole(_) => return Err(error),
                Sealed::Never if serde_json::from_slice::<IgnoredAny>(&line).is_ok() => {
                    return Err(error);
                }
                Sealed::Broken | Sealed::Never => {}
            }
        }
        Ok(None)
    }

    /// The next line that ends as a line does; what a crash left of one is none.
    fn read(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let mut line = Vec::new();
        let read = self.reader.read_until(b'\n', &mut line);
        read.map_err(|error| StoreError::io("read", &self.path, error))?;
        self.number += 1;
        Ok((line.pop() == Some(b'\n')).then_some(line))
    }

    /// The line that was read last is not what it should be.
    pub(super) fn wrong(&self, why: &str) -> StoreError {
        self.unreadable(&format!("line {}: {why}", self.number))
    }

    /// The journal is not what it should be.
    pub(super) fn unreadable(&self, why: &str) -> StoreError {
        StoreError::new(
            StoreErrorKind::Unreadable,
            format!("{} is no journal of ours: {why}", self.path.display()),
        )
    }
}
