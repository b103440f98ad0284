//! Opening a sandbox: its directory, and what its commands share.

use std::path::{Path, PathBuf};

use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    EnforcedBy, Enforcement, Isolation, SandboxContext, SandboxError, SandboxErrorKind,
    SandboxInfo, Survival,
};

use crate::backend::LocalBackend;
use crate::engine::{self, Engine};
use crate::environment::{self, Environment};
use crate::files::Root;
use crate::limits::OwnLimits;
use crate::sandbox::{LocalSandbox, Parts};

/// What a sandbox is opened on.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A new directory.
    New,
    /// The directory of one that was kept.
    Kept(PathBuf),
}

/// What runs a sandbox's commands, and what is to be said of it.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) engine: Engine,
    pub(crate) isolation: Isolation,
    /// What it has to keep commands in, for people.
    pub(crate) walls: Vec<String>,
    /// What enforces each field that the policy sets.
    pub(crate) enforcement: Vec<Enforcement>,
    /// The user's name, where the sandbox has one of its own.
    pub(crate) user: Option<&'static str>,
    /// The port of 127.0.0.1 on which commands find the proxy.
    pub(crate) proxy_port: Option<u16>,
}

/// Opens a sandbox. Blocks, and needs a runtime.
pub(crate) fn open(
    backend: &LocalBackend,
    cx: &SandboxContext,
    place: &Place,
) -> Result<LocalSandbox, SandboxError> {
    let search_path = environment::absolute_directories(backend.search_path());
    let shell = find_shell(backend.shell(), &search_path)?;
    environment::check(&cx.policy.environment)?;
    let (mut root, is_kept) = match place {
        Place::New => (Root::create(&backend.place(), cx.run, cx.durable)?, false),
        Place::Kept(directory) => (Root::reopen(directory)?, true),
    };
    let is_durable = is_kept || cx.durable;
    let built = match engine::build(&mut root, backend, &cx.policy, is_durable, is_kept) {
        Ok(built) => built,
        Err(error) if is_kept => return Err(error),
        Err(error) => {
            // What went wrong is what there is to say.
            let _ = root.delete();
            return Err(error);
        }
    };
    let seen = root.seen().clone();
    let environment = Environment::new(search_path, &shell, &seen, &built, &cx.policy);
    let mut info = SandboxInfo::new("local", root.name(), seen.work);
    info.isolation = built.isolation;
    info.walls = built.walls;
    info.enforcement = built.enforcement;
    if is_durable {
        info.survival = Survival::Workspace;
    }
    Ok(LocalSandbox::new(Parts {
        limits: OwnLimits::new(&cx.policy.limits, &info.enforcement),
        info,
        root,
        environment,
        shell,
        engine: built.engine,
        is_kept,
    }))
}

/// Refuses a report in which a field of a strict policy isn't enforced; `reasons` say why that is.
pub(crate) fn check_enforced(
    policy: &Policy,
    report: Vec<Enforcement>,
    reasons: &[String],
) -> Result<Vec<Enforcement>, SandboxError> {
    let missing: Vec<PolicyField> = report
        .iter()
        .filter(|enforcement| enforcement.by == EnforcedBy::NotEnforced)
        .map(|enforcement| enforcement.field)
        .collect();
    if policy.strictness == Strictness::BestEffort || missing.is_empty() {
        return Ok(report);
    }
    let mut advice = "Take these fields out of the policy, accept that they aren't enforced (best \
                      effort), or use a backend that isolates."
        .to_owned();
    for reason in reasons {
        advice = format!("{advice} This machine: {reason}.");
    }
    Err(SandboxError::unenforceable("local", missing).with_advice(advice))
}

/// Refuses a directory whose files commands could not use that run as `uid`.
pub(crate) fn check_owner(root: &Root, uid: u32) -> Result<(), SandboxError> {
    let owner = root.owner_id()?;
    if owner == uid {
        return Ok(());
    }
    let message = format!(
        "the directory `{}` can't be used again: its files are user {owner}'s, and under this policy \
         commands run as user {uid}",
        root.places().base().display()
    );
    Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
        .with_advice("Use the policy that it was made under."))
}

fn find_shell(
    chosen: Option<&Path>,
    search_path: &std::ffi::OsStr,
) -> Result<PathBuf, SandboxError> {
    let unavailable = |message: String, advice: &str| {
        SandboxError::new(SandboxErrorKind::Unavailable, message).with_advice(advice)
    };
    match chosen {
        Some(shell) if shell.is_absolute() && environment::is_executable(shell) => {
            Ok(shell.to_owned())
        }
        Some(shell) => Err(unavailable(
            format!("`{}` is not the path of a shell", shell.display()),
            "Give the absolute path of bash.",
        )),
        None => {
            let found = environment::find_program("bash".as_ref(), search_path, Path::new("/"));
            found.ok_or_else(|| {
                let places = search_path.to_string_lossy();
                unavailable(
                    format!("there is no bash in {places}"),
                    "Install bash (the package is called `bash` everywhere), or set PATH to where \
                     it is.",
                )
            })
        }
    }
}
