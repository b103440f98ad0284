//! The properties of a container that matter for a policy: its mounts, capabilities and options.

use bollard::models::{ContainerInspectResponse, HostConfig, MountPoint};

use crate::engine::Engine;

/// The network mode of a container without a network, and the name of its only network.
pub(crate) const NO_NETWORK: &str = "none";

/// Docker's default capabilities. None of them reaches the host.
const DEFAULT_CAPABILITIES: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The properties of a container that decide how a policy is enforced in it.
#[derive(Debug, Default)]
pub(crate) struct ContainerFacts {
    pub(crate) host: HostConfig,
    /// Whether it has no network.
    pub(crate) is_offline: bool,
    /// Whether it mounts something writable besides the tmpfs mounts of its configuration.
    pub(crate) has_writable_mounts: bool,
    /// The files outside the container and its engine that it mounts, each a phrase.
    pub(crate) outside_mounts: Vec<String>,
    /// Settings that weaken the engine's default confinement, each a phrase.
    pub(crate) weaknesses: Vec<String>,
}

impl ContainerFacts {
    /// The facts of a container that will be created with this configuration, which has no writable mount.
    pub(crate) fn planned(host: HostConfig) -> Self {
        Self {
            is_offline: host.network_mode.as_deref() == Some(NO_NETWORK),
            weaknesses: weaknesses(&host),
            host,
            ..Self::default()
        }
    }

    /// The facts of an existing container.
    pub(crate) async fn inspected(engine: &Engine, found: &ContainerInspectResponse) -> Self {
        let mut facts = Self::planned(found.host_config.clone().unwrap_or_default());
        // A network can be connected to a running container.
        let networks = found.network_settings.as_ref();
        let mut networks = networks
            .and_then(|it| it.networks.as_ref())
            .into_iter()
            .flatten();
        facts.is_offline &= networks.all(|(name, _)| name == NO_NETWORK);
        for mount in found.mounts.iter().flatten() {
            // A tmpfs covers the volume that the image declares at its path, which is listed all the same.
            let target = mount.destination.as_deref().unwrap_or_default();
            let tmpfs = facts.host.tmpfs.as_ref();
            if tmpfs.is_some_and(|tmpfs| tmpfs.contains_key(target)) {
                continue;
            }
            facts.has_writable_mounts |= mount.rw != Some(false);
            facts
                .outside_mounts
                .extend(outside_mount(engine, mount).await);
        }
        facts
    }

    /// Whether nothing outside the container is visible in it.
    pub(crate) fn hides_host(&self) -> bool {
        self.outside_mounts.is_empty() && self.weaknesses.is_empty()
    }

    /// Everything that makes it weaker than one with the engine's defaults.
    pub(crate) fn exceptions(&self) -> impl Iterator<Item = &String> {
        self.outside_mounts.iter().chain(&self.weaknesses)
    }
}

/// Describes a mount of files from outside; `None` for files of the engine.
async fn outside_mount(engine: &Engine, mount: &MountPoint) -> Option<String> {
    let target = mount.destination.as_deref().unwrap_or_default();
    match mount.typ.as_deref() {
        Some("tmpfs" | "image") => None,
        Some("volume") => {
            let name = mount.name.as_deref().unwrap_or_default();
            let volume = engine.api().inspect_volume(name).await;
            let reason = match volume {
                Ok(volume) if volume.driver != "local" => {
                    format!("of the driver `{}`", volume.driver)
                }
                // The local driver mounts what its options say, e.g. a directory of the host.
                Ok(volume) => match volume.options.get("device") {
                    Some(device) => format!("of `{device}`"),
                    None if volume.options.is_empty() => return None,
                    None => "with options of its driver".to_owned(),
                },
                Err(_) => "that can't be inspected".to_owned(),
            };
            Some(format!("the volume `{name}` {reason} at `{target}`"))
        }
        _ => {
            let source = mount.source.as_deref().unwrap_or_default();
            Some(format!("`{source}` of the host at `{target}`"))
        }
    }
}

/// Lists the settings that weaken the engine's default confinement.
fn weaknesses(host: &HostConfig) -> Vec<String> {
    let mut found = Vec::new();
    if host.privileged == Some(true) {
        found.push("privileged".to_owned());
    }
    let capabilities = host.cap_add.iter().flatten().map(|name| {
        let name = name.to_ascii_uppercase();
        name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)
    });
    let added = capabilities.filter(|name| !DEFAULT_CAPABILITIES.contains(&&**name));
    found.extend(added.map(|name| format!("capability {name}")));
    let devices = host.devices.iter().flatten();
    found.extend(devices.map(|device| {
        let path = device.path_on_host.as_deref().unwrap_or_default();
        format!("device `{path}`")
    }));
    let requests = host.device_requests.iter().flatten();
    found.extend(requests.map(|request| {
        let driver = request.driver.as_deref().unwrap_or_default();
        format!("devices of the driver `{driver}`")
    }));
    let rules = host.device_cgroup_rules.iter().flatten();
    found.extend(rules.map(|rule| format!("device rule `{rule}`")));
    let namespaces = [
        ("process", &host.pid_mode),
        ("IPC", &host.ipc_mode),
        ("host name", &host.uts_mode),
        ("user", &host.userns_mode),
    ];
    for (namespace, mode) in namespaces {
        let mode = mode.as_deref().unwrap_or_default();
        if mode == "host" || mode.starts_with("container:") {
            found.push(format!("{namespace} namespace of `{mode}`"));
        }
    }
    let options = host.security_opt.iter().flatten();
    let weakening = options.filter(|option| !is_default_security(option));
    found.extend(weakening.map(|option| format!("security option `{option}`")));
    for (paths, name) in [
        (&host.masked_paths, "masked"),
        (&host.readonly_paths, "read-only"),
    ] {
        if paths.as_ref().is_some_and(Vec::is_empty) {
            found.push(format!("no {name} paths in /proc"));
        }
    }
    found
}

/// Whether a security option only strengthens the confinement, or states the default.
fn is_default_security(option: &str) -> bool {
    let (name, value) = option.split_once(['=', ':']).unwrap_or((option, ""));
    match name {
        "no-new-privileges" => true,
        "apparmor" => value == "docker-default",
        "seccomp" => value == "builtin",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::{DeviceMapping, DeviceRequest};

    use super::*;

    #[test]
    fn every_setting_that_weakens_a_container_is_listed() {
        let all = |texts: &[&str]| Some(texts.iter().map(|&text| text.to_owned()).collect());
        let host = HostConfig {
            privileged: Some(true),
            cap_add: all(&["CHOWN", "CAP_KILL", "cap_sys_admin", "ALL"]),
            devices: Some(vec![DeviceMapping {
                path_on_host: Some("/dev/kvm".to_owned()),
                ..DeviceMapping::default()
            }]),
            device_requests: Some(vec![DeviceRequest {
                driver: Some("nvidia".to_owned()),
                ..DeviceRequest::default()
            }]),
            device_cgroup_rules: all(&["b 8:* rwm"]),
            pid_mode: Some("host".to_owned()),
            ipc_mode: Some("container:other".to_owned()),
            uts_mode: Some(String::new()),
            security_opt: all(&[
                "no-new-privileges",
                "no-new-privileges:true",
                "apparmor=docker-default",
                "apparmor:unconfined",
                "seccomp=unconfined",
                "label=disable",
            ]),
            masked_paths: Some(Vec::new()),
            readonly_paths: None,
            ..HostConfig::default()
        };
        assert_eq!(
            weaknesses(&host),
            [
                "privileged",
                "capability SYS_ADMIN",
                "capability ALL",
                "device `/dev/kvm`",
                "devices of the driver `nvidia`",
                "device rule `b 8:* rwm`",
                "process namespace of `host`",
                "IPC namespace of `container:other`",
                "security option `apparmor:unconfined`",
                "security option `seccomp=unconfined`",
                "security option `label=disable`",
                "no masked paths in /proc",
            ]
        );
        assert_eq!(weaknesses(&HostConfig::default()), Vec::<String>::new());
    }
}
