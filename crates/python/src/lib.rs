//! Python in a sandbox: facts about source, one-shot runs, and sessions that keep their variables.
//!
//! [`SourceFacts`] tells what source imports and whether it parses, without executing it. An [`Interpreter`] is
//! configuration over any backend: it runs code in an interpreter of its own, or opens a [`PythonSession`], whose
//! contexts keep variables from call to call. Both return an [`Execution`]. [`PythonTool`] lets a model use one. A
//! [`PackageStore`] provides packages that the machine lacks. The source check is advice; the boundary is the policy of
//! the sandbox.

#![forbid(unsafe_code)]

mod code_session;
pub mod compat;
mod discovery;
mod execution;
mod interpreter;
mod kernel;
mod packages;
mod source;
mod tool;

pub use self::execution::{Execution, ExecutionOutcome};
pub use self::interpreter::{Interpreter, PythonSession, one_shot};
pub use self::packages::{
    CollectedPackages, NodePackage, NodeRequest, PackageError, PackageErrorKind, PackageIndex,
    PackageRequest, PackageSet, PackageSpecifier, PackageStore, PythonTarget,
};
pub use self::source::{DynamicImport, Import, MAX_SOURCE_BYTES, SourceFacts, SyntaxError};
pub use self::tool::PythonTool;
pub use cantle_core::code::{CodeError, RichResult};
