//! The targets of attacks: files, sockets and a process outside the sandbox. All belong to the
//! attacker's user, so that only confinement protects them.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;

/// The targets of one attack; removed on drop.
#[derive(Debug)]
pub(crate) struct Fixture {
    directory: TempDir,
    /// The owner of everything.
    pub(crate) uid: u32,
    /// The secret, which no sandbox gets.
    pub(crate) secret: String,
    /// Marks the processes of the attack.
    pub(crate) token: String,
    /// Marks the victim's command line.
    pub(crate) victim_mark: String,
    pub(crate) victim: Child,
    pub(crate) tcp: TcpListener,
    pub(crate) udp: UdpSocket,
    pub(crate) stream: UnixListener,
    pub(crate) datagrams: UnixDatagram,
    pub(crate) abstract_stream: UnixListener,
    pub(crate) abstract_datagrams: UnixDatagram,
    /// A descriptor of the outside directory that every child inherits.
    _inherited: OwnedFd,
    before: BTreeMap<PathBuf, String>,
}

impl Fixture {
    /// Creates a fixture that belongs to this user.
    pub(crate) fn new(uid: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("{}-{number}-", std::process::id());
        let (secret, token) = (format!("secret-{unique}"), format!("token-{unique}"));
        let victim_mark = format!("victim-{unique}");

        let directory = tempfile::Builder::new()
            .prefix("hostile-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir(directory.path().join("sandboxes")).unwrap();
        for name in ["", "readable", "writable", "directory"] {
            fs::create_dir(outside.join(name)).unwrap();
        }
        fs::write(outside.join("secret"), &secret).unwrap();
        fs::write(outside.join("directory/secret"), &secret).unwrap();
        fs::write(outside.join("target"), "unchanged").unwrap();
        fs::write(outside.join("readable/file"), "unchanged").unwrap();
        fs::write(outside.join("writable/file"), "unchanged").unwrap();
        let stream = UnixListener::bind(outside.join("stream")).unwrap();
        let datagrams = UnixDatagram::bind(outside.join("datagrams")).unwrap();
        let shared = shared_memory(&token);
        fs::write(&shared, &secret).unwrap();
        for path in below(&outside).into_iter().chain([shared]) {
            chown(&path, Some(uid), Some(uid)).unwrap();
            let mode = if path.is_dir() { 0o777 } else { 0o666 };
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }

        let abstract_name =
            |kind| SocketAddr::from_abstract_name(format!("{token}{kind}")).unwrap();
        let mut victim = Command::new("/usr/bin/sleep");
        victim
            .arg0(&victim_mark)
            .arg("3000")
            .env_clear()
            .env("SECRET", &secret)
            .stdin(Stdio::null())
            .process_group(0);
        if Self::own_uid() != uid {
            victim.uid(uid).gid(uid);
        }
        let fixture = Self {
            before: state_of(&outside),
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            abstract_stream: UnixListener::bind_addr(&abstract_name("stream")).unwrap(),
            abstract_datagrams: UnixDatagram::bind_addr(&abstract_name("datagrams")).unwrap(),
            _inherited: rustix::fs::open(&outside, OFlags::DIRECTORY, Mode::empty()).unwrap(),
            victim: victim.spawn().unwrap(),
            directory,
            uid,
            secret,
            token,
            victim_mark,
            stream,
            datagrams,
        };
        fixture.tcp.set_nonblocking(true).unwrap();
        fixture.udp.set_nonblocking(true).unwrap();
        fixture.stream.set_nonblocking(true).unwrap();
        fixture.datagrams.set_nonblocking(true).unwrap();
        fixture.abstract_stream.set_nonblocking(true).unwrap();
        fixture.abstract_datagrams.set_nonblocking(true).unwrap();
        fixture
    }

    pub(crate) fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    /// Returns the parent directory of the sandboxes.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.directory.path().join("sandboxes")
    }

    /// Returns the environment of the attack.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let port = |address: std::io::Result<std::net::SocketAddr>| address.unwrap().port();
        let set_uid = std::env::var(crate::SET_UID).unwrap_or_default();
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let number =
            |path: &str| -> Option<u64> { fs::read_to_string(path).ok()?.trim().parse().ok() };
        let terminals = number("/proc/sys/kernel/pty/max").unwrap_or(4096)
            - number("/proc/sys/kernel/pty/reserve").unwrap_or(1024);
        let signals = getrlimit(Resource::Sigpending).maximum.unwrap_or(4096);
        vec![
            // More than a sandbox's share.
            ("TERMINALS", (terminals / 8 + 1).to_string()),
            ("SIGNALS", (signals / 4).to_string()),
            ("TOKEN", self.token.clone()),
            ("OUTSIDE", self.outside().to_string_lossy().into_owned()),
            ("TCP", port(self.tcp.local_addr()).to_string()),
            ("UDP", port(self.udp.local_addr()).to_string()),
            ("VICTIM", self.victim.id().to_string()),
            ("VICTIM_MARK", self.victim_mark.clone()),
            ("SET_UID", set_uid),
            ("BOOT_ID", boot_id.unwrap_or_default().trim().to_owned()),
        ]
    }

    /// Returns the first change outside: content, names, owners, modes, times or attributes.
    pub(crate) fn change(&self) -> Option<String> {
        let now = state_of(&self.outside());
        let all = self.before.keys().chain(now.keys());
        all.into_iter()
            .find(|path| self.before.get(*path) != now.get(*path))
            .map(|path| {
                let (before, now) = (self.before.get(path), now.get(path));
                format!("{}: {before:?} is now {now:?}", path.display())
            })
    }

    pub(crate) fn victim_runs(&self) -> bool {
        crate::traces::runs(self.victim.id())
    }

    /// Returns a file of the victim's `/proc` directory.
    pub(crate) fn victim_file(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.victim.id())).unwrap_or_default()
    }

    /// Returns the files that sandboxes have left.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        below(&self.sandboxes()).split_off(1)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // An attack may have killed it.
        let _ = self.victim.kill();
        let _ = self.victim.wait();
        for path in [
            shared_memory(&self.token),
            shared_memory(&format!("{}new", self.token)),
        ] {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the path of a file in the host's shared memory.
pub(crate) fn shared_memory(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(name)
}

fn below(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            found.extend(entries.map(|entry| entry.path()));
        }
        at += 1;
    }
    found
}

fn state_of(root: &Path) -> BTreeMap<PathBuf, String> {
    let state = |path: PathBuf| {
        let metadata = fs::symlink_metadata(&path).ok()?;
        let content = if metadata.is_file() {
            fs::read_to_string(&path).unwrap_or_default()
        } else {
            String::new()
        };
        // The change time covers owners, modes, attributes and links, too.
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Some((path, format!("{changed:?} {content}")))
    };
    below(root).into_iter().filter_map(state).collect()
}
