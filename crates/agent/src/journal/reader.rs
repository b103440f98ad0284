//! Reading the lines of a journal, up to the last intact one.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::IgnoredAny;

use super::error::{StoreError, StoreErrorKind};
use super::format::{self, Entry, Header, VERSION};
use super::media::MediaFiles;
use super::seal::{self, Seal, SealCheck};

/// A reader of a journal's lines.
pub(super) struct JournalReader {
    reader: BufReader<File>,
    path: PathBuf,
    line_number: usize,
    /// Bytes of the intact lines so far.
    intact_bytes: u64,
    last_seal: Option<Seal>,
}

impl JournalReader {
    /// Opens a journal; `None` if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, StoreError> {
        match File::open(path) {
            Ok(file) => Ok(Some(Self {
                reader: BufReader::new(file),
                path: path.to_owned(),
                line_number: 0,
                intact_bytes: 0,
                last_seal: None,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", path, &error)),
        }
    }

    /// Returns the time of the last write.
    pub(super) fn modified(&self) -> io::Result<SystemTime> {
        self.reader.get_ref().metadata()?.modified()
    }

    /// Bytes of the intact lines so far.
    pub(super) fn intact_bytes(&self) -> u64 {
        self.intact_bytes
    }

    /// Returns the number of the next batch.
    pub(super) fn next_batch(&self) -> u64 {
        self.last_seal.map_or(0, |seal| seal.batch) + 1
    }

    /// Reads the first line, and checks its version.
    pub(super) fn header_line(&mut self) -> Result<Vec<u8>, StoreError> {
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
        match seal::check(&line) {
            SealCheck::Damaged => return Err(self.line_error("its checksum does not match")),
            SealCheck::Intact(seal) => self.last_seal = Some(seal),
            SealCheck::Missing => {}
        }
        self.intact_bytes += line.len() as u64 + 1;
        Ok(line)
    }

    /// Reads the next line; `None` after the last intact one.
    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(line) = self.read()? else {
            return Ok(None);
        };
        match seal::check(&line) {
            SealCheck::Intact(seal) => self.last_seal = Some(seal),
            SealCheck::Damaged => return self.damaged("its checksum does not match"),
            SealCheck::Missing => {
                if let Err(error) = serde_json::from_slice::<IgnoredAny>(&line) {
                    return self.damaged(&error.to_string());
                }
            }
        }
        self.intact_bytes += line.len() as u64 + 1;
        Ok(Some(line))
    }

    /// Handles a damaged line. If it may belong to the last batch, which a crash can damage, the journal
    /// ends before it. Damage before the last batch is an error.
    fn damaged(&mut self, reason: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let error = self.line_error(reason);
        let mut last_batch = self.last_seal.map(|seal| match seal.following {
            0 => seal.batch + 1,
            _ => seal.batch,
        });
        while let Some(line) = self.read()? {
            match seal::check(&line) {
                SealCheck::Intact(seal) if *last_batch.get_or_insert(seal.batch) == seal.batch => {}
                SealCheck::Intact(_) => return Err(error),
                SealCheck::Missing if serde_json::from_slice::<IgnoredAny>(&line).is_ok() => {
                    return Err(error);
                }
                SealCheck::Damaged | SealCheck::Missing => {}
            }
        }
        Ok(None)
    }

    /// Reads the next complete line.
    fn read(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let mut line = Vec::new();
        let read = self.reader.read_until(b'\n', &mut line);
        read.map_err(|error| StoreError::io("read", &self.path, &error))?;
        self.line_number += 1;
        Ok((line.pop() == Some(b'\n')).then_some(line))
    }

    /// The error of the line that was read last.
    pub(super) fn line_error(&self, reason: &str) -> StoreError {
        self.unreadable(&format!("line {}: {reason}", self.line_number))
    }

    /// The error of a journal that can't be read.
    pub(super) fn unreadable(&self, reason: &str) -> StoreError {
        StoreError::new(
            StoreErrorKind::Unreadable,
            format!("{} is not a valid journal: {reason}", self.path.display()),
        )
    }

    /// Reads and parses the header.
    pub(super) fn header(&mut self, media: &MediaFiles) -> Result<Header, StoreError> {
        let line = self.header_line()?;
        match format::parse(&line, media) {
            Ok(Entry::Header(header)) => Ok(*header),
            Ok(_) => Err(self.unreadable("it does not begin with a header")),
            Err(error) => Err(self.unreadable(&error.to_string())),
        }
    }

    /// Reads and parses the next entry after the header.
    pub(super) fn next(
        &mut self,
        media: &MediaFiles,
    ) -> Result<Option<Entry<'static>>, StoreError> {
        let Some(line) = self.next_line()? else {
            return Ok(None);
        };
        let entry = format::parse(&line, media);
        entry
            .map(Some)
            .map_err(|error| self.line_error(&error.to_string()))
    }
}
