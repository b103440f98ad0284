//! Effects of a policy: the view of commands, and the enforcement report.

use std::os::unix::fs::MetadataExt as _;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField, Preset};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, Enforcement, ExitStatus, Isolation, SandboxContext, SandboxErrorKind,
    SandboxExt as _, SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use rustix::process::{Resource, getrlimit};

use crate::support::{open_under, path, read, run, stdout, write};

#[tokio::test]
async fn commands_can_neither_slow_init_down_nor_limit_it() {
    let sandbox = open_under(Policy::workspace()).await;
    let line = "state() { cut -d ' ' -f 19 /proc/1/stat; grep 'open files' /proc/1/limits; }; before=$(state); \
                renice -n 5 -u $(id -u); prlimit --pid 1 --nofile=9:9; [ \"$(state)\" = \"$before\" ]";
    let ran = run(&*sandbox, line).await;
    assert_eq!(ran.exit.status, ExitStatus::Code(0), "{ran:?}");
}

/// A limit of 0 would be no limit for a program of the host that takes core dumps.
#[tokio::test]
async fn crash_leaves_no_core_file_and_starts_no_program_of_the_host() {
    let sandbox = open_under(Policy::workspace()).await;
    let own = getrlimit(Resource::Core).maximum.unwrap_or(u64::MAX).min(1);
    let line = "python3 -c 'import resource; print(*resource.getrlimit(resource.RLIMIT_CORE))'; \
                sh -c 'kill -SEGV $$' 2>/dev/null; ls";
    assert_eq!(stdout(&*sandbox, line).await, format!("{own} {own}\n"));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn one_sandbox_cant_lock_all_memory_that_its_user_may_lock() {
    let Some(shared) = getrlimit(Resource::Memlock).maximum else {
        return cantle_testkit::lane::skip("locked memory is unlimited");
    };
    let sandbox = open_under(Policy::workspace()).await;
    let line =
        "python3 -c 'import resource; print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])'";
    let share = stdout(&*sandbox, line).await;
    assert_eq!(share, format!("{}\n", shared / 8));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn disk_limit_of_zero_is_enforced() {
    let mut policy = Policy::workspace();
    policy.limits.disk_bytes = Some(0);
    let sandbox = open_under(policy).await;
    let written = run(&*sandbox, "head -c 1M /dev/zero > file").await;
    assert_ne!(written.exit.status, ExitStatus::Code(0), "{written:?}");
}

#[tokio::test]
async fn largest_limit_of_inodes_is_enforced_by_the_kernel() {
    let mut policy = Policy::workspace();
    policy.limits.inodes = Some(u64::MAX);
    let sandbox = open_under(policy).await;
    let mut report = sandbox.info().enforcement.iter();
    let inodes = report.find(|it| it.field == PolicyField::Inodes);
    assert_eq!(inodes.map(|it| it.by), Some(EnforcedBy::Kernel));
}

#[tokio::test]
async fn commands_and_file_api_share_paths() {
    let sandbox = open_under(Policy::workspace()).await;
    let info = sandbox.info();
    assert_eq!(info.isolation, Isolation::Kernel);
    assert_eq!(info.working_directory.to_string(), "/workspace");
    let by_kernel = |field| Enforcement::new(field, EnforcedBy::Kernel);
    let expected = [
        PolicyField::ReadRoots,
        PolicyField::WriteRoots,
        PolicyField::Network,
        PolicyField::Processes,
    ];
    assert!(info.demanded().eq(&expected.map(by_kernel)), "{info:?}");

    write(&*sandbox, "in/a.txt", "from outside\n").await;
    let seen = stdout(
        &*sandbox,
        "pwd; echo $HOME; cat in/a.txt /workspace/in/a.txt",
    )
    .await;
    assert_eq!(seen, "/workspace\n/workspace\nfrom outside\nfrom outside\n");
    // Files written by the backend belong to the commands' user.
    let line = "echo more >> in/a.txt && rm -r in && echo inside > f && mktemp -d && \
                echo made > /tmp/made && ln -s /workspace/f link && ln -s /tmp/made out";
    let made = run(&*sandbox, line).await;
    assert_eq!(made.exit.status, ExitStatus::Code(0), "{made:?}");
    assert!(made.stdout.text().starts_with("/tmp/"));
    for (name, content) in [
        ("f", "inside\n"),
        ("/workspace/f", "inside\n"),
        ("link", "inside\n"),
        ("/tmp/made", "made\n"),
        ("out", "made\n"),
    ] {
        assert_eq!(read(&*sandbox, name).await, content, "{name}");
    }
    for outside in ["/usr/bin/env", "/etc/passwd", "/"] {
        assert!(sandbox.stat(&path(outside)).await.is_err(), "{outside}");
    }
    // A walk reaches what commands see, too.
    for (directory, name) in [
        ("/workspace", "f"),
        ("/tmp", "made"),
        ("/etc", "passwd"),
        ("/dev/shm", "m"),
    ] {
        run(&*sandbox, "touch /dev/shm/m").await;
        let walk = sandbox.walk(&path(directory), 100_000).await.unwrap();
        assert!(walk.entries.contains_key(&path(name)), "{directory}");
    }
    let below = SpawnRequest::shell("pwd").in_directory(path("/tmp"));
    assert_eq!(sandbox.run(below).await.unwrap().stdout.text(), "/tmp\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn each_sandbox_has_a_boot_id_of_its_own() {
    let path = "/proc/sys/kernel/random/boot_id";
    let mut ids = vec![std::fs::read_to_string(path).unwrap()];
    for _ in 0..2 {
        let sandbox = open_under(Policy::workspace()).await;
        let id = stdout(&*sandbox, &format!("cat {path}")).await;
        assert_eq!(stdout(&*sandbox, &format!("cat {path}")).await, id);
        assert_eq!(id.len(), ids[0].len(), "{id}");
        assert!(!ids.contains(&id), "{id}");
        let refused = run(&*sandbox, &format!("echo x > {path}")).await;
        assert_ne!(refused.exit.status, ExitStatus::Code(0), "{refused:?}");
        ids.push(id);
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn every_preset_opens_strictly_and_runs_commands() {
    for preset in Preset::ALL {
        let sandbox = open_under(preset.policy()).await;
        assert_eq!(stdout(&*sandbox, "echo $((6 * 7))").await, "42\n");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn read_only_working_directory_accepts_uploads() {
    let sandbox = open_under(Policy::read_only()).await;
    write(&*sandbox, "f", "given").await;
    let line = "cat f; echo x > g; echo x > f; rm f; touch /tmp/scratch && echo scratch";
    let output = run(&*sandbox, line).await;
    assert_eq!(output.stdout.text(), "givenscratch\n");
    assert_eq!(read(&*sandbox, "f").await, "given");
    assert_eq!(sandbox.list(&path(".")).await.unwrap().len(), 1);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn roots_are_mounted_at_their_host_paths() {
    let read_only = tempfile::tempdir().unwrap();
    let writable = tempfile::tempdir().unwrap();
    std::fs::write(read_only.path().join("f"), "read\n").unwrap();
    // File permissions must allow the commands' user to read them, too.
    for directory in [&read_only, &writable] {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).unwrap();
    }
    let mut policy = Policy::workspace();
    if let Some(roots) = &mut policy.read_roots {
        roots.paths.push(read_only.path().to_owned());
    }
    policy.write_roots = Some(vec![writable.path().to_owned()]);
    for backend in [
        LocalBackend::new(),
        LocalBackend::new().without(Mechanism::Namespaces),
    ] {
        let cx = SandboxContext::new(RunId::new(), policy.clone());
        let sandbox = backend.open(cx).await.unwrap();
        let (r, w) = (read_only.path().display(), writable.path().display());
        let line = format!("cat {r}/f; echo x > {r}/g; echo written > {w}/g; cat {w}/g");
        assert_eq!(stdout(&*sandbox, &line).await, "read\nwritten\n");
        assert!(!read_only.path().join("g").exists());
        // Also if it is in a directory of the sandbox, as commands see it.
        let error = sandbox.stat(&path(&format!("{r}/f"))).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::OutsideSandbox, "{error}");
        sandbox.close().await.unwrap();
        std::fs::remove_file(writable.path().join("g")).unwrap();
    }
    policy.write_roots = Some(vec!["/nonexistent/root".into()]);
    let cx = SandboxContext::new(RunId::new(), policy);
    let error = LocalBackend::new().open(cx).await.unwrap_err();
    assert!(error.to_string().contains("/nonexistent/root"), "{error}");
}

/// The view has a `/tmp` of its own, without the link.
#[tokio::test]
async fn write_root_that_is_named_by_a_link_in_tmp_is_writable() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = place.path().canonicalize().unwrap();
    let links = tempfile::tempdir_in("/tmp").unwrap();
    let link = links.path().join("link");
    std::os::unix::fs::symlink(&root, &link).unwrap();
    let mut policy = Policy::workspace();
    policy.write_roots = Some(vec![link]);
    let sandbox = open_under(policy).await;
    let line = format!("echo written > {0}/f; cat {0}/f", root.display());
    assert_eq!(stdout(&*sandbox, &line).await, "written\n");
    sandbox.close().await.unwrap();
}

/// A directory of this process's user, with files that commands may not change or read.
#[tokio::test]
async fn parts_of_a_write_root_are_read_only_or_hidden() {
    let home = tempfile::tempdir().unwrap();
    let project = home.path().join("project");
    for directory in [".git", "sub", ".ssh"] {
        std::fs::create_dir_all(project.join(directory)).unwrap();
    }
    for file in [".git/config", "sub/.env", ".ssh/id", "plain"] {
        std::fs::write(project.join(file), "original\n").unwrap();
    }
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(project.join(".git/config"), owner_only).unwrap();
    let mut policy = Policy::workspace();
    if let Some(roots) = &mut policy.read_roots {
        roots.paths.push(project.join(".git"));
    }
    policy.write_roots = Some(vec![project.clone()]);
    // One is below another.
    let hidden = ["sub/.env", ".ssh", ".ssh/id"];
    policy.hidden_paths = hidden.map(|path| project.join(path)).into();
    let without = LocalBackend::new().without(Mechanism::Namespaces);
    let cx = SandboxContext::new(RunId::new(), policy.clone());
    let error = without.open(cx).await.unwrap_err();
    let fields = [PolicyField::WriteRoots, PolicyField::HiddenPaths];
    assert_eq!(error.unenforced(), fields, "{error}");

    let sandbox = open_under(policy).await;
    let line = format!(
        "cd {} || exit; cat .git/config plain sub/.env; ls -A .ssh; echo new > made; echo more >> plain; \
         mkdir fresh && mv plain fresh/ && stat -c %U made; \
         for act in 'echo x > .git/config' 'rm -r .git' 'mv .git away' 'touch .git/hooks' 'echo x > sub/.env' \
         'rm sub/.env' 'mv sub/.env away' 'touch .ssh/new' 'rmdir .ssh' 'ln .git/config away' 'chmod 777 .git/config' \
         'chmod u+s made' 'chmod g+s fresh' 'install -m 4755 made program' \
         \"python3 -c 'import os; os.open(\\\"p\\\", os.O_CREAT, 0o6755)'\"; \
         do eval \"$act\" 2>/dev/null && echo \"succeeded: $act\"; done; mv sub moved; cat moved/.env; true",
        project.display()
    );
    assert_eq!(stdout(&*sandbox, &line).await, "original\noriginal\nuser\n");
    sandbox.close().await.unwrap();
    let read = |path: &str| std::fs::read_to_string(project.join(path)).unwrap();
    assert_eq!(read(".git/config"), "original\n");
    assert_eq!(read("moved/.env"), "original\n");
    assert_eq!(read(".ssh/id"), "original\n");
    assert_eq!(read("fresh/plain"), "original\nmore\n");
    // New files belong to the owner of the directory, whoever runs the commands.
    let owner = |path: &str| {
        let metadata = std::fs::metadata(project.join(path)).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7000)
    };
    let (uid, gid, _) = owner("");
    assert_eq!(owner("made"), (uid, gid, 0));
    assert_eq!(owner("fresh"), (uid, gid, 0));
}

#[tokio::test]
async fn unrestricted_reads_keep_other_fields_enforced() {
    let outside = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(outside.path(), open).unwrap();
    std::fs::write(outside.path().join("f"), "read\n").unwrap();
    let mut no_network = Policy::unconfined();
    no_network.network = Policy::workspace().network;
    let mut no_writing = no_network.clone();
    no_writing.write_roots = Some(Vec::new());
    let mut the_whole = Policy::workspace();
    the_whole.read_roots = Some([std::path::PathBuf::from("/")].into());
    for (policy, writes) in [(no_network, true), (no_writing, false), (the_whole, false)] {
        let sandbox = open_under(policy).await;
        let line = format!(
            "cd {}; cat f; echo > g && echo wrote; echo > /dev/tcp/127.0.0.1/9 || echo offline",
            outside.path().display()
        );
        let expected = if writes {
            "read\nwrote\noffline\n"
        } else {
            "read\noffline\n"
        };
        assert_eq!(stdout(&*sandbox, &line).await, expected);
        assert_eq!(outside.path().join("g").exists(), writes);
        let _ = std::fs::remove_file(outside.path().join("g"));
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn disk_limit_bounds_the_working_directory() {
    let mut policy = Policy::workspace();
    policy.limits.set("disk=4M").unwrap();
    policy.limits.set("inodes=50").unwrap();
    let sandbox = open_under(policy).await;
    write(&*sandbox, "a/b", "from outside").await;
    let line = "cat a/b; head -c 5000000 /dev/zero > big; ls -l big | awk '{print $5 < 4500000}'; \
                rm big; for i in $(seq 60); do touch f$i; done; ls | wc -l";
    let output = run(&*sandbox, line).await;
    assert_eq!(output.stdout.text(), "from outside1\n49\n", "{output:?}");
    assert!(output.stderr.text().contains("No space left on device"));
    assert_eq!(read(&*sandbox, "a/b").await, "from outside");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn exceeded_polled_limit_stops_the_command() {
    let backend = LocalBackend::new()
        .without(Mechanism::Namespaces)
        .without(Mechanism::ControlGroups);
    for (limit, line, field) in [
        (
            "disk=1M",
            "head -c 5000000 /dev/zero > big; sleep 60",
            PolicyField::Disk,
        ),
        (
            "inodes=20",
            "for i in $(seq 60); do touch f$i; done; sleep 60",
            PolicyField::Inodes,
        ),
        (
            "processes=10",
            "for i in $(seq 20); do sleep 60 & done; wait",
            PolicyField::Processes,
        ),
        ("output=1000", "yes", PolicyField::Output),
    ] {
        let mut policy = Policy::workspace();
        policy.limits.set(limit).unwrap();
        let cx = SandboxContext::new(RunId::new(), policy);
        let sandbox = backend.open(cx).await.unwrap();
        let exit = run(&*sandbox, line).await.exit;
        let ExitStatus::LimitReached { field: reached, .. } = exit.status else {
            panic!("{limit}: {exit:?}");
        };
        assert_eq!(reached, field);
        sandbox.close().await.unwrap();
    }
}

#[tokio::test]
async fn command_without_subprocesses_runs_alone() {
    let mut policy = Policy::workspace();
    policy.subprocesses = Some(false);
    let sandbox = open_under(policy).await;
    assert_eq!(stdout(&*sandbox, "echo $((1 + 1))").await, "2\n");
    for line in ["ls", "exec ls", "(echo sub)", "echo | read"] {
        let output = run(&*sandbox, line).await;
        assert_ne!(
            output.exit.status,
            ExitStatus::Code(0),
            "{line}: {output:?}"
        );
        assert_eq!(output.stdout.text(), "", "{line}");
    }
    let argv = SpawnRequest::argv([
        "python3",
        "-c",
        "import threading as t\nprint(t.active_count())",
    ]);
    assert_eq!(sandbox.run(argv).await.unwrap().stdout.text(), "1\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn only_allowed_hosts_are_reached_and_refusals_are_noted() {
    let sandbox = open_under(Policy::network(["allowed.example.com".parse().unwrap()])).await;
    let ask = |target: &str| {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/${{HTTP_PROXY##*:}} && printf '{target} HTTP/1.1\\r\\n\\r\\n' >&3 \
             && head -n 1 <&3"
        )
    };
    for target in [
        "GET http://other.example.com/",
        "CONNECT other.example.com:443",
        "CONNECT 127.0.0.1:80",
        "CONNECT allowed.example.com:22",
    ] {
        let output = run(&*sandbox, &ask(target)).await;
        assert!(
            output.stdout.text().contains(" 403 "),
            "{target}: {output:?}"
        );
        let notes = &output.exit.notes;
        assert!(
            notes.len() == 1 && notes[0].starts_with("network: "),
            "{notes:?}"
        );
    }
    // Those of a running command can be taken, and are not repeated when it ends.
    let line = format!("{}; read", ask("CONNECT other.example.com:443"));
    let request = SpawnRequest::shell(line).with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    let mut printed = process.take_output().unwrap();
    printed.next().await.unwrap().unwrap();
    let notes = process.take_notes();
    assert!(
        notes.len() == 1 && notes[0].starts_with("network: "),
        "{notes:?}"
    );
    assert_eq!(process.take_notes(), [""; 0]);
    drop(process.take_stdin());
    assert_eq!(process.wait().await.unwrap().notes, [""; 0]);
    // No other connection works, and servers inside the sandbox are private.
    let line = "(exec 3<>/dev/tcp/192.0.2.1/80) 2>&1 | grep -q unreachable && echo unreachable; getent hosts allowed.example.com || echo unknown";
    assert_eq!(stdout(&*sandbox, line).await, "unreachable\nunknown\n");
    sandbox.close().await.unwrap();
}
