//! A backend whose sandboxes are directories of this host, each with its own relay.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cantle_backends_docker::relay::{Relay, RelayOptions};
use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend, ByteRange, ByteStream, ChangeNotice, Connection, EnforcedBy, Enforcement, FileInfo,
    Process, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo,
    SandboxPath, SpawnRequest, Walk, WriteOptions, walk_by_command,
};
use cantle_proxy::ProxySettings;
use cantle_supervisor::PROGRAM;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Deadline of every wait, generous for slow machines.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// `nobody`.
const NOBODY: u32 = 65_534;

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Returns the path of the supervisor, executable by every user.
pub(crate) fn program() -> &'static Path {
    static PROGRAM_FILE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM_FILE.get_or_init(|| {
        let directory = TempDir::new().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let path = directory.path().join("supervisor");
        fs::write(&path, PROGRAM).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        (directory, path)
    });
    path
}

/// Starts a relay without connecting to it.
pub(crate) async fn start(uid: Option<u32>) -> Child {
    let mut command = Command::new(program());
    command
        .arg("relay")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let deadline = Instant::now() + DEADLINE;
    loop {
        match command.spawn() {
            // A concurrently forked process may briefly have the file open.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                assert!(Instant::now() < deadline, "the program is still busy");
                sleep(Duration::from_millis(1)).await;
            }
            child => return child.unwrap(),
        }
    }
}

/// Connects to a started relay.
pub(crate) async fn connect(child: &mut Child, options: RelayOptions) -> Relay {
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    Relay::connect(reader, writer, options).await.unwrap()
}

/// Kills a relay, whose process id is the id of its sandbox.
pub(crate) async fn kill_relay(id: &str) -> io::Result<()> {
    let killed = Command::new("kill").args(["-KILL", id]).status().await?;
    if killed.success() {
        Ok(())
    } else {
        Err(io::Error::other("the relay could not be killed"))
    }
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a future, with a deadline.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it hangs")
}

/// Returns whether a process has `argument` as one of its arguments.
pub(crate) fn is_running(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.into_iter().any(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|own| own == argument.as_bytes())
    })
}

/// Returns a unique duration for `sleep`.
pub(crate) fn token() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("7{}.{number:04}", std::process::id())
}

/// Creates sandboxes in directories.
#[derive(Debug)]
pub(crate) struct RelayBackend {
    /// The relay's user; `None` for the current user.
    relay: Option<u32>,
    /// The commands' user; `None` for the relay's user.
    commands: Option<u32>,
    /// The proxy, and its port on this host.
    proxy: Option<(ProxySettings, u16)>,
}

impl RelayBackend {
    /// Runs the relay and its commands as one unprivileged user.
    pub(crate) fn own_user() -> Self {
        Self {
            relay: is_root().then_some(NOBODY),
            commands: None,
            proxy: None,
        }
    }

    /// Runs the relay as root, and its commands as an unprivileged user.
    pub(crate) fn other_user() -> Self {
        Self {
            relay: None,
            commands: Some(NOBODY),
            proxy: None,
        }
    }

    /// Gives commands a proxy on a free port.
    pub(crate) fn with_proxy(self, settings: ProxySettings) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        Self {
            proxy: Some((settings, port)),
            ..self
        }
    }

    /// Returns the port of the proxy.
    pub(crate) fn proxy_port(&self) -> u16 {
        self.proxy.as_ref().unwrap().1
    }

    /// Runs the commands as this user.
    pub(crate) fn with_user(self, uid: u32) -> Self {
        Self {
            commands: Some(uid),
            ..self
        }
    }

    pub(crate) async fn sandbox(&self) -> Arc<RelaySandbox> {
        self.open_under(&Policy::unconfined()).await.unwrap()
    }

    async fn open_under(&self, policy: &Policy) -> Result<Arc<RelaySandbox>, SandboxError> {
        let report = Enforcement::report(policy, |field| match field {
            PolicyField::Environment | PolicyField::WallTime | PolicyField::Output => {
                EnforcedBy::Backend
            }
            PolicyField::CpuTime | PolicyField::FileSize | PolicyField::OpenFiles => {
                EnforcedBy::PerProcess
            }
            _ => EnforcedBy::NotEnforced,
        });
        let missing = report.iter().filter(|it| it.by == EnforcedBy::NotEnforced);
        let missing: Vec<_> = missing.map(|it| it.field).collect();
        if policy.strictness == Strictness::Strict && !missing.is_empty() {
            return Err(SandboxError::unenforceable(self.name(), missing));
        }

        let directory = tempfile::Builder::new()
            .prefix("relay-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let base = directory.path().canonicalize().unwrap();
        for name in ["work", "tmp"] {
            let path = base.join(name);
            fs::create_dir(&path).unwrap();
            let owner = self.commands.or(self.relay);
            chown(&path, owner, owner).unwrap();
        }
        let inside = |name: &str| SandboxPath::from_os(base.join(name)).unwrap();
        let mut options = RelayOptions::new(inside("work"));
        options.root = inside("");
        options.temporary_directory = inside("tmp");
        options.identity = self.commands.map(|uid| (uid, uid));
        // Installing it needs privileges that the unprivileged relay lacks.
        options.filters_calls = self.commands.is_some();
        options.limits = policy.limits.clone();
        if let Some((settings, port)) = &self.proxy {
            options.proxy = Some(settings.clone());
            options.proxy_port = *port;
        }
        options
            .environment
            .insert("HOME".into(), base.join("work").into());
        for (name, value) in &policy.environment {
            options
                .environment
                .insert(name.into(), value.expose().into());
        }
        let mut child = start(self.relay).await;
        let relay = connect(&mut child, options).await;
        let id = child.id().unwrap().to_string();
        let mut info = SandboxInfo::new(self.name(), id, inside("work"));
        info.enforcement = report;
        Ok(Arc::new(RelaySandbox {
            info,
            relay,
            child: Mutex::new(Some(child)),
            directory: Mutex::new(Some(directory)),
            is_closed: AtomicBool::new(false),
        }))
    }
}

#[async_trait]
impl Backend for RelayBackend {
    fn name(&self) -> &'static str {
        "relay"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        Ok(self.open_under(&cx.policy).await?)
    }

    async fn reattach(
        &self,
        _: &SandboxHandle,
        _: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        Err(SandboxError::unsupported("nothing here is kept"))
    }
}

#[derive(Debug)]
pub(crate) struct RelaySandbox {
    info: SandboxInfo,
    pub(crate) relay: Relay,
    child: Mutex<Option<Child>>,
    directory: Mutex<Option<TempDir>>,
    is_closed: AtomicBool,
}

impl RelaySandbox {
    /// Returns the relay's process and the directory, without closing them.
    pub(crate) fn into_parts(self) -> (Option<Child>, Option<TempDir>) {
        let (child, directory) = (self.child, self.directory);
        (child.into_inner().unwrap(), directory.into_inner().unwrap())
    }

    fn check(&self) -> Result<(), SandboxError> {
        if self.is_closed.load(Ordering::Acquire) {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        Ok(())
    }
}

#[async_trait]
impl Sandbox for RelaySandbox {
    fn info(&self) -> &SandboxInfo {
        &self.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        self.check()?;
        self.relay.spawn(request).await
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        self.check()?;
        self.relay.read(path, range).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.check()?;
        self.relay.write(path, options, data).await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.check()?;
        self.relay.stat(path).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.check()?;
        self.relay.list(path).await
    }

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        walk_by_command(self, directory, max_entries).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.check()?;
        self.relay.mkdir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.check()?;
        self.relay.remove(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.check()?;
        self.relay.rename(from, to).await
    }

    async fn connect(&self, port: u16) -> Result<Connection, SandboxError> {
        self.check()?;
        self.relay.open_port(port).await
    }

    async fn watch(&self, _: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        Err(SandboxError::unsupported("nothing here watches"))
    }

    async fn attributes(
        &self,
        _: &[SandboxPath],
        _: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        Err(SandboxError::unsupported("nothing here has attributes"))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        Err(SandboxError::unsupported("nothing here is kept"))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.relay.close().await?;
        let child = self.child.lock().unwrap().take();
        if let Some(mut child) = child {
            child.wait().await.unwrap();
        }
        drop(self.directory.lock().unwrap().take());
        Ok(())
    }
}
