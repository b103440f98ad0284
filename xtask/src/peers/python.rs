//! A Python that is new enough, and environments made with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Error, Result};

use super::{Installer, Ready};
use crate::shell;

/// A Python with what it takes to make environments.
pub struct Python {
    path: PathBuf,
    version: (u32, u32),
}

impl Python {
    /// The first that is at least `minimum`: of those on the `PATH`, then of those pyenv holds.
    pub fn find(minimum: (u32, u32)) -> Result<Python> {
        let on_path = ["python3", "python3.12", "python3.13", "python3.14"].map(PathBuf::from);
        on_path
            .into_iter()
            .chain(of_pyenv().into_iter().flatten())
            .filter_map(Python::ask)
            .find(|python| python.version >= minimum)
            .with_context(|| {
                format!(
                    "no Python of at least {}.{} with venv was found",
                    minimum.0, minimum.1
                )
            })
    }

    /// Asks, instead of trusting a name: pyenv's shims are on the path also for versions that are
    /// not active, and Debian's Python has no `ensurepip` without `python3-venv`.
    fn ask(program: PathBuf) -> Option<Python> {
        let question = "import sys, ensurepip, venv; print(*sys.version_info[:2], sys.executable)";
        let answer = shell::probe(&program, &["-c", question])?;
        let mut words = answer.trim().splitn(3, ' ');
        let version = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Python {
            path: words.next()?.into(),
            version,
        })
    }

    /// An environment of this Python with the given packages; all versions are those of `pins`, the
    /// text of a pip constraints file.
    pub fn environment(
        &self,
        installer: &Installer,
        peer: &str,
        packages: &[&str],
        pins: &str,
    ) -> Result<Environment> {
        let Python {
            path,
            version: (major, minor),
        } = self;
        let recipe = format!(
            "{} {major}.{minor}\n{}\n{pins}",
            path.display(),
            packages.join(" ")
        );
        let (uv, program) = (install_uv(installer)?, uv(installer)?);
        let directory = installer.cached(peer, &recipe, |directory| {
            let constraints = directory.join("constraints.txt");
            fs::write(&constraints, pins)?;
            let venv = directory.join("venv");
            installer.step(peer, Command::new(path).args(["-m", "venv"]).arg(&venv))?;
            let mut install = Command::new(&program);
            install
                .args(["pip", "install", "--quiet", "--python"])
                .arg(venv.join("bin/python"))
                .arg("--cache-dir")
                .arg(uv.join("cache"))
                .arg("--constraint")
                .arg(&constraints)
                .args(packages);
            if let Some(index) = pip_setting("index-url") {
                install.args(["--default-index", &index]);
            }
            if let Some(certificates) = pip_setting("cert") {
                install.env("SSL_CERT_FILE", certificates);
            }
            installer.step(peer, &install)
        })?;
        Ok(Environment { directory })
    }
}

/// Prepares an environment whose Python a variable names.
pub fn peer(
    installer: &Installer,
    (name, minimum): (&str, (u32, u32)),
    packages: &[&str],
    pins: &str,
    variable: &'static str,
) -> Result<Ready> {
    let environment = Python::find(minimum)?.environment(installer, name, packages, pins)?;
    let python = environment.program("python").display().to_string();
    Ok(Ready::with([(variable, python)]))
}

/// Returns the program uv.
pub fn uv(installer: &Installer) -> Result<PathBuf> {
    Ok(install_uv(installer)?.join("venv/bin/uv"))
}

/// Installs uv, once, and returns its directory. It takes a tenth of pip's CPU time for the environments of the peers.
fn install_uv(installer: &Installer) -> Result<PathBuf> {
    const UV: &str = "uv==0.13.9";
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || {
        installer.cached("uv", UV, |directory| {
            let venv = directory.join("venv");
            let python = Python::find((3, 11))?.path;
            installer.step("uv", Command::new(python).args(["-m", "venv"]).arg(&venv))?;
            let mut pip = Command::new(venv.join("bin/python"));
            pip.args(["-m", "pip", "install", "--quiet"])
                .args(["--disable-pip-version-check", UV]);
            installer.step("uv", &pip)
        })
    };
    let installed = INSTALLED.get_or_init(|| install().map_err(|error| format!("{error:#}")));
    installed.clone().map_err(Error::msg)
}

/// Returns a setting of pip's, which uv does not read.
fn pip_setting(name: &str) -> Option<String> {
    let variable = format!("PIP_{}", name.to_uppercase().replace('-', "_"));
    let set = std::env::var(variable).ok().or_else(|| {
        let key = format!("global.{name}");
        shell::probe("python3", &["-m", "pip", "config", "get", &key])
    });
    Some(set?.trim().to_owned())
}

/// The directory of a peer that lives in a Python environment.
pub struct Environment {
    directory: PathBuf,
}

impl Environment {
    /// A program of the environment.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join("venv/bin").join(name)
    }

    /// A file beside the environment.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// One of the scripts and settings in `xtask/peers`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(name)
}

/// Those that pyenv holds, active or not.
fn of_pyenv() -> Option<Vec<PathBuf>> {
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(std::env::home_dir()?.join(".pyenv")))?;
    let versions = fs::read_dir(root.join("versions")).ok()?;
    let mut pythons: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin/python"))
        .collect();
    pythons.sort();
    Some(pythons)
}
