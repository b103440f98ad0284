//! Finding the Python of a sandbox.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle_core::sandbox::{
    Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SpawnRequest,
};

/// Prints the version; Python 2 can run it, too.
const VERSION: &str =
    "import sys; sys.stdout.write('cantle-python %d.%d.%d' % sys.version_info[:3])";
const MIN_VERSION: (u8, u8) = (3, 9);
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a script that is searched for the programs that it needs, and of their number.
const MAX_SCRIPT_BYTES: u64 = 64 * 1024;
const MAX_SCRIPT_PATHS: usize = 8;

/// A usable Python 3.
pub(crate) struct Python {
    /// Its name or path in the sandbox.
    pub(crate) program: String,
    /// Its minor version.
    pub(crate) minor: u8,
}

/// Returns the Python of a sandbox, or why there is none.
pub(crate) async fn find_python(
    sandbox: &dyn Sandbox,
    configured: Option<&str>,
) -> Result<Result<Python, String>, SandboxError> {
    let candidates = configured.map_or(vec!["python3", "python"], |python| vec![python]);
    let mut problem = None;
    for candidate in candidates {
        let request =
            SpawnRequest::argv([candidate, "-c", VERSION]).with_timeout(DISCOVERY_TIMEOUT);
        let output = match sandbox.run(request).await {
            Ok(output) => output,
            Err(error) => match error.kind() {
                SandboxErrorKind::NotFound
                | SandboxErrorKind::PermissionDenied
                | SandboxErrorKind::NotADirectory
                | SandboxErrorKind::InvalidInput => continue,
                _ => return Err(error),
            },
        };
        let printed = output.stdout.text();
        let Some(version) = printed.strip_prefix("cantle-python ") else {
            let stderr: String = output.stderr.text().trim().chars().take(300).collect();
            problem = Some(format!(
                "`{candidate}` is no working Python ({}): {stderr}",
                output.exit.status
            ));
            continue;
        };
        let mut numbers = version
            .split('.')
            .map_while(|number| number.parse::<u8>().ok());
        let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if (major, minor) >= MIN_VERSION {
            let program = candidate.to_owned();
            return Ok(Ok(Python { program, minor }));
        }
        let version: String = version.chars().take(40).collect();
        problem = Some(format!(
            "`{candidate}` is Python {version}, and at least 3.9 is needed."
        ));
    }
    let missing = match configured {
        Some(python) => format!("There is no Python `{python}` in the sandbox."),
        None => "There is no Python (`python3`) in the sandbox.".to_owned(),
    };
    let hidden = hidden_python(configured.unwrap_or("python3"));
    let hint = match hidden.filter(|_| sandbox.info().backend == "local") {
        Some(roots) => format!(
            " This machine has one that the sandbox can't see: allow `{roots}` and name its program."
        ),
        None => String::new(),
    };
    Ok(Err(problem.unwrap_or(missing) + &hint))
}

/// Returns the flags for the read roots that make a Python of this machine visible.
fn hidden_python(python: &str) -> Option<String> {
    let path = if python.contains('/') {
        Path::new(python).is_file().then(|| python.into())?
    } else {
        let directories = std::env::var_os("PATH")?;
        let mut paths = std::env::split_paths(&directories).map(|directory| directory.join(python));
        paths.find(|path| path.is_file())?
    };
    let mut needed = programs_of_script(&path);
    if needed.is_empty() {
        needed.extend(path.canonicalize());
        needed.push(path);
    }
    let mut roots: Vec<PathBuf> = Vec::new();
    for program in needed {
        let root = installation(&program);
        // Those of the system are visible.
        let is_visible = |root: &Path| root.parent().is_none() || root.starts_with("/usr");
        if let Some(root) = root.filter(|root| !is_visible(root))
            && !roots.iter().any(|other| root.starts_with(other))
        {
            roots.push(root);
        }
    }
    let flags: Vec<_> = roots
        .iter()
        .map(|root| format!("--read {}", root.display()))
        .collect();
    (!flags.is_empty()).then(|| flags.join(" "))
}

/// Returns the files and directories of this machine that a script (a shim of pyenv or the like) names.
fn programs_of_script(path: &Path) -> Vec<PathBuf> {
    let mut text = Vec::new();
    let Ok(file) = std::fs::File::open(path) else {
        return Vec::new();
    };
    let is_read = file.take(MAX_SCRIPT_BYTES).read_to_end(&mut text).is_ok();
    if !is_read || !text.starts_with(b"#!") {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&text);
    let words = text.split(|c: char| c.is_whitespace() || "\"'`=:;!()".contains(c));
    let paths = words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from);
    // `/bin`, where it is a link, too.
    let system = ["/bin", "/dev", "/etc", "/sbin", "/usr"];
    paths
        .filter(|path| !system.iter().any(|it| path.starts_with(it)) && path.exists())
        .take(MAX_SCRIPT_PATHS)
        .collect()
}

/// Returns the directory with all that a program needs.
fn installation(program: &Path) -> Option<PathBuf> {
    // pyenv's programs are scripts that need all of its directory.
    let mut ancestors = program.ancestors();
    let pyenv = ancestors.find(|it| it.file_name().is_some_and(|name| name == ".pyenv"));
    if let Some(directory) = pyenv {
        return Some(directory.to_owned());
    }
    if program.is_dir() {
        return Some(program.to_owned());
    }
    let directory = program.parent()?;
    let is_part = ["bin", "libexec", "shims"]
        .iter()
        .any(|it| directory.ends_with(it));
    let root = if is_part {
        directory.parent()?
    } else {
        directory
    };
    Some(root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::hidden_python;

    /// Opening a pipe would wait for its writer.
    #[test]
    fn only_a_file_is_searched_for_programs() {
        assert_eq!(hidden_python("/dev/null"), None);
    }
}
