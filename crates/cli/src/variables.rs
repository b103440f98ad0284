//! Variables of commands, from flags and files. Their values are neither kept nor displayed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use cantle::core::secret::SecretText;

use crate::text::without_byte_order_mark;
use crate::trust::read_regular;

/// The variables of commands.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct VariableArgs {
    /// Environment variable for commands; NAME alone passes on its value in this environment; can be repeated
    ///
    /// Of this environment, commands get only the directories of PATH that exist for them, and the user's name. Values
    /// are not kept: a resumed run takes them from the environment again.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<Variable>,

    /// File of variables, a NAME=VALUE or NAME per line; can be repeated
    ///
    /// Lines that are empty or begin with `#` are left out. Values are taken as they are, with quotes.
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
}

/// A variable, and its value if it is given.
#[derive(Clone, Debug)]
struct Variable {
    name: String,
    value: Option<SecretText>,
}

impl FromStr for Variable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let mut chars = name.chars();
        let is_name = chars
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name || value.is_some_and(|value| value.contains('\0')) {
            // Without the text, which may be a secret.
            return Err(
                "expected NAME or NAME=VALUE, with a NAME of letters, digits and `_`".to_owned(),
            );
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.map(SecretText::from),
        })
    }
}

impl VariableArgs {
    /// Returns the variables with the values that they have now, so that a file is read once.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub(crate) fn fixed(&self) -> anyhow::Result<Self> {
        let values = self.resolve(&[])?.into_iter();
        let env = values.map(|(name, value)| Variable {
            name,
            value: Some(value),
        });
        Ok(Self {
            env: env.collect(),
            env_file: Vec::new(),
        })
    }

    /// Returns the variables, and those of a resumed run (`names`).
    ///
    /// # Errors
    /// If a file can't be read, or a variable without a value is not set here.
    pub(crate) fn resolve(&self, names: &[String]) -> anyhow::Result<BTreeMap<String, SecretText>> {
        let mut variables: Vec<Variable> = names
            .iter()
            .map(|name| Variable {
                name: name.clone(),
                value: None,
            })
            .collect();
        for path in &self.env_file {
            let failed = || format!("the file of variables {}", path.display());
            let (text, _) = read_regular(path)?
                .context("it does not exist")
                .with_context(failed)?;
            for (index, line) in without_byte_order_mark(&text).lines().enumerate() {
                if line.trim().is_empty() || line.starts_with('#') {
                    continue;
                }
                match line.parse() {
                    Ok(variable) => variables.push(variable),
                    Err(error) => bail!("{}, line {}: {error}", path.display(), index + 1),
                }
            }
        }
        variables.extend(self.env.iter().cloned());
        let mut resolved: BTreeMap<String, Option<SecretText>> = BTreeMap::new();
        for Variable { name, value } in variables {
            // One with a value in a file may be named again.
            let value = value.or_else(|| std::env::var(&name).ok().map(SecretText::from));
            let entry = resolved.entry(name).or_default();
            *entry = value.or_else(|| entry.take());
        }
        let value = |(name, value): (String, Option<SecretText>)| {
            let missing = || {
                format!("the variable {name} has no value: set it here, or give --env {name}=VALUE")
            };
            let value = value.with_context(missing)?;
            Ok((name, value))
        };
        resolved.into_iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_from_flags_files_and_here() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("vars");
        std::fs::write(
            &file,
            "\u{feff}# a comment\r\n\nA=1\r\nB=\"x = y\"\nPATH\nC=\n",
        )
        .unwrap();
        let args = VariableArgs {
            env: vec!["A=2".parse().unwrap()],
            env_file: vec![file.clone()],
        };
        let resolved = args.resolve(&["HOME".to_owned()]).unwrap();
        let path = std::env::var("PATH").unwrap();
        let home = std::env::var("HOME").unwrap();
        let exposed: Vec<_> = resolved
            .iter()
            .map(|(name, value)| (&**name, value.expose()))
            .collect();
        let expected = [
            ("A", "2"),
            ("B", "\"x = y\""),
            ("C", ""),
            ("HOME", &*home),
            ("PATH", &*path),
        ];
        assert_eq!(exposed, expected);

        let missing = VariableArgs::default().resolve(&["CANTLE_TEST_UNSET".to_owned()]);
        assert!(
            missing
                .unwrap_err()
                .to_string()
                .contains("--env CANTLE_TEST_UNSET=VALUE")
        );
        std::fs::write(&file, "A=1\nno name=secret\n").unwrap();
        let wrong = args.resolve(&[]).unwrap_err().to_string();
        assert!(
            wrong.contains("line 2") && !wrong.contains("secret"),
            "{wrong}"
        );
        for text in ["", "=x", "1A=x", "A B"] {
            assert!(text.parse::<Variable>().is_err(), "{text}");
        }
    }
}
