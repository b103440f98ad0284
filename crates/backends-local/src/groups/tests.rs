use std::time::Duration;

use cantle_supervisor::Writer;
use cantle_supervisor::wire::{Setup, SetupReply};

use super::hierarchy::{Hierarchy, JOIN_TIME, MAX_DEPTH, reclaim_below};
use super::*;
use crate::supervisor::Supervisor;

fn limits(memory_bytes: Option<u64>, processes: Option<u64>) -> GroupLimits {
    GroupLimits {
        memory_bytes,
        processes,
    }
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

const OWN: &str =
    "9:name=systemd:/\n4:cpu,cpuacct:/elsewhere\n3:memory:/a/b\n2:pids:/../x\n0::/a\n";

#[test]
fn own_group_is_found_below_its_mount() {
    let mounted = |line| Hierarchy::mounted(line, OWN);
    let memory = Hierarchy {
        version: Version::One,
        controllers: names(&["memory"]),
        others: Vec::new(),
        parent: "/groups/memory/a/b".into(),
        mount: "/groups/memory".into(),
    };
    let line = "35 31 0:32 / /groups/memory rw,relatime shared:9 - cgroup cgroup rw,memory";
    assert_eq!(mounted(line), Some(memory.clone()));
    // Only a part is mounted, as in a container.
    let line = "35 31 0:32 /a /groups/memory rw,relatime - cgroup cgroup rw,memory";
    let parent = "/groups/memory/b".into();
    assert_eq!(mounted(line), Some(Hierarchy { parent, ..memory }));
    // Only here is a backslash escaped.
    let line = r"35 31 0:32 /a\134x2db /groups/memory rw,relatime - cgroup cgroup rw,memory";
    let found = Hierarchy::mounted(line, "3:memory:/a\\x2db/c\n").unwrap();
    assert_eq!(found.parent.to_str(), Some("/groups/memory/c"));
    for elsewhere in [
        "35 31 0:32 /c /groups/memory rw - cgroup cgroup rw,memory",
        "35 31 0:32 / /groups/pids rw - cgroup cgroup rw,pids",
        "35 31 0:32 / /groups/systemd rw - cgroup cgroup rw,xattr,name=systemd",
        "35 31 0:32 / /groups/blkio rw - cgroup cgroup rw,blkio",
        "35 31 0:32 / /proc rw - proc proc rw",
        "",
    ] {
        assert_eq!(mounted(elsewhere), None, "{elsewhere}");
    }
}

#[test]
fn version_two_parent_must_pass_controllers_on() {
    let mount = tempfile::tempdir().unwrap();
    let group = mount.path().join("a");
    fs::create_dir(&group).unwrap();
    fs::write(group.join("cgroup.controllers"), "cpuset cpu memory pids\n").unwrap();
    let line = format!(
        "38 31 0:35 / {} rw - cgroup2 cgroup2 rw",
        mount.path().display()
    );
    let found = || Hierarchy::mounted(&line, OWN).unwrap();
    assert_eq!(found().controllers, names(&[]));
    assert_eq!(found().others, names(&["cpu", "memory", "pids"]));
    fs::write(group.join("cgroup.subtree_control"), "memory pids\n").unwrap();
    assert_eq!(found().controllers, names(&["memory", "pids"]));
    assert_eq!(found().others, names(&["cpu"]));
    assert_eq!(found().parent, group);
}

/// Writes limits to files like those of a group.
fn written(version: Version, limits: GroupLimits, has_swap: bool) -> (io::Result<()>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let (memory, others) = match version {
        Version::One => (
            "memory.limit_in_bytes",
            &[
                "memory.kmem.tcp.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                "pids.max",
            ][..],
        ),
        Version::Two => ("memory.max", &["memory.swap.max", "pids.max"][..]),
    };
    for file in others.iter().copied().chain([memory]) {
        if has_swap || !file.contains("sw") {
            fs::write(directory.path().join(file), "").unwrap();
        }
    }
    let group = Group {
        version,
        directory: directory.path().to_owned(),
        limits,
        is_shared: false,
    };
    let done = group.write_limits(has_swap);
    let mut files: Vec<String> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let content = fs::read_to_string(entry.path()).unwrap();
            format!("{} {content}", entry.file_name().to_string_lossy())
        })
        .collect();
    files.sort();
    (done, files)
}

#[test]
fn limits_leave_room_for_the_supervisor() {
    let both = limits(Some(64 << 20), Some(10));
    let (done, files) = written(Version::One, both, true);
    done.unwrap();
    let expected = [
        "memory.kmem.tcp.limit_in_bytes 4194304",
        "memory.limit_in_bytes 69206016",
        "memory.memsw.limit_in_bytes 69206016",
        "pids.max 12",
    ];
    assert_eq!(files, expected);
    let (done, files) = written(Version::Two, both, true);
    done.unwrap();
    let expected = ["memory.max 69206016", "memory.swap.max 0", "pids.max 12"];
    assert_eq!(files, expected);
    let (done, files) = written(Version::Two, limits(None, Some(1)), false);
    done.unwrap();
    assert_eq!(files, ["memory.max ", "pids.max 3"]);
}

#[test]
fn memory_limit_without_swap_limit_is_an_error() {
    let group = Group {
        version: Version::Two,
        directory: "/nonexistent".into(),
        limits: limits(Some(1), None),
        is_shared: false,
    };
    assert!(group.write_limits(true).is_err());
    // Without swap, its limit is not needed.
    let memory = limits(Some(64 << 20), None);
    written(Version::One, memory, false).0.unwrap();
}

#[test]
fn processes_are_stopped_by_the_means_of_the_version() {
    let cleanup = |version, limits| {
        let directory = "/groups/x".into();
        let group = Group {
            version,
            directory,
            limits,
            is_shared: false,
        };
        group.cleanup().unwrap()
    };
    let both = limits(Some(1), Some(1));
    assert_eq!(&*cleanup(Version::Two, both).stop, c"/groups/x/cgroup.kill");
    assert_eq!(&*cleanup(Version::Two, both).stop_value, c"1");
    let pids = cleanup(Version::One, limits(None, Some(1)));
    assert_eq!(&*pids.stop, c"/groups/x/pids.max");
    assert_eq!(&*pids.stop_value, c"0");
    assert_eq!(&*cleanup(Version::One, limits(Some(1), None)).stop, c"");
}

#[test]
fn groups_are_created_only_for_otherwise_unenforced_limits() {
    let user = Identity {
        uid: 1000,
        gid: 1000,
        is_other: false,
    };
    let root = Identity { uid: 0, ..user };
    let mut policy = Policy::workspace();
    let fields =
        |mode, policy: &Policy, identity| GroupLimits::needed(mode, policy, identity).fields();
    assert_eq!(fields(Mode::Namespaces, &policy, user), []);
    assert_eq!(
        fields(Mode::Namespaces, &policy, root),
        [PolicyField::Processes]
    );
    assert_eq!(
        fields(Mode::Landlock, &policy, user),
        [PolicyField::Processes]
    );
    policy.limits.memory_bytes = Some(1 << 20);
    policy.limits.wall_time = Some(Duration::from_secs(1));
    assert_eq!(
        fields(Mode::Namespaces, &policy, user),
        [PolicyField::Memory]
    );
    assert_eq!(fields(Mode::Open, &policy, root), []);
}

#[test]
fn groups_writable_by_commands_are_recognized() {
    let place = Path::new("/sys/fs/cgroup/a");
    let mut policy = Policy::workspace();
    assert!(!can_be_written(&policy, place));
    policy.write_roots = Some(vec!["/sys".into()]);
    assert!(can_be_written(&policy, place));
    assert!(can_be_written(&Policy::unconfined(), place));
}

#[test]
fn events_are_counted_by_name() {
    let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
    assert_eq!(value(text, "oom_kill"), Some(3));
    assert_eq!(
        value("low 0\noom 1\noom_kill 2\noom_group_kill 0\n", "oom_kill"),
        Some(2)
    );
    assert_eq!(value("max\n", "max"), None);
}

#[test]
fn only_old_empty_groups_are_reclaimed() {
    let mount = tempfile::tempdir().unwrap();
    let name = |letters: &str| format!("cantle-{}-{letters}", cantle_core::ids::RunId::new());
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    let make = |path: &str, is_old| {
        let path = mount.path().join(path);
        fs::create_dir_all(&path).unwrap();
        if is_old {
            File::open(&path).unwrap().set_modified(old).unwrap();
        }
        path
    };
    let left = make(&format!("a/b/{}", name("aaaaaa")), true);
    let young = make(&format!("a/{}", name("bbbbbb")), false);
    let used = name("cccccc");
    make(&format!("{used}/inside"), false);
    let used = make(&used, true);
    let others = make("cantle-other", true);
    let shared = name("shared");
    let below = make(&format!("{shared}/{}", name("dddddd")), true);
    let shared = make(&shared, true);
    let mut removed = Vec::new();
    reclaim_below(mount.path(), MAX_DEPTH, JOIN_TIME, &mut removed);
    removed.sort();
    let mut expected = [left.clone(), shared.clone(), below];
    expected.sort();
    assert_eq!(removed, expected);
    let there = [left, young, used, others, shared].map(|path| path.exists());
    assert_eq!(there, [false, true, true, true, false]);
}

#[test]
fn group_reclaimed_before_it_is_joined_is_created_again() {
    use std::io::Write as _;

    let Some(shared) = Arc::new(Defaults::default()).group() else {
        return;
    };
    if shared.group.version == Version::Two {
        // Each sandbox joins one of its own below it.
        return;
    }
    let directory = shared.group.directory.clone();
    let groups = Groups {
        groups: Vec::new(),
        shared: Some(shared),
    };
    let mut joins = 0;
    // A thread's number that does not exist: the test stays outside.
    let mut join = |files: &[File]| -> io::Result<()> {
        joins += 1;
        if joins == 1 {
            fs::remove_dir(&directory)?;
        }
        let [file] = files else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        match { file }.write_all(b"4194305") {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                Ok(())
            }
            other => other,
        }
    };
    // Before the file is written.
    groups.join(&mut join).unwrap();
    // Before it is opened.
    fs::remove_dir(&directory).unwrap();
    groups.join(&mut join).unwrap();
    assert_eq!(joins, 3);
    // An error for another reason is not repeated.
    let mut failures = 0;
    let failed: io::Result<()> = groups.join(|_| {
        failures += 1;
        Err(io::ErrorKind::Other.into())
    });
    assert!(failed.is_err());
    assert_eq!(failures, 1);
}

#[test]
fn shared_group_is_not_joined_while_it_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let hierarchy = Hierarchy {
        version: Version::Two,
        controllers: names(&["memory"]),
        others: Vec::new(),
        parent: directory.path().to_owned(),
        mount: directory.path().to_owned(),
    };
    let mut group = Group::shared(&hierarchy, "cantle-shared", 1);
    // A directory of the test has no files for limits.
    group.limits = GroupLimits::default();
    let defaults = Arc::new(Defaults::default());
    defaults.group.set(Some((hierarchy, group))).unwrap();
    let groups = Groups {
        groups: Vec::new(),
        shared: defaults.group(),
    };
    let (sender, joined) = std::sync::mpsc::channel();
    let creating = groups.lock_creation();
    assert!(creating.is_some());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let joined: io::Result<()> = groups.join(|_| {
                sender.send(()).unwrap();
                Ok(())
            });
            joined.unwrap();
        });
        let early = joined.recv_timeout(Duration::from_millis(50));
        drop(creating);
        assert!(early.is_err());
        joined.recv().unwrap();
    });
}

/// A group of version 1 can only be joined by moving init, as one of version 2 on Linux before 5.7.
#[test]
fn init_is_created_in_its_group_or_moved_there() {
    for hierarchy in hierarchies() {
        let name = format!("cantle-{}-aaaaaa", cantle_core::ids::RunId::new());
        let group = Group {
            version: Version::Two,
            directory: hierarchy.parent.join(name),
            limits: GroupLimits::default(),
            is_shared: false,
        };
        if group.create().is_err() {
            continue;
        }
        let mut groups = Groups {
            groups: vec![group],
            shared: None,
        };
        assert!(groups.has_version_two());
        let mut body = Writer::new();
        body.write(&Setup {
            namespaces: 0,
            uid_map: c"",
            gid_map: c"",
            deny_setgroups: false,
            groups: 0,
            mapped: 0,
            shared_group: c"",
            has_image: false,
            has_group: true,
        });
        let body = body.into_bytes();
        let start = |files: &[File]| Supervisor::start(&body, None, files);
        let (supervisor, outcome) = groups.join(start).unwrap();
        let inside = groups.groups[0].file("cgroup.procs");
        let inside = fs::read_to_string(inside).unwrap();
        drop(supervisor);
        assert_eq!(outcome.missing, 0, "{hierarchy:?}");
        assert_eq!(inside.lines().count(), 1, "init only: {hierarchy:?}");
        groups.remove();
        assert!(!groups.groups[0].directory.exists());

        // A directory that is no control group: init can neither be created in it nor moved there.
        let elsewhere = tempfile::tempdir().unwrap();
        elsewhere.path().clone_into(&mut groups.groups[0].directory);
        let (_supervisor, outcome) = groups.join(start).unwrap();
        assert_eq!(outcome.missing, 1 << SetupReply::GROUPS);
    }
}

#[test]
fn sandboxes_of_version_two_have_groups_below_the_shared_one() {
    let mount = tempfile::tempdir().unwrap();
    let shared = |version| {
        let hierarchy = Hierarchy {
            version,
            controllers: names(&["memory"]),
            others: Vec::new(),
            parent: mount.path().to_owned(),
            mount: mount.path().to_owned(),
        };
        let mut group = Group::shared(&hierarchy, "cantle-shared", 1);
        // A directory of the test has no files for limits.
        group.limits = GroupLimits::default();
        let defaults = Defaults::default();
        defaults.group.set(Some((hierarchy, group))).unwrap();
        Arc::new(defaults)
    };
    let mut policy = Policy::workspace();
    policy.limits.processes = None;
    let user = Identity {
        uid: 1000,
        gid: 1000,
        is_other: false,
    };
    let create = |defaults: &Arc<Defaults>| {
        let all = Mechanisms::default();
        let mode = Mode::Namespaces;
        Groups::create("cantle-own", mode, &policy, user, all, defaults)
    };
    let directories = |groups: &Groups| -> Vec<PathBuf> {
        let all = groups.joined().map(|group| group.directory.clone());
        all.map(|path| path.strip_prefix(mount.path()).unwrap().to_owned())
            .collect()
    };
    let one = create(&shared(Version::One));
    assert_eq!(directories(&one), [Path::new("cantle-shared")]);
    assert!(!one.has_version_two() && one.cleanups().is_empty());
    drop(one);
    let defaults = shared(Version::Two);
    let (two, other) = (create(&defaults), create(&defaults));
    let both = [directories(&two), directories(&other)];
    assert_ne!(both[0], both[1]);
    for groups in both {
        assert_eq!(groups.len(), 1);
        assert!(groups[0].starts_with("cantle-shared/"), "{groups:?}");
    }
    assert!(two.has_version_two());
    assert_eq!(two.cleanups().len(), 1);
    drop((two, other, defaults));
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
}
