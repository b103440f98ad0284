//! A sandbox in which every operation fails, its end as well.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::sandbox::{
    Backend, ByteRange, ByteStream, ChangeNotice, Connection, FileInfo, Process, Sandbox,
    SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo, SandboxPath,
    SpawnRequest, Walk, WriteOptions,
};
use cantle_python::Interpreter;

#[derive(Debug)]
struct FailingBackend;

#[derive(Debug)]
struct FailingSandbox(SandboxInfo);

fn failure<T>(operation: &str) -> Result<T, SandboxError> {
    let message = format!("{operation} failed");
    Err(SandboxError::new(SandboxErrorKind::Io, message))
}

#[async_trait]
impl Backend for FailingBackend {
    fn name(&self) -> &str {
        "failing"
    }

    async fn open(&self, _: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let info = SandboxInfo::new("failing", "1", SandboxPath::working_directory());
        Ok(Arc::new(FailingSandbox(info)))
    }

    async fn reattach(
        &self,
        _: &SandboxHandle,
        _: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        failure("reattach")
    }
}

#[async_trait]
impl Sandbox for FailingSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.0
    }

    async fn spawn(&self, _: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        failure("spawn")
    }

    async fn read(&self, _: &SandboxPath, _: ByteRange) -> Result<ByteStream, SandboxError> {
        failure("read")
    }

    async fn write(
        &self,
        _: &SandboxPath,
        _: WriteOptions,
        _: ByteStream,
    ) -> Result<(), SandboxError> {
        failure("write")
    }

    async fn stat(&self, _: &SandboxPath) -> Result<FileInfo, SandboxError> {
        failure("stat")
    }

    async fn list(&self, _: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        failure("list")
    }

    async fn walk(&self, _: &SandboxPath, _: usize) -> Result<Walk, SandboxError> {
        failure("walk")
    }

    async fn mkdir(&self, _: &SandboxPath) -> Result<(), SandboxError> {
        failure("mkdir")
    }

    async fn remove(&self, _: &SandboxPath) -> Result<(), SandboxError> {
        failure("remove")
    }

    async fn rename(&self, _: &SandboxPath, _: &SandboxPath) -> Result<(), SandboxError> {
        failure("rename")
    }

    async fn connect(&self, _: u16) -> Result<Connection, SandboxError> {
        failure("connect")
    }

    async fn watch(&self, _: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        failure("watch")
    }

    async fn attributes(
        &self,
        _: &[SandboxPath],
        _: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        failure("attributes")
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        failure("persist")
    }

    async fn close(&self) -> Result<(), SandboxError> {
        failure("close")
    }
}

#[tokio::test]
async fn the_error_of_a_run_is_not_hidden_by_that_of_the_end() {
    let error = Interpreter::new(FailingBackend).run("1").await.unwrap_err();
    assert_eq!(error.to_string(), "spawn failed");
}
