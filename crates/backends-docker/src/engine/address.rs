//! Discovery of the engine's address, in the same places and order as Docker's command line.

use std::path::{Path, PathBuf};

use cantle_core::sandbox::SandboxError;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// The system-wide default sockets of Docker and Podman.
const SYSTEM_SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/podman/podman.sock"];

/// The address of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A Unix domain socket.
    Socket(PathBuf),
    /// A Windows named pipe.
    Pipe(String),
    /// `HOST:PORT`, with or without TLS.
    Tcp { host: String, tls: Option<TlsFiles> },
}

/// PEM files that authenticate the engine and this client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsFiles {
    fn in_directory(directory: &Path) -> Self {
        Self {
            ca: directory.join("ca.pem"),
            certificate: directory.join("cert.pem"),
            key: directory.join("key.pem"),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix://{}", path.display()),
            Self::Pipe(name) => write!(f, "npipe://{name}"),
            Self::Tcp { host, .. } => write!(f, "tcp://{host}"),
        }
    }
}

/// Finds the engine from environment variables and files, which tests replace.
pub(crate) struct EngineLocator<'s> {
    pub(crate) variable: &'s dyn Fn(&str) -> Option<String>,
    pub(crate) exists: &'s dyn Fn(&Path) -> bool,
}

impl EngineLocator<'_> {
    /// Returns a variable's value, unless it is unset or empty.
    fn non_empty(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// Returns Docker's configuration directory.
    fn config_directory(&self) -> Option<PathBuf> {
        let own = self.non_empty("DOCKER_CONFIG").map(PathBuf::from);
        own.or_else(|| Some(Path::new(&self.home()?).join(".docker")))
    }

    fn home(&self) -> Option<String> {
        self.non_empty("HOME")
            .or_else(|| self.non_empty("USERPROFILE"))
    }

    /// Returns the configured host, else `DOCKER_HOST`, else the host of the current context, else the first
    /// default socket that exists.
    pub(crate) fn address(&self, host: Option<&str>) -> Result<Address, SandboxError> {
        let host = host.map(str::to_owned);
        if let Some(host) = host.or_else(|| self.non_empty("DOCKER_HOST")) {
            return self.parse(&host, self.tls_from_environment());
        }
        match self.current_context()? {
            Some(name) => self.context_address(&name),
            None => Ok(self.default_address()),
        }
    }

    fn tls_from_environment(&self) -> Option<TlsFiles> {
        self.non_empty("DOCKER_TLS_VERIFY")?;
        self.tls_files()
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        let directory = self.non_empty("DOCKER_CERT_PATH").map(PathBuf::from);
        let directory = directory.or_else(|| self.config_directory())?;
        Some(TlsFiles::in_directory(&directory))
    }

    fn parse(&self, host: &str, tls: Option<TlsFiles>) -> Result<Address, SandboxError> {
        let (scheme, rest) = host.split_once("://").unwrap_or(("", host));
        let rest = rest.trim_end_matches('/');
        match scheme {
            "unix" if !rest.is_empty() => Ok(Address::Socket(rest.into())),
            "" if rest.starts_with('/') => Ok(Address::Socket(rest.into())),
            "npipe" => Ok(Address::Pipe(rest.to_owned())),
            "tcp" | "http" if !rest.is_empty() => Ok(Address::Tcp {
                host: with_port(rest, tls.is_some()),
                tls,
            }),
            "https" if !rest.is_empty() => Ok(Address::Tcp {
                host: with_port(rest, true),
                tls: tls.or_else(|| self.tls_files()),
            }),
            "ssh" => Err(unusable(
                format!("the engine at `{host}` is reached over SSH, which is not supported"),
                "Forward its socket (`ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST`) and set \
                 DOCKER_HOST=unix:///tmp/docker.sock.",
            )),
            _ => Err(unusable(
                format!("`{host}` is not a valid engine address"),
                "Set DOCKER_HOST to `unix:///PATH` or `tcp://HOST:PORT`.",
            )),
        }
    }

    /// Returns the name of the current Docker context, unless it is the default one.
    fn current_context(&self) -> Result<Option<String>, SandboxError> {
        let name = match self.non_empty("DOCKER_CONTEXT") {
            Some(name) => Some(name),
            None => self.config_file()?.current_context,
        };
        Ok(name.filter(|name| !name.is_empty() && name != "default"))
    }

    fn context_address(&self, name: &str) -> Result<Address, SandboxError> {
        let advice =
            "`docker context ls` lists the contexts; `docker context use default` switches back.";
        let unknown = || unusable(format!("there is no Docker context `{name}`"), advice);
        let contexts = self
            .config_directory()
            .ok_or_else(unknown)?
            .join("contexts");
        let id = format!("{:x}", Sha256::digest(name));
        let text = std::fs::read_to_string(contexts.join("meta").join(&id).join("meta.json"));
        let text = text.map_err(|error| unknown().with_source(error))?;
        let context: ContextFile = serde_json::from_str(&text).map_err(|error| {
            unusable(format!("the Docker context `{name}` can't be read"), advice)
                .with_source(error)
        })?;
        let endpoint = context.endpoints.docker;
        if endpoint.skip_tls_verify {
            return Err(unusable(
                format!("the Docker context `{name}` doesn't verify the engine's certificate"),
                "Give the context the engine's certificate authority (`--docker ca=…`).",
            ));
        }
        let tls = TlsFiles::in_directory(&contexts.join("tls").join(&id).join("docker"));
        let tls = (self.exists)(&tls.ca).then_some(tls);
        self.parse(&endpoint.host, tls)
    }

    fn default_address(&self) -> Address {
        if cfg!(windows) {
            return Address::Pipe("//./pipe/docker_engine".to_owned());
        }
        let home = self.home().map(PathBuf::from);
        let runtime = self.non_empty("XDG_RUNTIME_DIR").map(PathBuf::from);
        let own = [
            runtime.as_ref().map(|runtime| runtime.join("docker.sock")),
            home.map(|home| home.join(".docker/run/docker.sock")),
            runtime.map(|runtime| runtime.join("podman/podman.sock")),
        ];
        let [docker, podman] = SYSTEM_SOCKETS.map(PathBuf::from);
        let mut candidates = std::iter::once(docker.clone())
            .chain(own.into_iter().flatten())
            .chain([podman]);
        let found = candidates.find(|socket| (self.exists)(socket));
        Address::Socket(found.unwrap_or(docker))
    }

    fn config_file(&self) -> Result<ConfigFile, SandboxError> {
        match self.config_directory() {
            Some(directory) => ConfigFile::read(&directory.join("config.json")),
            None => Ok(ConfigFile::default()),
        }
    }

    /// Returns the credentials for a registry in `config.json`: `user:password` in base64.
    pub(crate) fn registry_login(&self, registry: &str) -> Result<Option<String>, SandboxError> {
        let auths = self.config_file()?.auths;
        Ok(auths.into_iter().find_map(|(name, login)| {
            let host = name.trim_start_matches("https://");
            let host = host.split('/').next().unwrap_or_default();
            (host == registry).then_some(login.auth).flatten()
        }))
    }
}

/// The fields of Docker's `config.json` that are used here.
#[derive(Debug, Default, Deserialize)]
struct ConfigFile {
    #[serde(rename = "currentContext")]
    current_context: Option<String>,
    #[serde(default)]
    auths: std::collections::BTreeMap<String, RegistryLogin>,
}

#[derive(Deserialize)]
struct RegistryLogin {
    auth: Option<String>,
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[hidden]")
    }
}

impl ConfigFile {
    fn read(path: &Path) -> Result<Self, SandboxError> {
        let Ok(text) = std::fs::read_to_string(path) else {
            return Ok(Self::default());
        };
        serde_json::from_str(&text).map_err(|error| {
            unusable(
                format!("`{}` can't be read: {error}", path.display()),
                "Correct the file, or set DOCKER_HOST.",
            )
        })
    }
}

#[derive(Deserialize)]
struct ContextFile {
    #[serde(rename = "Endpoints")]
    endpoints: ContextEndpoints,
}

#[derive(Deserialize)]
struct ContextEndpoints {
    docker: ContextEndpoint,
}

#[derive(Deserialize)]
struct ContextEndpoint {
    #[serde(rename = "Host")]
    host: String,
    #[serde(default, rename = "SkipTLSVerify")]
    skip_tls_verify: bool,
}

fn with_port(host: &str, tls: bool) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| {
        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    match (has_port, tls) {
        (true, _) => host.to_owned(),
        (false, true) => format!("{host}:2376"),
        (false, false) => format!("{host}:2375"),
    }
}

fn unusable(message: String, advice: &str) -> SandboxError {
    SandboxError::unavailable(message).with_advice(advice)
}

#[cfg(test)]
mod tests;
