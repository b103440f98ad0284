//! Confinement of commands.

use cantle_core::policy::{Network, Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, ExitStatus, Isolation, Sandbox, SandboxErrorKind, SandboxExt as _,
    SandboxPath,
};

use crate::support::{TestEngine, context_with, open, run, stdout};

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_no_privileges() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend()).await;
    let status = stdout(&*sandbox, "id -u; id -g; grep -E '^(Cap(Eff|Prm|Inh|Amb|Bnd)|NoNewPrivs|Groups|Seccomp):' /proc/self/status").await;
    let lines: Vec<_> = status
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let nothing = "0000000000000000";
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(lines.contains(&format!("{name}: {nothing}")), "{lines:?}");
    }
    assert_eq!(lines.first().map(|uid| &**uid), Some("1000"));
    assert!(lines.contains(&"NoNewPrivs: 1".to_owned()), "{lines:?}");
    assert!(lines.contains(&"Seccomp: 2".to_owned()), "{lines:?}");
    assert_eq!(
        stdout(&*sandbox, "pwd; touch own; stat -c %u:%a . own").await,
        "/workspace\n1000:755\n1000:644"
    );
    let signalled = run(&*sandbox, "kill -9 1; kill -STOP 1; echo x > /proc/1/mem").await;
    assert!(!signalled.exit.status.success());
    assert_eq!(stdout(&*sandbox, "echo alive").await, "alive");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn system_call_filter_applies_besides_that_of_the_engine() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let mut policy = Policy::workspace();
    policy.network = Some(Network::Off);
    let sandbox = engine.backend().open(context_with(policy)).await.unwrap();
    let mechanisms = &sandbox.info().mechanisms;
    assert!(
        mechanisms.contains(&"system call filter".to_owned()),
        "{mechanisms:?}"
    );
    // Engines allow sockets to the virtual machine's host (`AF_VSOCK`), which needs no network.
    let sockets = "import socket\n\
        for family in 1, 2, 10, 40:\n\
        \x20   try:\n\
        \x20       print(family, socket.socket(family, socket.SOCK_STREAM) and True)\n\
        \x20   except OSError as error:\n\
        \x20       print(family, error.errno)";
    assert_eq!(
        stdout(&*sandbox, &format!("python3 -c '{sockets}'")).await,
        "1 True\n2 True\n10 True\n40 1"
    );
    // Kernels before 5.9 do not count filters.
    let filters = stdout(
        &*sandbox,
        "grep ^Seccomp_filters: /proc/self/status || true",
    )
    .await;
    if let Some((_, count)) = filters.split_once(':') {
        assert_eq!(count.trim(), "2");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn supervisor_replaces_the_image_entry_point() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend()).await;
    let container = engine.container(&*sandbox);
    let entry = engine.docker([
        "inspect",
        "--format",
        "{{json .Path}} {{json .HostConfig.LogConfig.Type}} {{.HostConfig.Privileged}}",
        &container,
    ]);
    assert_eq!(entry, "\"/.cantle/supervisor\" \"none\" false");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_root_is_not_writable() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let sandbox = open(&engine.backend().with_read_only_root()).await;
    for directory in ["/", "/bin", "/.cantle", "/etc"] {
        let written = run(&*sandbox, &format!("echo x > {directory}/new")).await;
        assert!(!written.exit.status.success(), "{directory} was written");
    }
    assert_eq!(
        stdout(
            &*sandbox,
            "echo x > new; echo y > /tmp/new; cat new /tmp/new"
        )
        .await,
        "x\ny"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn default_limits_apply_unless_switched_off() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let configured = async |policy: Policy| {
        let sandbox = engine.backend().open(context_with(policy)).await.unwrap();
        let format = "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}";
        let container = engine.container(&*sandbox);
        let limits = engine.docker(["inspect", "--format", format, &container]);
        let mut defaults = sandbox.info().enforcement.clone();
        defaults.retain(|it| it.is_default);
        let defaults = defaults.iter().map(|it| (it.field, it.by));
        (limits, defaults.collect::<Vec<_>>())
    };
    let memory = engine.docker(["info", "--format", "{{.MemTotal}}"]);
    let most = memory.parse::<u64>().unwrap() / 4 * 3;
    let (limits, defaults) = configured(Policy::unconfined()).await;
    assert_eq!(limits, format!("{most} 4097"));
    let both = [PolicyField::Memory, PolicyField::Processes];
    assert_eq!(defaults, both.map(|field| (field, EnforcedBy::Kernel)));

    let mut policy = Policy::unconfined();
    policy.limits.set("memory=none").unwrap();
    policy.limits.set("processes=20").unwrap();
    assert_eq!(configured(policy).await, ("0 21".to_owned(), Vec::new()));
}

/// Root of a container has no capabilities, so that apt can't switch to its own user for downloads.
#[tokio::test(flavor = "multi_thread")]
async fn packages_are_installed_under_the_defaults() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend().with_user(0, 0);
    for policy in [Policy::workspace(), Policy::unconfined()] {
        let sandbox = backend.open(context_with(policy)).await.unwrap();
        let line = r#"
export PATH="$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive
mkdir -p tool/DEBIAN tool/usr/local/bin repository
printf 'Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: prints\n' > tool/DEBIAN/control
printf '#!/bin/sh\ntouch /var/lib/tool\n' > tool/DEBIAN/postinst
printf '#!/bin/sh\necho installed\n' > tool/usr/local/bin/tool
chmod 755 tool/DEBIAN/postinst tool/usr/local/bin/tool
dpkg-deb --build tool repository/tool.deb
{
    dpkg-deb --field repository/tool.deb
    printf 'Filename: ./tool.deb\nSize: %s\nSHA256: %s\n' \
        "$(stat -c %s repository/tool.deb)" "$(sha256sum < repository/tool.deb | cut -d' ' -f1)"
} > repository/Packages
echo "deb [trusted=yes] file:$PWD/repository ./" > /etc/apt/sources.list
echo 'APT::Sandbox::User "root";' > /etc/apt/apt.conf.d/user
apt-get update -q && apt-get install -qy tool && test -e /var/lib/tool && tool"#;
        let output = run(&*sandbox, line).await;
        assert!(
            output.stdout.text().ends_with("\ninstalled\n"),
            "{output:?}"
        );
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_enforces_limits() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let mut policy = Policy::workspace();
    policy.limits.memory_bytes = Some(96 << 20);
    policy.limits.processes = Some(40);
    policy.limits.disk_bytes = Some(16 << 20);
    let sandbox = engine.backend().open(context_with(policy)).await.unwrap();
    let by = |field| {
        sandbox
            .info()
            .enforcement
            .iter()
            .find(|it| it.field == field)
            .unwrap()
            .by
    };
    for field in [
        PolicyField::Memory,
        PolicyField::Processes,
        PolicyField::Disk,
        PolicyField::Network,
    ] {
        assert_eq!(by(field), EnforcedBy::Kernel, "{field}");
    }
    assert_eq!(by(PolicyField::ReadRoots), EnforcedBy::Backend);
    assert_eq!(sandbox.info().isolation, Isolation::Container);
    let limit = 96 << 20;
    let reached = ExitStatus::LimitReached {
        field: PolicyField::Memory,
        limit,
    };
    let hungry = "python3 -c 'b = bytearray(b\"x\") * (300 << 20)'";
    assert_eq!(
        run(&*sandbox, &format!("exec {hungry}")).await.exit.status,
        reached
    );
    let noted = run(&*sandbox, &format!("{hungry}; exit 3")).await.exit;
    assert_eq!(
        (noted.status, noted.notes.len()),
        (ExitStatus::Code(3), 1),
        "{noted:?}"
    );
    assert_eq!(
        run(&*sandbox, "exit 3").await.exit.notes,
        Vec::<String>::new()
    );
    let full = run(&*sandbox, "head -c 30000000 /dev/zero > big").await;
    assert!(!full.exit.status.success());
    // Not in a shell, which retries `fork`.
    let many = "import os, signal\n\
        children = []\n\
        try:\n\
        \x20   while len(children) < 100:\n\
        \x20       children.append(os.fork() or signal.pause())\n\
        except BlockingIOError:\n\
        \x20   print(len(children))\n\
        for child in children:\n\
        \x20   os.kill(child, signal.SIGKILL)";
    let many = stdout(&*sandbox, &format!("exec python3 -c '{many}'")).await;
    let many: u64 = many.parse().expect("fork did not fail");
    assert!((1..40).contains(&many), "{many} processes ran");
    assert_eq!(stdout(&*sandbox, "ls /sys/class/net").await, "lo");
    sandbox.close().await.unwrap();
}

/// Sends a request of the proxy and prints the first line of the answer.
const ASK: &str = "ask() { exec 3<>/dev/tcp/127.0.0.1/${HTTP_PROXY##*:} && \
    printf '%s HTTP/1.1\\r\\n\\r\\n' \"$1\" >&3 && head -n 1 <&3; };";

#[tokio::test(flavor = "multi_thread")]
async fn allowed_hosts_are_reached_through_the_proxy_only() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let policy = Policy::network(["allowed.example.com".parse().unwrap()]);
    // The option does not apply.
    let backend = engine.backend().with_network("host");
    let cx = context_with(policy.clone()).durable();
    let sandbox = backend.open(cx.clone()).await.unwrap();
    let check = async |sandbox: &dyn Sandbox| {
        let mut enforcement = sandbox.info().enforcement.iter();
        let network = enforcement.find(|it| it.field == PolicyField::Network);
        assert_eq!(network.unwrap().by, EnforcedBy::Kernel);
        for target in [
            "GET http://other.example.com/",
            "CONNECT 127.0.0.1:80",
            "CONNECT allowed.example.com:22",
        ] {
            let output = run(sandbox, &format!("{ASK} ask '{target}'")).await;
            let (answer, notes) = (output.stdout.text(), &output.exit.notes);
            assert!(answer.contains(" 403 "), "{target}: {output:?}");
            assert!(
                notes.len() == 1 && notes[0].starts_with("network: "),
                "{notes:?}"
            );
        }
        // Nothing listens on the network of this host, and names have no addresses.
        let line = "ls /sys/class/net; exec 2>/dev/null; (exec 3<>/dev/tcp/192.0.2.1/80) || echo unreachable; \
            getent hosts allowed.example.com || echo unknown";
        assert_eq!(stdout(sandbox, line).await, "lo\nunreachable\nunknown");
        // The port stays the supervisor's.
        let bind = "python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 3128))'";
        assert!(!run(sandbox, bind).await.exit.status.success());
    };
    check(&*sandbox).await;
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let again = backend.reattach(&handle, cx).await.unwrap();
    check(&*again).await;
    again.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_hosts_are_refused_without_supervisor() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend().without_supervisor();
    let mut policy = Policy::network(["index.example.org".parse().unwrap()]);
    let refused = backend.open(context_with(policy.clone())).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unenforceable);
    assert_eq!(error.unenforced(), [PolicyField::Network]);
    policy.strictness = Strictness::BestEffort;
    let sandbox = backend.open(context_with(policy)).await.unwrap();
    let mut enforcement = sandbox.info().enforcement.iter();
    let network = enforcement.find(|it| it.field == PolicyField::Network);
    assert_eq!(network.unwrap().by, EnforcedBy::NotEnforced);
    assert_eq!(stdout(&*sandbox, "echo ${HTTP_PROXY-none}").await, "none");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_not_in_labels_or_configuration() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("variables");
    std::fs::write(&file, "API_KEY='the secret of the file'").unwrap();
    let backend = engine
        .backend()
        .pass_environment(["API_KEY"])
        .with_environment_file(&file);
    let mut policy = Policy::unconfined();
    policy
        .environment
        .insert("OTHER".to_owned(), "the secret of the policy".into());
    let sandbox = backend.open(context_with(policy)).await.unwrap();
    let output = stdout(&*sandbox, "echo $API_KEY, $OTHER").await;
    assert_eq!(output, "the secret of the file, the secret of the policy");
    let inspected = engine.docker(["inspect", &engine.container(&*sandbox)]);
    assert!(!inspected.contains("the secret"), "{inspected}");
    assert!(!format!("{backend:?} {sandbox:?}").contains("the secret"));
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn image_without_bash_runs_commands() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    for backend in [engine.busybox(), engine.busybox().with_read_only_root()] {
        let sandbox = open(&backend).await;
        assert_eq!(stdout(&*sandbox, "echo $((6 * 7))").await, "42");
        let path = SandboxPath::new("a/b").unwrap();
        sandbox.write_bytes(&path, "text".into()).await.unwrap();
        assert_eq!(
            stdout(&*sandbox, "cat a/b; stat -c %u a/b").await,
            "text1000"
        );
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn network_option_applies_unless_the_policy_disables_it() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let backend = engine.backend().with_network("host");
    let sandbox = backend
        .open(context_with(Policy::unconfined()))
        .await
        .unwrap();
    let mode = engine.docker([
        "inspect",
        "--format",
        "{{.HostConfig.NetworkMode}}",
        &engine.container(&*sandbox),
    ]);
    assert_eq!(mode, "host");
    sandbox.close().await.unwrap();
    let mut policy = Policy::unconfined();
    policy.network = Some(Network::Off);
    let sandbox = backend.open(context_with(policy)).await.unwrap();
    let mode = engine.docker([
        "inspect",
        "--format",
        "{{.HostConfig.NetworkMode}}",
        &engine.container(&*sandbox),
    ]);
    assert_eq!(mode, "none");
    sandbox.close().await.unwrap();
}
