use std::collections::HashMap;

use cantle_core::sandbox::SandboxErrorKind;

use super::*;

/// Locates the engine with these variables, with these files besides the real ones.
fn locate(variables: &[(&str, &str)], files: &[&str]) -> Result<Address, SandboxError> {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    let variable = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path) || path.exists();
    let locator = EngineLocator {
        variable: &variable,
        exists: &exists,
    };
    locator.address(None)
}

fn socket(path: &str) -> Address {
    Address::Socket(path.into())
}

fn tcp(host: &str) -> Address {
    let host = host.to_owned();
    Address::Tcp { host, tls: None }
}

#[test]
fn docker_host_accepts_the_forms_of_dockers_command_line() {
    let cases = [
        ("unix:///run/my.sock", socket("/run/my.sock")),
        ("/run/my.sock", socket("/run/my.sock")),
        (
            "tcp://engine.example.com:2375",
            tcp("engine.example.com:2375"),
        ),
        ("tcp://engine.example.com/", tcp("engine.example.com:2375")),
        ("tcp://[::1]:99", tcp("[::1]:99")),
    ];
    for (host, expected) in cases {
        assert_eq!(locate(&[("DOCKER_HOST", host)], &[]).unwrap(), expected);
    }
}

#[test]
fn tls_verify_and_https_enable_tls() {
    let variables = [
        ("DOCKER_HOST", "tcp://engine.example.com"),
        ("DOCKER_TLS_VERIFY", "1"),
        ("DOCKER_CERT_PATH", "/certs"),
    ];
    let expected = Address::Tcp {
        host: "engine.example.com:2376".to_owned(),
        tls: Some(TlsFiles {
            ca: "/certs/ca.pem".into(),
            certificate: "/certs/cert.pem".into(),
            key: "/certs/key.pem".into(),
        }),
    };
    assert_eq!(locate(&variables, &[]).unwrap(), expected);
    let home = [
        ("DOCKER_HOST", "https://engine.example.com"),
        ("HOME", "/home/me"),
    ];
    let Address::Tcp { tls, .. } = locate(&home, &[]).unwrap() else {
        panic!("not a TCP address");
    };
    assert_eq!(tls.unwrap().ca, Path::new("/home/me/.docker/ca.pem"));
}

#[test]
fn unsupported_address_is_refused_with_advice() {
    for host in ["ssh://me@engine", "fd://", "", "tcp://", "engine"] {
        let variables = [("DOCKER_HOST", host), ("HOME", "/nowhere")];
        match locate(&variables, &[]) {
            // An empty variable counts as unset.
            Ok(address) => assert_eq!((host, address), ("", socket("/var/run/docker.sock"))),
            Err(error) => {
                assert_eq!(error.kind(), SandboxErrorKind::Unavailable, "{host}");
                assert!(error.advice().unwrap().contains("DOCKER_HOST"), "{host}");
            }
        }
    }
}

#[test]
fn first_existing_default_socket_is_used() {
    let user = [
        ("HOME", "/nowhere/me"),
        ("XDG_RUNTIME_DIR", "/nowhere/1000"),
    ];
    let rootless = "/nowhere/1000/docker.sock";
    let podman = "/nowhere/1000/podman/podman.sock";
    let is_installed = Path::new("/var/run/docker.sock").exists();
    for files in [&[podman][..], &[rootless, podman]] {
        let expected = if is_installed {
            "/var/run/docker.sock"
        } else {
            files[0]
        };
        assert_eq!(locate(&user, files).unwrap(), socket(expected));
    }
}

#[test]
fn context_determines_the_address() {
    let home = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = home.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    // As `printf far | sha256sum` says.
    let id = format!("{:x}", Sha256::digest("far"));
    let meta = format!("contexts/meta/{id}/meta.json");
    let endpoint = r#"{"Name":"far","Metadata":{},"Endpoints":{"docker":{"Host":"tcp://far:2376","SkipTLSVerify":false}}}"#;
    write(&meta, endpoint);
    write(&format!("contexts/tls/{id}/docker/ca.pem"), "");
    let directory = home.path().to_str().unwrap();
    let by_name = [("DOCKER_CONFIG", directory), ("DOCKER_CONTEXT", "far")];
    let tls = TlsFiles::in_directory(&home.path().join(format!("contexts/tls/{id}/docker")));
    let far = Address::Tcp {
        host: "far:2376".to_owned(),
        tls: Some(tls),
    };
    assert_eq!(locate(&by_name, &[]).unwrap(), far);

    write("config.json", r#"{"currentContext":"far","auths":{}}"#);
    let by_file = [("DOCKER_CONFIG", directory)];
    assert_eq!(locate(&by_file, &[]).unwrap(), far);
    let over = [("DOCKER_CONFIG", directory), ("DOCKER_HOST", "unix:///s")];
    assert_eq!(locate(&over, &[]).unwrap(), socket("/s"));

    let missing = [("DOCKER_CONFIG", directory), ("DOCKER_CONTEXT", "near")];
    let error = locate(&missing, &[]).unwrap_err();
    assert_eq!(error.to_string(), "there is no Docker context `near`");

    write(&meta, &endpoint.replace("false", "true"));
    let error = locate(&by_name, &[]).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[test]
fn registry_login_is_found_by_host() {
    let home = tempfile::tempdir().unwrap();
    let text = r#"{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"},"r.example.com:5000":{"auth":"Yzpk"}}}"#;
    std::fs::write(home.path().join("config.json"), text).unwrap();
    let directory = home.path().to_str().unwrap().to_owned();
    let variable = |name: &str| (name == "DOCKER_CONFIG").then(|| directory.clone());
    let locator = EngineLocator {
        variable: &variable,
        exists: &Path::exists,
    };
    let login = |registry: &str| locator.registry_login(registry).unwrap();
    assert_eq!(login("r.example.com:5000").as_deref(), Some("Yzpk"));
    assert_eq!(login("index.docker.io").as_deref(), Some("YTpi"));
    assert_eq!(login("elsewhere.example.com"), None);
}
