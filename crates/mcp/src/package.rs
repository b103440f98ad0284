//! Packages that servers are started from, as `npx -y PACKAGE` and `uvx PACKAGE` name them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use auto_impl::auto_impl;
use cantle_core::tool::Progress;

/// A package whose program is a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerPackage {
    /// The ecosystem of the package.
    pub ecosystem: Ecosystem,
    /// Its name, with extras and constraints of its version as the ecosystem writes them.
    pub specifier: String,
    /// The program of the package, if the entry names it.
    pub program: Option<String>,
}

/// The ecosystem of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ecosystem {
    /// Packages of npm, for Node.js.
    Npm,
    /// Packages of an index for Python.
    Python,
}

/// A package that is installed on this machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstalledPackage {
    /// The program.
    pub program: PathBuf,
    /// The paths that it needs to read.
    pub read_roots: Vec<PathBuf>,
    /// Keeps the package while it is used.
    _guard: Arc<dyn fmt::Debug + Send + Sync>,
}

impl InstalledPackage {
    /// Creates it. `guard` is dropped when the package is not used any more.
    pub fn new(
        program: PathBuf,
        read_roots: Vec<PathBuf>,
        guard: impl fmt::Debug + Send + Sync + 'static,
    ) -> Self {
        Self {
            program,
            read_roots,
            _guard: Arc::new(guard),
        }
    }
}

/// Installs the packages of servers before these start, without what the server may see or reach.
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait PackageInstaller: fmt::Debug + Send + Sync {
    /// Installs a package, unless it is installed.
    ///
    /// # Errors
    /// With the reason, as a sentence for the user.
    async fn install(
        &self,
        package: &ServerPackage,
        progress: &dyn Progress,
    ) -> Result<InstalledPackage, String>;
}

/// Returns the package that a command line names, and the number of words that name it; `None` if it starts another
/// program, such as an npx of the user in another way than is known here.
pub(crate) fn of_command(argv: &[&str]) -> Result<Option<(ServerPackage, usize)>, String> {
    let Some((program, rest)) = argv.split_first() else {
        return Ok(None);
    };
    match program
        .strip_prefix('/')
        .and_then(|path| path.rsplit('/').next())
    {
        Some(name) => Ok(named(name, rest).unwrap_or_default()),
        None => named(program, rest),
    }
}

fn named(name: &str, arguments: &[&str]) -> Result<Option<(ServerPackage, usize)>, String> {
    let (ecosystem, from, agreeing): (_, &[&str], &[&str]) = match name {
        "npx" => (Ecosystem::Npm, &["-p", "--package"], &["-y", "--yes"]),
        "uvx" => (Ecosystem::Python, &["--from"], &[]),
        _ => return Ok(None),
    };
    let mut named = None;
    let mut words = 1;
    let mut rest = arguments.iter();
    let first = loop {
        words += 1;
        match rest.next() {
            Some(word) if agreeing.contains(word) => {}
            Some(word) if from.contains(word) && named.is_none() => {
                named = rest.next().copied();
                words += 1;
            }
            Some(word) if joined(word, from).is_some() && named.is_none() => {
                named = joined(word, from);
            }
            Some(word) if word.starts_with('-') => {
                let problem = format!("the option `{word}` of {name} is not known here");
                return Err(format!("can't be installed: {problem}"));
            }
            Some(word) => break *word,
            None => return Err(format!("can't be installed: {name} names no package")),
        }
    };
    let (specifier, program) = match named {
        Some(package) => (package, Some(first.to_owned())),
        None => (first, None),
    };
    Ok(Some((package(ecosystem, specifier, program), words)))
}

/// Returns the value of `--option=value`, if it is one of these options.
fn joined<'w>(word: &'w str, options: &[&str]) -> Option<&'w str> {
    let (option, value) = word.split_once('=')?;
    options.contains(&option).then_some(value)
}

fn package(ecosystem: Ecosystem, specifier: &str, program: Option<String>) -> ServerPackage {
    // uvx writes `name@1.2` for `name==1.2`. A direct reference has spaces.
    let versioned = specifier.split_once('@').filter(|(name, _)| {
        ecosystem == Ecosystem::Python && !name.ends_with(' ') && !name.is_empty()
    });
    ServerPackage {
        ecosystem,
        specifier: match versioned {
            Some((name, "latest")) => name.to_owned(),
            Some((name, version)) => format!("{name}=={version}"),
            None => specifier.to_owned(),
        },
        program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_as_npx_and_uvx_name_them() {
        let named = |line: &str| {
            let argv: Vec<&str> = line.split(' ').collect();
            of_command(&argv).transpose().map(|named| {
                let (package, words) = named?;
                let program = package.program.unwrap_or_default();
                Ok::<_, String>(format!("{} {program} {words}", package.specifier))
            })
        };
        for (line, expected) in [
            ("npx -y @scope/server@1.2 --port 1", "@scope/server@1.2  3"),
            ("npx server", "server  2"),
            ("npx --yes -p @scope/tools serve x", "@scope/tools serve 5"),
            ("uvx mcp-server-time --zone x", "mcp-server-time  2"),
            ("uvx server@1.2", "server==1.2  2"),
            ("uvx server@latest", "server  2"),
            ("uvx --from tools[x]>=1 serve", "tools[x]>=1 serve 4"),
            (
                "npx -y --package=@scope/tools serve x",
                "@scope/tools serve 4",
            ),
            ("/usr/bin/uvx --from=tools>=1 serve", "tools>=1 serve 3"),
        ] {
            assert_eq!(named(line), Some(Ok(expected.to_owned())), "{line}");
        }
        for line in [
            "npx",
            "npx -y",
            "npx -c x",
            "uvx --with a b",
            "uvx --from a",
            "npx --call=x y",
        ] {
            assert!(named(line).is_some_and(|named| named.is_err()), "{line}");
        }
        for line in ["node server.js", "/usr/bin/uvx --with a b", "./npx server"] {
            assert_eq!(named(line), None, "{line}");
        }
    }
}
