//! The package index that pip and uv are configured with on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cantle_core::policy::{HostPattern, InvalidPolicy};
use serde_json::{Value, json};
use url::Url;

use super::error::PackageError;

/// The origin of packages.
///
/// The `Debug` output has no passwords of URLs.
#[derive(Clone, PartialEq, Eq)]
pub struct PackageIndex {
    /// The indexes, the preferred one first; none: packages come from `find_links` alone.
    urls: Vec<Url>,
    /// Whether the first one is that of pip without settings, which only pip knows.
    has_default: bool,
    /// Directories and pages with files of packages.
    find_links: Vec<String>,
    /// The certificates of authorities that are trusted in place of the system's.
    pub(super) certificate: Option<PathBuf>,
}

impl std::fmt::Debug for PackageIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PackageIndex").field(&self.places()).finish()
    }
}

impl PackageIndex {
    /// Returns the index of pip's and uv's own settings: their variables first, then their files. Settings of uv are
    /// preferred.
    pub fn of_this_machine() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self::of_settings(variable, |path| fs::read_to_string(path).ok())
    }

    /// Returns a directory of package files, without an index.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self {
            urls: Vec::new(),
            has_default: false,
            find_links: vec![path.into().display().to_string()],
            certificate: None,
        }
    }

    fn of_settings(
        variable: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> Option<String>,
    ) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.unwrap_or_else(|| home.join(".config"));
        // The strongest first.
        let mut files = vec![
            config.join("pip/pip.conf"),
            home.join(".pip/pip.conf"),
            "/etc/xdg/pip/pip.conf".into(),
            "/etc/pip.conf".into(),
        ];
        match variable("PIP_CONFIG_FILE").map(PathBuf::from) {
            Some(none) if none == Path::new("/dev/null") => files.clear(),
            Some(file) => files.insert(0, file),
            None => {}
        }
        let files: Vec<_> = files.iter().filter_map(|it| read(it)).collect();
        let files: Vec<_> = files.iter().map(|text| pip_settings(text)).collect();
        let pip = |name: &str| {
            let own = variable(&format!("PIP_{}", name.to_uppercase().replace('-', "_")));
            own.or_else(|| files.iter().find_map(|it| it.get(name).cloned()))
        };
        let uv_files = [
            variable("UV_CONFIG_FILE").map(PathBuf::from),
            Some(config.join("uv/uv.toml")),
            Some("/etc/uv/uv.toml".into()),
        ];
        let uv_files = uv_files.iter().flatten().filter_map(|path| read(path));
        let uv: Vec<_> = uv_files
            .filter_map(|it| it.parse::<toml::Table>().ok())
            .collect();
        let uv_file = |name: &str| {
            let pip = uv.iter().filter_map(|it| it.get("pip")?.get(name));
            let found = uv.iter().filter_map(|it| it.get(name)).chain(pip).next();
            found.map(words_of)
        };
        let uv_indexes = |is_default: bool| {
            let lists = uv
                .iter()
                .filter_map(|it| it.get("index")?.as_array())
                .flatten();
            let default =
                |it: &&toml::Value| it.get("default").and_then(toml::Value::as_bool) == Some(true);
            let named = lists.filter(move |it| default(it) == is_default);
            let urls: Vec<_> = named
                .filter_map(|it| it.get("url"))
                .flat_map(words_of)
                .collect();
            (!urls.is_empty()).then_some(urls)
        };
        let list = |text: Option<String>| {
            text.map(|it| it.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let setting = |variables: &[&str], indexes: Option<Vec<String>>, name: &str| {
            let of_variable = variables.iter().find_map(|name| list(variable(name)));
            let of_uv = of_variable.or(indexes).or_else(|| uv_file(name));
            of_uv.or_else(|| list(pip(name)))
        };
        let defaults = ["UV_DEFAULT_INDEX", "UV_INDEX_URL"];
        let first = setting(&defaults, uv_indexes(true), "index-url");
        let extras = ["UV_INDEX", "UV_EXTRA_INDEX_URL"];
        let more = setting(&extras, uv_indexes(false), "extra-index-url");
        let find_links = setting(&["UV_FIND_LINKS"], None, "find-links");
        let certificate = pip("cert")
            .or_else(|| variable("SSL_CERT_FILE"))
            .or_else(|| variable("REQUESTS_CA_BUNDLE"));
        let is_on =
            |it: String| matches!(&*it.to_lowercase(), "1" | "true" | "yes" | "on" | "y" | "t");
        let is_offline = pip("no-index").is_some_and(is_on);
        let has_default = first.is_none() && !is_offline;
        let urls = first.iter().chain(&more).flatten();
        // `UV_INDEX` may name an index, as in `internal=https://…`.
        let urls = urls.map(|url| match url.split_once('=') {
            Some((name, url)) if !name.contains("://") => url,
            _ => url.as_str(),
        });
        Self {
            urls: match is_offline {
                true => Vec::new(),
                false => urls.filter_map(|url| Url::parse(url).ok()).collect(),
            },
            has_default,
            find_links: find_links.unwrap_or_default(),
            certificate: certificate
                .map(PathBuf::from)
                .filter(|path| path.is_absolute()),
        }
    }

    /// Returns the index as the sandbox's installer gets it.
    pub(super) fn sources(&self) -> Value {
        let indexes: Vec<_> = self.urls.iter().map(Url::as_str).collect();
        json!({"indexes": indexes, "find_links": self.find_links})
    }

    /// Returns the places without passwords, to tell requests apart and for display.
    pub(super) fn places(&self) -> Vec<String> {
        let without_secret = |url: &Url| {
            let mut url = url.clone();
            // Fails for URLs that have none.
            let _ = url.set_password(None);
            let _ = url.set_username("");
            url.to_string()
        };
        let links = self.find_links.iter().map(|place| match Url::parse(place) {
            Ok(url) => without_secret(&url),
            Err(_) => place.clone(),
        });
        let default = self.has_default.then(|| "default".to_owned());
        let urls = self.urls.iter().map(without_secret);
        default.into_iter().chain(urls).chain(links).collect()
    }

    /// Sets the index that pip has without settings, if it is needed.
    pub(super) fn set_default(&mut self, index: Option<&str>) -> Result<(), PackageError> {
        if !std::mem::take(&mut self.has_default) {
            return Ok(());
        }
        let url = index.and_then(|index| Url::parse(index).ok());
        let missing = || {
            let message = "no package index is known: Python has no pip here, so set PIP_INDEX_URL or UV_DEFAULT_INDEX";
            PackageError::failed(message)
        };
        self.urls.insert(0, url.ok_or_else(missing)?);
        Ok(())
    }

    /// Returns whether anything but this machine's files is needed.
    pub(super) fn is_remote(&self) -> bool {
        !self.urls.is_empty()
    }

    /// Returns the hosts of the indexes and of pages with files.
    pub(super) fn hosts(&self) -> Result<Vec<HostPattern>, PackageError> {
        let pages = self.find_links.iter().filter_map(|it| Url::parse(it).ok());
        let urls = self.urls.iter().cloned().chain(pages);
        let urls = urls.filter(|url| url.scheme() != "file");
        let invalid = |error| PackageError::invalid(format!("the package index: {error}"));
        urls.map(|url| host_of(&url).map_err(invalid)).collect()
    }

    /// Returns the directories of this machine that have packages, and the file of certificates.
    pub(super) fn read_roots(&self) -> Vec<PathBuf> {
        let path_of = |url: &Url| {
            let is_file = url.scheme() == "file";
            is_file.then(|| url.to_file_path().ok()).flatten()
        };
        let links = self.find_links.iter().map(|place| match Url::parse(place) {
            Ok(url) => path_of(&url).unwrap_or_default(),
            Err(_) => PathBuf::from(place),
        });
        let indexes = self.urls.iter().filter_map(path_of);
        let paths = links.chain(indexes).chain(self.certificate.clone());
        paths.filter(|it| it.is_absolute() && it.exists()).collect()
    }
}

/// Returns the pattern for the host of a URL.
pub(super) fn host_of(url: &Url) -> Result<HostPattern, InvalidPolicy> {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}").parse(),
        None => host.parse(),
    }
}

fn words_of(value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::String(text) => vec![text.clone()],
        toml::Value::Array(items) => items.iter().flat_map(words_of).collect(),
        _ => Vec::new(),
    }
}

/// Reads a pip.conf: those settings that count for `pip install`.
fn pip_settings(text: &str) -> BTreeMap<String, String> {
    let mut settings: BTreeMap<(bool, String), String> = BTreeMap::new();
    let mut section = String::new();
    let mut latest = None;
    for line in text.lines() {
        let is_continued = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
            latest = None;
        } else if let Some(key) = latest.as_ref().filter(|_| is_continued) {
            if let Some(value) = settings.get_mut(key) {
                value.push(' ');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(['=', ':'])
            && (section == "global" || section == "install")
        {
            let name = name.trim().replace('_', "-");
            let key = (section == "install", name);
            settings.insert(key.clone(), value.trim().to_owned());
            latest = Some(key);
        }
    }
    // Those of the command come later, and replace the general ones.
    settings
        .into_iter()
        .map(|((_, name), value)| (name, value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(variables: &[(&str, &str)], files: &[(&str, &str)]) -> PackageIndex {
        let find = |pairs: &[(&str, &str)], name: &str| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        PackageIndex::of_settings(
            |name| find(variables, name),
            |path| find(files, path.to_str().unwrap()),
        )
    }

    #[test]
    fn the_index_comes_from_variables_then_files_of_uv_then_of_pip() {
        assert_eq!(index(&[], &[]).places(), ["default"]);
        let pip = "[global]\nindex-url = https://user:secret@a.example.org/simple\ntimeout = 5\n\
                   [install]\nextra-index-url =\n  https://b.example.org\n  https://c.example.org\n\
                   [download]\nindex-url = https://no.example.org\n";
        let files = [("/etc/pip.conf", pip)];
        let of_pip = index(&[], &files);
        let places = [
            "https://a.example.org/simple",
            "https://b.example.org/",
            "https://c.example.org/",
        ];
        assert_eq!(of_pip.places(), places);
        assert_eq!(
            of_pip.sources()["indexes"][0],
            "https://user:secret@a.example.org/simple"
        );
        assert!(!format!("{of_pip:?}").contains("secret"));
        let home = ("HOME", "/home/x");
        let uv = "[[index]]\nurl = \"https://u.example.org/simple\"\ndefault = true\n";
        let files = [files[0], ("/home/x/.config/uv/uv.toml", uv)];
        let of_uv = index(&[home], &files);
        assert_eq!(of_uv.places()[0], "https://u.example.org/simple");
        let of_variable = index(
            &[home, ("UV_DEFAULT_INDEX", "https://v.example.org:8443/")],
            &files,
        );
        assert_eq!(of_variable.places()[0], "https://v.example.org:8443/");
        assert_eq!(
            of_variable.hosts().unwrap()[0].to_string(),
            "v.example.org:8443"
        );
        let named = index(
            &[(
                "UV_INDEX",
                "in=https://i.example.org/?of=https://o.example.org https://j.example.org/?of=https://o.example.org",
            )],
            &[],
        );
        let places = [
            "default",
            "https://i.example.org/?of=https://o.example.org",
            "https://j.example.org/?of=https://o.example.org",
        ];
        assert_eq!(named.places(), places);
        let offline = index(&[("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", "/w /v")], &[]);
        assert_eq!(
            (offline.places(), offline.is_remote()),
            (vec!["/w".to_owned(), "/v".to_owned()], false)
        );
        let of_files = index(
            &[
                ("PIP_INDEX_URL", "file:///usr"),
                ("REQUESTS_CA_BUNDLE", "/etc"),
            ],
            &[],
        );
        assert_eq!(
            of_files.read_roots(),
            [Path::new("/usr"), Path::new("/etc")]
        );
        assert!(of_files.hosts().unwrap().is_empty());
        let at_address = index(&[("PIP_INDEX_URL", "http://127.0.0.1:3141/")], &[]);
        assert_eq!(
            at_address.hosts().unwrap_err().kind(),
            super::super::PackageErrorKind::Invalid
        );
    }
}
