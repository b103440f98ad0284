//! Resource limits of a sandbox.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{InvalidPolicy, PolicyField};
use crate::seconds;

/// Resource limits of a sandbox. `None` means the backend's default, or no limit.
///
/// A default protects the machine. It is enforced as far as that is possible, and never a reason why a
/// sandbox doesn't open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// Wall-clock time of one command.
    #[serde(
        rename = "wall_time_s",
        with = "seconds::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub wall_time: Option<Duration>,
    /// CPU time of one command.
    #[serde(
        rename = "cpu_time_s",
        with = "seconds::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_time: Option<Duration>,
    /// Memory of all processes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Size of one file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// Size of all files together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Number of files and directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// Number of open files of one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Output of one command on either channel. A command that writes more is killed, and the rest is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Limits without a default.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unlimited: BTreeSet<PolicyField>,
}

impl Limits {
    /// Returns whether there are no limits.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the defaults of limits that are neither set nor unlimited.
    pub fn with_defaults(&self, defaults: &Self) -> Self {
        let free = |field| !self.unlimited.contains(&field);
        macro_rules! or {
            ($name:ident, $field:ident) => {
                self.$name
                    .or(defaults.$name.filter(|_| free(PolicyField::$field)))
            };
        }
        Self {
            wall_time: or!(wall_time, WallTime),
            cpu_time: or!(cpu_time, CpuTime),
            memory_bytes: or!(memory_bytes, Memory),
            processes: or!(processes, Processes),
            file_size_bytes: or!(file_size_bytes, FileSize),
            disk_bytes: or!(disk_bytes, Disk),
            inodes: or!(inodes, Inodes),
            open_files: or!(open_files, OpenFiles),
            output_bytes: or!(output_bytes, Output),
            unlimited: self.unlimited.clone(),
        }
    }

    /// Sets one limit from text: `memory=2G`, `processes=64`, `wall_time=90s`. The value `none` removes a limit
    /// and its default.
    ///
    /// Times (`wall_time`, `cpu_time`) are in seconds, or end in `s`, `m` or `h`; sizes (`memory`,
    /// `file_size`, `disk`, `output`) are in bytes, or end in `K`, `M` or `G` (1024 each); numbers
    /// (`processes`, `inodes`, `open_files`) are whole.
    ///
    /// ```
    /// use cantle_core::policy::Limits;
    ///
    /// let mut limits = Limits::default();
    /// limits.set("memory=512M")?;
    /// assert_eq!(limits.memory_bytes, Some(512 * 1024 * 1024));
    /// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
    /// ```
    ///
    /// # Errors
    /// If the name or the value is invalid; the message lists the names.
    pub fn set(&mut self, setting: &str) -> Result<(), InvalidPolicy> {
        let invalid = |advice: &str| InvalidPolicy::new(setting, "a limit", advice);
        let (name, value) = setting
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .ok_or_else(|| invalid(&format!("write NAME=VALUE, as in `memory=2G`; {}", names())))?;
        let field = |named: &&(PolicyField, bool)| named.0.as_str() == name;
        let Some((field, _)) = self.each().iter().find(field).copied() else {
            return Err(invalid(&format!(
                "there is no limit of this name; {}",
                names()
            )));
        };
        let time = || {
            let advice =
                "a time is a number of seconds above 0, or ends in s, m or h: `90`, `1.5m`";
            unless_none(value, parse_duration).ok_or_else(|| invalid(advice))
        };
        let size = || {
            let advice = "a size is a number of bytes above 0, or ends in K, M or G: `512M`, `2G`";
            unless_none(value, parse_bytes).ok_or_else(|| invalid(advice))
        };
        let number = || {
            let advice = "this limit is a whole number above 0: `64`";
            unless_none(value, whole).ok_or_else(|| invalid(advice))
        };
        match field {
            PolicyField::WallTime => self.wall_time = time()?,
            PolicyField::CpuTime => self.cpu_time = time()?,
            PolicyField::Memory => self.memory_bytes = size()?,
            PolicyField::Processes => self.processes = number()?,
            PolicyField::FileSize => self.file_size_bytes = size()?,
            PolicyField::Disk => self.disk_bytes = size()?,
            PolicyField::Inodes => self.inodes = number()?,
            PolicyField::OpenFiles => self.open_files = number()?,
            _ => self.output_bytes = size()?,
        }
        if value == "none" {
            self.unlimited.insert(field);
        } else {
            self.unlimited.remove(&field);
        }
        Ok(())
    }

    /// Returns the limits that are set.
    pub(super) fn fields(&self) -> impl Iterator<Item = PolicyField> {
        self.each()
            .into_iter()
            .filter_map(|(field, set)| set.then_some(field))
    }

    /// Returns every limit, and whether it is set.
    fn each(&self) -> [(PolicyField, bool); 9] {
        [
            (PolicyField::WallTime, self.wall_time.is_some()),
            (PolicyField::CpuTime, self.cpu_time.is_some()),
            (PolicyField::Memory, self.memory_bytes.is_some()),
            (PolicyField::Processes, self.processes.is_some()),
            (PolicyField::FileSize, self.file_size_bytes.is_some()),
            (PolicyField::Disk, self.disk_bytes.is_some()),
            (PolicyField::Inodes, self.inodes.is_some()),
            (PolicyField::OpenFiles, self.open_files.is_some()),
            (PolicyField::Output, self.output_bytes.is_some()),
        ]
    }
}

fn names() -> String {
    let names = Limits::default().each().map(|(field, _)| field.as_str());
    format!("the limits are {}", names.join(", "))
}

/// Parses the value of a limit; `none` is no limit.
fn unless_none<T>(value: &str, parse: fn(&str) -> Option<T>) -> Option<Option<T>> {
    match value {
        "none" => Some(None),
        value => parse(value).map(Some),
    }
}

fn whole(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok())?;
    number.filter(|number| *number != 0)
}

/// Splits a number from its unit, and returns the unit's factor; 1 without a unit.
fn split_unit(text: &str, units: [(char, u32); 3]) -> (&str, u32) {
    let mut found = units.into_iter();
    let found = found.find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    found.unwrap_or((text, 1))
}

/// Parses a positive number of bytes such as `512k`, `2G` or `1048576`; units are powers of 1,024.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let units = [('k', 1 << 10), ('m', 1 << 20), ('g', 1 << 30)];
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = split_unit(&lower, units);
    whole(digits)?.checked_mul(u64::from(factor))
}

/// Parses a duration above zero such as `90`, `90s`, `1.5m` or `2h`; the default unit is seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (digits, factor) = split_unit(text, [('s', 1), ('m', 60), ('h', 3600)]);
    // `f64` also parses signs, exponents and infinity.
    let plain = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let number: f64 = digits.bytes().all(plain).then(|| digits.parse().ok())??;
    let duration = Duration::try_from_secs_f64(number * f64::from(factor)).ok()?;
    (!duration.is_zero()).then_some(duration)
}

#[cfg(test)]
mod tests;
