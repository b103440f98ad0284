//! A sandbox without a system below it: files in memory, and commands whose output is written down.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, ByteStream, ChangeNotice, Channel, Connection, Exit, ExitStatus, FileInfo, FileKind,
    OutputChunk, OutputStream, Process, ProcessStdin, PtySize, Sandbox, SandboxError,
    SandboxErrorKind, SandboxHandle, SandboxInfo, SandboxPath, Signal, SpawnRequest, Walk,
    WriteOptions, walk_by_command,
};
use futures_util::{StreamExt as _, stream};

/// A file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    File {
        data: Bytes,
        mode: u32,
    },
    Directory,
    /// A link to another path; every bit of its mode is set, as on Linux.
    Link(SandboxPath),
    /// A link that leads out.
    Escape,
    Pipe,
    /// A file whose second half can't be read.
    Broken(SandboxErrorKind),
}

#[derive(Debug)]
pub(crate) struct MemorySandbox {
    info: SandboxInfo,
    nodes: Mutex<BTreeMap<Vec<u8>, Node>>,
    output: Vec<Result<OutputChunk, SandboxErrorKind>>,
    exit: Exit,
    gone: AtomicBool,
    killed: Arc<AtomicU32>,
    /// The time limits of all commands.
    timeouts: Mutex<Vec<Option<Duration>>>,
}

impl MemorySandbox {
    pub(crate) fn new() -> Self {
        let directory = path("/sandbox");
        Self {
            info: SandboxInfo::new("memory", "1", directory),
            nodes: Mutex::new(BTreeMap::from([(Vec::new(), Node::Directory)])),
            output: Vec::new(),
            exit: Exit::new(ExitStatus::Code(0), Duration::ZERO),
            gone: AtomicBool::new(false),
            killed: Arc::default(),
            timeouts: Mutex::default(),
        }
    }

    /// Adds a node at a path below the working directory.
    pub(crate) fn with(self, at: &str, node: Node) -> Self {
        self.put(&path(at), node);
        self
    }

    pub(crate) fn with_file(self, at: &str, data: &'static str) -> Self {
        let data = Bytes::from_static(data.as_bytes());
        self.with(at, Node::File { data, mode: 0o644 })
    }

    /// Sets the output and the exit of every command.
    pub(crate) fn with_command(
        mut self,
        output: impl IntoIterator<Item = Result<OutputChunk, SandboxErrorKind>>,
        exit: Exit,
    ) -> Self {
        self.output = output.into_iter().collect();
        self.exit = exit;
        self
    }

    /// From now on every operation says that the sandbox is gone.
    pub(crate) fn lose(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// How many commands were dropped before they ended.
    pub(crate) fn killed(&self) -> u32 {
        self.killed.load(Ordering::Relaxed)
    }

    /// The time limits of all commands.
    pub(crate) fn timeouts(&self) -> Vec<Option<Duration>> {
        self.timeouts.lock().expect("no panic").clone()
    }

    /// All that is there, as paths below the working directory.
    pub(crate) fn tree(&self) -> Vec<(String, Node)> {
        let nodes = self.nodes.lock().expect("no panic");
        nodes
            .iter()
            .filter(|(path, _)| !path.is_empty())
            .map(|(path, node)| (String::from_utf8_lossy(path).into_owned(), node.clone()))
            .collect()
    }

    fn key(&self, path: &SandboxPath) -> Result<Vec<u8>, SandboxError> {
        let outside = || SandboxError::new(SandboxErrorKind::OutsideSandbox, "it leads out");
        let below = if path.is_absolute() {
            path.strip_prefix(&self.info.working_directory)
                .ok_or_else(outside)?
        } else {
            path.clone()
        };
        Ok(below.relative_bytes().to_vec())
    }

    fn node(&self, path: &SandboxPath) -> Result<Node, SandboxError> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(SandboxError::gone("the sandbox is gone"));
        }
        let nodes = self.nodes.lock().expect("no panic");
        let node = nodes.get(&self.key(path)?).cloned();
        node.ok_or_else(|| {
            SandboxError::new(SandboxErrorKind::NotFound, format!("there is no `{path}`"))
        })
    }

    fn put(&self, path: &SandboxPath, node: Node) {
        let key = self.key(path).expect("below the working directory");
        let mut nodes = self.nodes.lock().expect("no panic");
        let parents = std::iter::successors(path.parent(), SandboxPath::parent);
        for parent in parents {
            let key = self.key(&parent).expect("below the working directory");
            nodes.entry(key).or_insert(Node::Directory);
        }
        nodes.insert(key, node);
    }
}

pub(crate) fn path(text: &str) -> SandboxPath {
    text.parse().expect("a path")
}

pub(crate) fn chunk(channel: Channel, text: &'static str) -> OutputChunk {
    OutputChunk {
        channel,
        bytes: Bytes::from_static(text.as_bytes()),
    }
}

#[async_trait]
impl Sandbox for MemorySandbox {
    fn info(&self) -> &SandboxInfo {
        &self.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        let timeouts = &self.timeouts;
        timeouts.lock().expect("no panic").push(request.timeout);
        Ok(Box::new(WrittenDown {
            output: Some(self.output.clone()),
            exit: self.exit.clone(),
            ended: false,
            killed: Arc::clone(&self.killed),
        }))
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        let data = match self.node(path)? {
            Node::File { data, .. } => data,
            Node::Link(to) => return self.read(&to, range).await,
            Node::Escape => {
                return Err(SandboxError::new(
                    SandboxErrorKind::OutsideSandbox,
                    "it leads out",
                ));
            }
            Node::Broken(kind) => {
                let half = Ok(Bytes::from_static(b"half"));
                let failure = Err(SandboxError::new(kind, "the disk broke"));
                return Ok(Box::pin(stream::iter([half, failure])));
            }
            Node::Directory | Node::Pipe => {
                return Err(SandboxError::new(
                    SandboxErrorKind::NotAFile,
                    "it is no file",
                ));
            }
        };
        let start = data.len().min(range.offset as usize);
        let length = range.length.map_or(usize::MAX, |length| length as usize);
        let end = start.saturating_add(length).min(data.len());
        let piece = data.slice(start..end);
        // Two pieces, so that a reader must not take the first for all.
        let (a, b) = (
            piece.slice(..piece.len() / 2),
            piece.slice(piece.len() / 2..),
        );
        Ok(Box::pin(stream::iter([Ok(a), Ok(b)])))
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        mut data: ByteStream,
    ) -> Result<(), SandboxError> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(SandboxError::gone("the sandbox is gone"));
        }
        let mut bytes = Vec::new();
        while let Some(piece) = data.next().await {
            bytes.extend_from_slice(&piece?);
        }
        if options
            .size_bytes
            .is_some_and(|size| size != bytes.len() as u64)
        {
            return Err(SandboxError::new(
                SandboxErrorKind::InvalidInput,
                "it is not as long as was said",
            ));
        }
        self.put(
            path,
            Node::File {
                data: bytes.into(),
                mode: options.mode,
            },
        );
        Ok(())
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let (kind, size, mode) = match self.node(path)? {
            Node::File { data, mode } => (FileKind::File, data.len(), mode),
            Node::Directory => (FileKind::Directory, 0, 0o755),
            Node::Link(_) | Node::Escape => (FileKind::Symlink, 0, 0o777),
            Node::Pipe => (FileKind::Other, 0, 0o644),
            Node::Broken(_) => (FileKind::File, 8, 0o644),
        };
        Ok(FileInfo::new(path.clone(), kind, size as u64, Some(mode)))
    }

    async fn list(&self, _: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        Err(SandboxError::unsupported("nothing here lists"))
    }

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        walk_by_command(self, directory, max_entries).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.put(path, Node::Directory);
        Ok(())
    }

    async fn remove(&self, _: &SandboxPath) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported("nothing here removes"))
    }

    async fn rename(&self, _: &SandboxPath, _: &SandboxPath) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported("nothing here renames"))
    }

    async fn connect(&self, _: u16) -> Result<Connection, SandboxError> {
        Err(SandboxError::unsupported("nothing here connects"))
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
        Ok(())
    }
}

/// A command whose output is known beforehand.
struct WrittenDown {
    output: Option<Vec<Result<OutputChunk, SandboxErrorKind>>>,
    exit: Exit,
    ended: bool,
    killed: Arc<AtomicU32>,
}

#[async_trait]
impl Process for WrittenDown {
    fn id(&self) -> Option<u32> {
        None
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        let output = self.output.take()?.into_iter();
        let fail = |kind| SandboxError::new(kind, "the output broke");
        Some(Box::pin(stream::iter(
            output.map(move |chunk| chunk.map_err(fail)),
        )))
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        None
    }

    async fn signal(&mut self, _: Signal) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn resize(&mut self, _: PtySize) -> Result<(), SandboxError> {
        Err(SandboxError::unsupported("the command has no terminal"))
    }

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        self.ended = true;
        Ok(self.exit.clone())
    }
}

impl Drop for WrittenDown {
    fn drop(&mut self) {
        if !self.ended {
            self.killed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
