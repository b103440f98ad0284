//! Opening a sandbox: its directory, the best walls this machine has for the policy, and the report
//! of what they enforce.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    EnforcedBy, Enforcement, SandboxContext, SandboxError, SandboxErrorKind, SandboxInfo,
    SandboxPath,
};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

use crate::backend::{LocalBackend, Walls};
use crate::confinement::{self, Identity, Mode, Plan, Standing};
use crate::environment::{self, Environment};
use crate::files::{Root, Seen};
use crate::limits::OwnLimits;
use crate::sandbox::{LocalSandbox, Shared};
use crate::supervisor::{Built, StartError, Supervisor};

/// Opens a sandbox; the socket is where its commands look for the proxy. Blocks.
pub(crate) fn open(
    backend: &LocalBackend,
    cx: &SandboxContext,
) -> Result<(LocalSandbox, Option<TcpListener>), SandboxError> {
    let search_path = environment::absolute_directories(backend.search_path());
    let shell = find_shell(backend.shell(), &search_path)?;
    environment::check(&cx.policy.environment)?;
    let mut root = Root::create(backend.parent(), &format!("cantle-{}-", cx.run))?;
    let opened = build(&mut root, &cx.policy, backend.walls());
    let (supervisor, standing, enforcement, proxy) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // What went wrong is what there is to say.
            let _ = root.delete();
            return Err(error);
        }
    };
    let limits = OwnLimits::new(&cx.policy.limits, &enforcement);
    let seen = root.seen().clone();
    let environment = Environment::new(search_path, &shell, &seen, &standing, &cx.policy);
    let mut info = SandboxInfo::new("local", root.name(), seen.work);
    info.isolation = standing.isolation();
    info.walls = standing.names();
    info.enforcement = enforcement;
    let has_terminals = standing.terminals;
    let shared = Shared::new(
        info,
        root,
        environment,
        shell,
        limits,
        has_terminals,
        supervisor,
    );
    Ok((LocalSandbox::new(shared), proxy))
}

/// What stands, what it enforces, and the socket for the proxy.
type Opened = (Supervisor, Standing, Vec<Enforcement>, Option<TcpListener>);

/// Builds the best walls that this machine has, or says why the policy can't be enforced.
fn build(root: &mut Root, policy: &Policy, walls: Walls) -> Result<Opened, SandboxError> {
    let identity = Identity::for_commands(policy, walls);
    if identity.is_other {
        root.give_to(Uid::from_raw(identity.uid), Gid::from_raw(identity.gid))?;
    }
    let mut reasons = Vec::new();
    for mode in Mode::candidates(policy, walls) {
        let plan = Plan::new(mode, policy, root.places(), identity, walls)?;
        if plan.has_storage {
            root.make_sized()?;
        }
        let (supervisor, built) = match Supervisor::start(&plan.body, &[]) {
            Ok(started) => started,
            Err(error) if mode == Mode::Open => return Err(not_started(&plan, error)),
            Err(error) => {
                reasons.push(not_built(&plan, &error));
                continue;
            }
        };
        let answers = (built.missing, built.landlock);
        let standing = Standing::new(&plan, policy, identity, walls, answers);
        let enforcement = report(policy, &standing, &reasons)?;
        let proxy = settle(root, &plan, built)?;
        return Ok((supervisor, standing, enforcement, proxy));
    }
    // The last candidate is tried in any case.
    Err(SandboxError::new(
        SandboxErrorKind::Unavailable,
        reasons.join("; "),
    ))
}

/// Tells the files where commands see them. Returns the socket for the proxy.
fn settle(root: &mut Root, plan: &Plan, built: Built) -> Result<Option<TcpListener>, SandboxError> {
    let mut opened = built.opened.into_iter();
    if plan.has_storage {
        let missing = || SandboxError::gone("the sandbox did not hand out its files");
        root.move_to(opened.next().ok_or_else(missing)?)?;
    }
    if plan.mode == Mode::Namespaces {
        root.see(Seen {
            work: SandboxPath::new(confinement::WORKSPACE)?,
            temporary: SandboxPath::new(confinement::TEMPORARY)?,
        });
    }
    Ok(opened.next().map(TcpListener::from))
}

/// What enforces each field that the policy sets.
fn report(
    policy: &Policy,
    standing: &Standing,
    reasons: &[String],
) -> Result<Vec<Enforcement>, SandboxError> {
    let report = Enforcement::report(policy, |field| standing.enforced_by(field, policy));
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

fn not_built(plan: &Plan, error: &StartError) -> String {
    match error {
        StartError::Start(error) => format!("failed to start the supervisor: {error}"),
        StartError::Step(None, error) => {
            // The kernel has no error of its own for these.
            let why = match Errno::from_io_error(error) {
                Some(Errno::NOSPC) => " (`user.max_user_namespaces` is used up, or 0)",
                Some(Errno::PERM | Errno::ACCESS) => {
                    " (a container or a setting of the system forbids them)"
                }
                _ => "",
            };
            format!("no new namespaces{why}: {error}")
        }
        StartError::Step(Some(step), error) => {
            let name = plan.names.get(*step).map_or("finish", String::as_str);
            format!("failed to {name}: {error}")
        }
    }
}

fn not_started(plan: &Plan, error: StartError) -> SandboxError {
    let message = not_built(plan, &error);
    let (StartError::Start(source) | StartError::Step(_, source)) = error;
    SandboxError::new(SandboxErrorKind::Unavailable, message)
        .with_source(source)
        .with_advice(
            "It needs Linux 5.6 or newer with `/proc`, and a container that lets programs be \
             started from memory.",
        )
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
