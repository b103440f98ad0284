//! Skills: a directory of instructions for certain kinds of work, each `NAME/SKILL.md` with its files
//! beside it.
//!
//! The whole directory is uploaded. The front matter of each `SKILL.md` is read here, to list the
//! skills for the model. An invalid skill never prevents a session from opening; it becomes a warning.

mod front_matter;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use cantle_core::escape::shorten;

use self::front_matter::FrontMatter;
use crate::error::{SessionError, SessionErrorKind};

/// Maximum number of listed skills.
const MAX_LISTED: usize = 200;
/// Maximum characters of a listed name.
const MAX_NAME_CHARS: usize = 100;
/// Maximum characters of a listed description.
const MAX_DESCRIPTION_CHARS: usize = 1_024;

/// The directory of skills in the sandbox, relative to the working directory.
pub(crate) const SANDBOX_DIRECTORY: &str = "skills";

const FILE: &str = "SKILL.md";

/// The skills of a directory on the host.
#[derive(Debug)]
pub(crate) struct Skills {
    directory: PathBuf,
    listed: Vec<Skill>,
    warnings: Vec<String>,
}

#[derive(Debug, PartialEq)]
struct Skill {
    name: String,
    description: String,
    /// The name of its directory.
    directory: String,
}

impl Skills {
    /// Loads the skills of a directory. Reads files, and therefore blocks.
    pub(crate) fn load(directory: &Path) -> Result<Self, SessionError> {
        let failed = |error: io::Error| {
            let message = format!(
                "the skills in `{}` can't be read: {error}",
                directory.display()
            );
            SessionError::new(SessionErrorKind::Input, message).with_source(error)
        };
        let root = directory.canonicalize().map_err(failed)?;
        let entries = std::fs::read_dir(&root).map_err(failed)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
        let mut names: Vec<_> = names.collect::<Result<_, _>>().map_err(failed)?;
        names.sort();

        let mut skills = Self {
            directory: directory.to_owned(),
            listed: Vec::new(),
            warnings: Vec::new(),
        };
        let mut seen = HashMap::new();
        for name in names {
            let shown = name.to_string_lossy().into_owned();
            let found = match name.to_str() {
                Some(name) => skill(&root, name),
                None if root.join(&name).is_dir() => Err("its name is not UTF-8".to_owned()),
                None => Ok(None),
            };
            match found {
                Ok(None) => {}
                Ok(Some(skill)) => match seen.insert(skill.name.clone(), shown.clone()) {
                    None => skills.listed.push(skill),
                    Some(first) => {
                        let why = format!("`{first}` has the name `{}` already", skill.name);
                        skills.warn(&shown, &why);
                        seen.insert(skill.name, first);
                    }
                },
                Err(why) => skills.warn(&shown, &why),
            }
        }
        skills.listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(skills)
    }

    fn warn(&mut self, directory: &str, why: &str) {
        self.warnings.push(format!(
            "The skill `{directory}` is not listed for the model: {why}."
        ));
    }

    /// Returns the directory on the host, which is uploaded as [`SANDBOX_DIRECTORY`].
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the problems of skills that are not listed.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the section of the system prompt; `None` if no skill is listed.
    pub(crate) fn prompt_section(&self) -> Option<String> {
        if self.listed.is_empty() {
            return None;
        }
        let mut text = format!(
            "These skills are in the directory `{SANDBOX_DIRECTORY}`: instructions, and files they \
             use, for certain kinds of work. Where the task is of such a kind, read the skill's {FILE} \
             in full before you begin:"
        );
        for skill in self.listed.iter().take(MAX_LISTED) {
            let Skill {
                name,
                description,
                directory,
            } = skill;
            let _ = write!(
                text,
                "\n- {name} (`{SANDBOX_DIRECTORY}/{directory}/{FILE}`): {description}"
            );
        }
        let more = self.listed.len().saturating_sub(MAX_LISTED);
        if more > 0 {
            let _ = write!(text, "\n- and {more} more; list the directory to see them");
        }
        Some(text)
    }
}

/// Reads the skill in an entry of the directory; `None` if the entry is not a directory.
fn skill(root: &Path, directory: &str) -> Result<Option<Skill>, String> {
    let place = root.join(directory);
    let real = match place.canonicalize() {
        Ok(real) => real,
        Err(error) if place.is_symlink() => return Err(format!("its link leads nowhere: {error}")),
        Err(error) => return Err(error.to_string()),
    };
    if !real.is_dir() || directory.starts_with('.') {
        return Ok(None);
    }
    let outside =
        || "its link leads out of the directory of skills, and is not uploaded".to_owned();
    if !real.starts_with(root) {
        return Err(outside());
    }
    let file = match real.join(FILE).canonicalize() {
        Ok(file) if !file.starts_with(root) => return Err(format!("{FILE}: {}", outside())),
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("it has no {FILE}"));
        }
        Err(error) => return Err(format!("{FILE} can't be read: {error}")),
    };
    // Opening a pipe would block.
    if !file.is_file() {
        return Err(format!("{FILE} is not a file"));
    }
    let FrontMatter { name, description } = front_matter::read(&file)
        .map_err(|problem| format!("{}: {problem}", place.join(FILE).display()))?;
    Ok(Some(Skill {
        name: one_line(&name, MAX_NAME_CHARS),
        description: one_line(&description, MAX_DESCRIPTION_CHARS),
        directory: directory.to_owned(),
    }))
}

fn one_line(text: &str, chars: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    shorten(&line, chars)
}

#[cfg(test)]
mod tests;
