//! What commands find in their environment, and where it comes from.

use std::collections::BTreeMap;
use std::path::Path;

use cantle_core::policy::Policy;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::secret::SecretText;

use crate::options::Options;

/// Where to look for programs where the image has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a file with variables is looked for unless one is named.
const DEFAULT_FILE: &str = ".env";

/// The variables that every command of a sandbox has.
pub(crate) type Variables = BTreeMap<String, SecretText>;

/// The few that every shell needs, the image's own, those passed on, and the policy's over them.
pub(crate) fn variables(
    options: &Options,
    image: &[(String, String)],
    policy: &Policy,
) -> Result<Variables, SandboxError> {
    let home = options.working_directory.to_string();
    let mut variables: Variables = [
        ("HOME", &*home),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "user"),
        ("PATH", DEFAULT_PATH),
        ("TERM", "dumb"),
        ("TMPDIR", "/tmp"),
        ("USER", "user"),
    ]
    .map(|(name, value)| (name.to_owned(), value.into()))
    .into();
    let image = image.iter().filter(|(name, _)| name != "HOME");
    variables.extend(image.map(|(name, value)| (name.clone(), value.as_str().into())));
    variables.extend(passed(options, &|name| std::env::var(name).ok())?);
    for (name, value) in &policy.environment {
        if name.is_empty() || name.contains(['=', '\0']) || value.expose().contains('\0') {
            let message = format!("`{}` can't be a variable", name.escape_debug());
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        variables.insert(name.clone(), value.clone());
    }
    Ok(variables)
}

/// The variables that are passed on by name: ours, or else those of the file.
fn passed(
    options: &Options,
    own: &dyn Fn(&str) -> Option<String>,
) -> Result<Variables, SandboxError> {
    let mut found = Variables::new();
    if options.passed.is_empty() {
        return Ok(found);
    }
    let path = options.environment_file.as_deref();
    let file = match std::fs::read_to_string(path.unwrap_or(Path::new(DEFAULT_FILE))) {
        Ok(text) => parse(&text),
        Err(_) if path.is_none() => Variables::new(),
        Err(error) => {
            let path = path.unwrap_or(Path::new(DEFAULT_FILE)).display();
            let message = format!("failed to read the variables in `{path}`: {error}");
            return Err(
                SandboxError::new(SandboxErrorKind::Unavailable, message).with_source(error)
            );
        }
    };
    for name in &options.passed {
        let value = own(name)
            .map(SecretText::from)
            .or_else(|| file.get(name).cloned());
        let value = value.ok_or_else(|| {
            let message = format!("the variable `{name}` is to be passed on and isn't set");
            SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("Set it, or write it into `.env`.")
        })?;
        found.insert(name.clone(), value);
    }
    Ok(found)
}

/// Reads a file of variables: `NAME=value` lines, with `export`, quotes and comments as shells have them.
/// Nothing is expanded. What is no such line is passed over.
fn parse(text: &str) -> Variables {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut variables = Variables::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, below) = rest.split_once('\n').unwrap_or((rest, ""));
        rest = below;
        let line = line.trim_start();
        let line = line.strip_prefix("export ").map_or(line, str::trim_start);
        let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let (name, value) = (name.trim(), value.trim_start());
        if name.is_empty() || name.contains(char::is_whitespace) {
            continue;
        }
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                // It may go on in the lines below.
                let start = value.as_ptr() as usize - text.as_ptr() as usize + 1;
                let Some((value, after)) = quoted(text.get(start..).unwrap_or_default(), quote)
                else {
                    continue;
                };
                rest = after.split_once('\n').map_or("", |(_, below)| below);
                value
            }
            _ => {
                let comment = value.find(" #").unwrap_or(value.len());
                value
                    .get(..comment)
                    .unwrap_or_default()
                    .trim_end()
                    .to_owned()
            }
        };
        variables.insert(name.to_owned(), value.into());
    }
    variables
}

/// The text up to the closing quote, and what follows.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            _ if character == quote => {
                return Some((value, text.get(at + 1..).unwrap_or_default()));
            }
            '\\' if quote == '"' => match characters.next()?.1 {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                escaped @ ('"' | '\\' | '$' | '`') => value.push(escaped),
                other => value.extend(['\\', other]),
            },
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests;
