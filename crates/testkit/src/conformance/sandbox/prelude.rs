//! The names that most cases use.

pub(super) use std::path::PathBuf;
pub(super) use std::sync::Arc;
pub(super) use std::time::Duration;

pub(super) use bytes::Bytes;
pub(super) use cantle_core::ids::RunId;
pub(super) use cantle_core::policy::Policy;
pub(super) use cantle_core::sandbox::SandboxErrorKind::{
    self, AlreadyExists, Closed, Gone, InvalidInput, NotADirectory, NotAFile, NotFound,
    OutsideSandbox, PermissionDenied, Unenforceable, Unsupported,
};
pub(super) use cantle_core::sandbox::{
    Background, ByteRange, CommandOutput, ExitStatus, FileKind, OutputChunk, OutputStream, Process,
    ProcessStdin, Sandbox, SandboxContext, SandboxError, SandboxExt as _, SandboxPath,
    SpawnRequest, Stdin, WriteOptions,
};
pub(super) use futures_util::future::try_join_all;
pub(super) use futures_util::{StreamExt as _, stream};
pub(super) use tokio::time::{Instant, sleep, timeout};

pub(super) use super::super::check::{
    Checked, Failure, ensure, ensure_prompt, equal, noise, refused, same_bytes, within,
};
pub(super) use super::super::suite::cases;
pub(super) use super::bench::{
    Bench, Harness, PROMPT_LIMIT, STEP_TIMEOUT, Token, path, read, read_until, stdout, step,
    take_output, take_stdin, until, whole,
};
pub(super) use super::host::{self, Outside};
