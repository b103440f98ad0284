//! The sandbox traits for smart pointers, so that generic code can take `impl Backend`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Backend, ByteRange, ByteStream, ChangeNotice, Connection, Exit, FileInfo, OutputStream,
    Process, ProcessStdin, PtySize, Sandbox, SandboxContext, SandboxError, SandboxHandle,
    SandboxInfo, SandboxPath, Signal, SpawnRequest, Walk, WriteOptions,
};

macro_rules! forward_to_pointee {
    ($pointer:ident) => {
        #[async_trait]
        impl<T: Backend + ?Sized> Backend for $pointer<T> {
            fn name(&self) -> &str {
                (**self).name()
            }

            async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
                (**self).open(cx).await
            }

            async fn reattach(
                &self,
                handle: &SandboxHandle,
                cx: SandboxContext,
            ) -> Result<Arc<dyn Sandbox>, SandboxError> {
                (**self).reattach(handle, cx).await
            }
        }

        #[async_trait]
        impl<T: Sandbox + ?Sized> Sandbox for $pointer<T> {
            fn info(&self) -> &SandboxInfo {
                (**self).info()
            }

            async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
                (**self).spawn(request).await
            }

            async fn read(
                &self,
                path: &SandboxPath,
                range: ByteRange,
            ) -> Result<ByteStream, SandboxError> {
                (**self).read(path, range).await
            }

            async fn write(
                &self,
                path: &SandboxPath,
                options: WriteOptions,
                data: ByteStream,
            ) -> Result<(), SandboxError> {
                (**self).write(path, options, data).await
            }

            async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
                (**self).stat(path).await
            }

            async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
                (**self).list(path).await
            }

            async fn walk(
                &self,
                directory: &SandboxPath,
                max_entries: usize,
            ) -> Result<Walk, SandboxError> {
                (**self).walk(directory, max_entries).await
            }

            async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
                (**self).mkdir(path).await
            }

            async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
                (**self).remove(path).await
            }

            async fn rename(
                &self,
                from: &SandboxPath,
                to: &SandboxPath,
            ) -> Result<(), SandboxError> {
                (**self).rename(from, to).await
            }

            async fn connect(&self, port: u16) -> Result<Connection, SandboxError> {
                (**self).connect(port).await
            }

            async fn watch(
                &self,
                directories: &[SandboxPath],
            ) -> Result<ChangeNotice, SandboxError> {
                (**self).watch(directories).await
            }

            async fn attributes(
                &self,
                paths: &[SandboxPath],
                prefix: &str,
            ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
                (**self).attributes(paths, prefix).await
            }

            async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
                (**self).persist().await
            }

            async fn close(&self) -> Result<(), SandboxError> {
                (**self).close().await
            }
        }
    };
}

forward_to_pointee!(Arc);
forward_to_pointee!(Box);

#[async_trait]
impl<T: Process + ?Sized> Process for Box<T> {
    fn id(&self) -> Option<u32> {
        (**self).id()
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        (**self).take_output()
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        (**self).take_stdin()
    }

    async fn signal(&mut self, signal: Signal) -> Result<(), SandboxError> {
        (**self).signal(signal).await
    }

    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError> {
        (**self).resize(size).await
    }

    fn take_notes(&mut self) -> Vec<String> {
        (**self).take_notes()
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        (**self).wait().await
    }
}

#[async_trait]
impl<T: ProcessStdin + ?Sized> ProcessStdin for Box<T> {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        (**self).write(data).await
    }
}
