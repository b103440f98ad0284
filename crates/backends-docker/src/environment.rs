//! The environment variables of commands.

use std::collections::BTreeMap;
use std::path::Path;

use cantle_command_driver::check_environment;
use cantle_core::policy::Policy;
use cantle_core::sandbox::SandboxError;
use cantle_core::secret::SecretText;
use cantle_proxy::ProxySettings;

use crate::options::Options;

/// `PATH` where the image sets none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The file of variables that is read if it exists.
const DEFAULT_FILE: &str = ".env";

/// Variables of every command in a sandbox.
pub(crate) type Variables = BTreeMap<String, SecretText>;

/// Merges defaults, the image's variables (`NAME=value`), those of the proxy, inherited ones and the policy's; later
/// ones override.
pub(crate) fn variables(
    options: &Options,
    image: &[String],
    proxy: Option<&ProxySettings>,
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
    let image = image.iter().filter_map(|line| line.split_once('='));
    let image = image.filter(|(name, _)| *name != "HOME");
    variables.extend(image.map(|(name, value)| (name.to_owned(), value.into())));
    if proxy.is_some() {
        let found = cantle_proxy::variables(cantle_proxy::PORT);
        variables.extend(
            found
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.into())),
        );
    }
    variables.extend(inherited(options, &|name| std::env::var(name).ok())?);
    check_environment(&policy.environment)?;
    variables.extend(policy.environment.clone());
    Ok(variables)
}

/// Returns the inherited variables: from this process, or else from the file.
fn inherited(
    options: &Options,
    own: &dyn Fn(&str) -> Option<String>,
) -> Result<Variables, SandboxError> {
    let mut found = Variables::new();
    if options.inherited.is_empty() {
        return Ok(found);
    }
    let path = options.environment_file.as_deref();
    let file = match std::fs::read_to_string(path.unwrap_or(Path::new(DEFAULT_FILE))) {
        Ok(text) => parse(&text),
        Err(_) if path.is_none() => Variables::new(),
        Err(error) => {
            let path = path.unwrap_or(Path::new(DEFAULT_FILE)).display();
            let message = format!("failed to read the variables in `{path}`: {error}");
            return Err(SandboxError::unavailable(message));
        }
    };
    for name in &options.inherited {
        let value = own(name)
            .map(SecretText::from)
            .or_else(|| file.get(name).cloned());
        let value = value.ok_or_else(|| {
            let message = format!("the variable `{name}` is to be inherited but isn't set");
            SandboxError::unavailable(message).with_advice("Set it, or add it to `.env`.")
        })?;
        found.insert(name.clone(), value);
    }
    Ok(found)
}

/// Parses a file of `NAME=value` lines, with `export`, quotes and comments as in shells.
///
/// Nothing is expanded, and other lines are ignored.
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
                // It may span lines.
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

/// Splits text at its closing quote; resolves escapes before it.
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
