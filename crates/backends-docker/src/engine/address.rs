//! Where the engine is: the same places, in the same order, as Docker's own command line looks.

use std::path::{Path, PathBuf};

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// The sockets that engines listen on unless told otherwise, beside the user's own.
const SYSTEM_SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/podman/podman.sock"];

/// How an engine is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A socket of this machine.
    Socket(PathBuf),
    /// A named pipe of Windows.
    Pipe(String),
    /// Another machine, `HOST:PORT`.
    Tcp { host: String, tls: Option<Tls> },
}

/// The files that prove who we are and who the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Tls {
    fn below(directory: &Path) -> Self {
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

/// What of the process's surroundings says where the engine is.
pub(crate) struct Surroundings<'s> {
    pub(crate) variable: &'s dyn Fn(&str) -> Option<String>,
    pub(crate) exists: &'s dyn Fn(&Path) -> bool,
}

impl Surroundings<'_> {
    /// A variable that is set to something.
    fn set(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// The directory of Docker's own configuration.
    pub(crate) fn configuration(&self) -> Option<PathBuf> {
        let own = self.set("DOCKER_CONFIG").map(PathBuf::from);
        own.or_else(|| Some(Path::new(&self.home()?).join(".docker")))
    }

    fn home(&self) -> Option<String> {
        self.set("HOME").or_else(|| self.set("USERPROFILE"))
    }

    /// Where the engine is: what was chosen, else `DOCKER_HOST`, else the context in use, else the
    /// first socket that is there.
    pub(crate) fn address(&self, chosen: Option<&str>) -> Result<Address, SandboxError> {
        if let Some(host) = chosen
            .map(str::to_owned)
            .or_else(|| self.set("DOCKER_HOST"))
        {
            return self.parse(&host, self.tls_of_environment());
        }
        match self.context()? {
            Some(name) => self.context_address(&name),
            None => Ok(self.default_address()),
        }
    }

    fn tls_of_environment(&self) -> Option<Tls> {
        self.set("DOCKER_TLS_VERIFY")?;
        let directory = self.set("DOCKER_CERT_PATH").map(PathBuf::from);
        Some(Tls::below(&directory.or_else(|| self.configuration())?))
    }

    fn parse(&self, host: &str, tls: Option<Tls>) -> Result<Address, SandboxError> {
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
            "https" if !rest.is_empty() => {
                let directory = || self.set("DOCKER_CERT_PATH").map(PathBuf::from);
                let directory = directory().or_else(|| self.configuration());
                let tls = tls.or_else(|| directory.map(|directory| Tls::below(&directory)));
                Ok(Address::Tcp {
                    host: with_port(rest, true),
                    tls,
                })
            }
            "ssh" => Err(unusable(
                format!("the engine at `{host}` is reached over SSH, which is not spoken here"),
                "Forward its socket (`ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST`) and set \
                 DOCKER_HOST=unix:///tmp/docker.sock.",
            )),
            _ => Err(unusable(
                format!("`{host}` is no address of an engine"),
                "Set DOCKER_HOST to `unix:///PATH` or `tcp://HOST:PORT`.",
            )),
        }
    }

    /// The name of the context in use, unless it is the default one.
    fn context(&self) -> Result<Option<String>, SandboxError> {
        let chosen = match self.set("DOCKER_CONTEXT") {
            Some(name) => Some(name),
            None => self.configured()?.current_context,
        };
        Ok(chosen.filter(|name| !name.is_empty() && name != "default"))
    }

    fn context_address(&self, name: &str) -> Result<Address, SandboxError> {
        let advice =
            "`docker context ls` lists those there are; `docker context use default` goes back.";
        let unknown = || unusable(format!("there is no Docker context `{name}`"), advice);
        let contexts = self.configuration().ok_or_else(unknown)?.join("contexts");
        let id = hex(&Sha256::digest(name));
        let text = std::fs::read_to_string(contexts.join("meta").join(&id).join("meta.json"));
        let text = text.map_err(|error| unknown().with_source(error))?;
        let context: Context = serde_json::from_str(&text).map_err(|error| {
            unusable(format!("the Docker context `{name}` can't be read"), advice)
                .with_source(error)
        })?;
        let endpoint = context.endpoints.docker;
        if endpoint.skip_tls_verify {
            return Err(unusable(
                format!("the Docker context `{name}` doesn't check the engine's certificate"),
                "Give the context the certificate of its authority (`--docker ca=…`).",
            ));
        }
        let tls = Tls::below(&contexts.join("tls").join(&id).join("docker"));
        let tls = (self.exists)(&tls.ca).then_some(tls);
        self.parse(&endpoint.host, tls)
    }

    fn default_address(&self) -> Address {
        if cfg!(windows) {
            return Address::Pipe("//./pipe/docker_engine".to_owned());
        }
        let home = self.home().map(PathBuf::from);
        let runtime = self.set("XDG_RUNTIME_DIR").map(PathBuf::from);
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

    fn configured(&self) -> Result<Configuration, SandboxError> {
        match self.configuration() {
            Some(directory) => Configuration::read(&directory.join("config.json")),
            None => Ok(Configuration::default()),
        }
    }

    /// What to show a registry, from Docker's configuration: `user:password` in base64.
    pub(crate) fn registry_login(&self, registry: &str) -> Result<Option<String>, SandboxError> {
        let auths = self.configured()?.auths;
        Ok(auths.into_iter().find_map(|(name, login)| {
            let host = name.trim_start_matches("https://");
            let host = host.split('/').next().unwrap_or_default();
            (host == registry).then_some(login.auth).flatten()
        }))
    }
}

/// What of Docker's `config.json` is of use here.
#[derive(Debug, Default, Deserialize)]
struct Configuration {
    #[serde(default, rename = "currentContext")]
    current_context: Option<String>,
    #[serde(default)]
    auths: std::collections::BTreeMap<String, Login>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    auth: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[hidden]")
    }
}

impl Configuration {
    fn read(path: &Path) -> Result<Self, SandboxError> {
        let Ok(text) = std::fs::read_to_string(path) else {
            return Ok(Self::default());
        };
        serde_json::from_str(&text).map_err(|error| {
            unusable(
                format!("`{}` can't be read: {error}", path.display()),
                "Mend the file, or set DOCKER_HOST.",
            )
        })
    }
}

#[derive(Deserialize)]
struct Context {
    #[serde(rename = "Endpoints")]
    endpoints: Endpoints,
}

#[derive(Deserialize)]
struct Endpoints {
    docker: Endpoint,
}

#[derive(Deserialize)]
struct Endpoint {
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
    SandboxError::new(SandboxErrorKind::Unavailable, message).with_advice(advice)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` doesn't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
