//! Running commands behind walls: the best ones that this machine has for a policy, and a supervisor
//! that starts what runs behind them.

use std::io;
use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use cantle_core::policy::{Network, Policy, PolicyField};
use cantle_core::sandbox::{Enforcement, ExitStatus, SandboxError, SandboxErrorKind, SandboxPath};
use cantle_supervisor::wire::Order;
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

use crate::backend::LocalBackend;
use crate::confinement::{self, Identity, Mode, PROXY_PORT, Plan, Standing, Wanted};
use crate::files::{Root, Seen};
use crate::groups::{Groups, Reached};
use crate::open;
use crate::proxy::{Denials, Proxy, Settings};
use crate::supervisor::{Built, StartError, Supervisor};

/// How long an order may wait for those before it.
const ORDER_DEADLINE: Duration = Duration::from_secs(10);

/// How a command ends that somebody kills, and how a shell that ran it.
const KILLED: i32 = 9;
const KILLED_IN_SHELL: i32 = 128 + KILLED;

/// What runs the commands of a sandbox.
#[derive(Debug)]
pub(crate) struct Engine {
    supervisor: Supervisor,
    /// The limits of all processes together.
    groups: Groups,
    /// The way out, where some hosts may be reached.
    proxy: Option<Proxy>,
    /// Whether the sandbox can make terminals of its own.
    pub(crate) has_terminals: bool,
}

/// How things were when a command was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// Where the proxy's log was.
    denials: u64,
    /// How often limits of all processes together had been reached.
    reached: Reached,
}

impl Engine {
    /// Sends an order to the supervisor; does not block.
    pub(crate) fn order(&self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.supervisor.order(order, fds)
    }

    /// The same, and where the supervisor has many to take, waits until this is one of them.
    pub(crate) fn order_surely(&self, order: Order) -> io::Result<()> {
        self.supervisor
            .order_by(order, Instant::now() + ORDER_DEADLINE)
    }

    /// Whether everything in the sandbox has ended without our asking.
    pub(crate) fn is_gone(&self) -> bool {
        self.supervisor.has_ended()
    }

    /// Ends everything in the sandbox, and waits for that at the longest until `deadline`; whether it
    /// has ended. Blocks.
    pub(crate) fn end(&self, deadline: Instant) -> bool {
        let ended = self.supervisor.end(deadline);
        self.groups.remove();
        ended
    }

    /// Waits for the last of it, which nobody else needs to wait for. Blocks.
    pub(crate) fn reap(&self) {
        self.supervisor.reap();
    }

    fn denials(&self) -> Option<&Denials> {
        self.proxy.as_ref().map(Proxy::denials)
    }

    /// How things are.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            denials: self.denials().map_or(0, Denials::mark),
            reached: self.groups.reached(),
        }
    }

    /// How a command that was started at the mark really ended, and what is to be said of it: programs
    /// know nothing of what the proxy refused them, or of why the kernel killed them.
    pub(crate) fn told(&self, since: Mark, status: ExitStatus) -> (ExitStatus, Vec<String>) {
        let mut notes = Vec::new();
        if let Some(denials) = self.denials() {
            let denied = denials.since(since.denials);
            notes.extend(denied.iter().map(ToString::to_string));
        }
        let reached = self.groups.reached();
        let refused = reached.processes > since.reached.processes;
        if let (true, Some(limit)) = (refused, self.groups.processes()) {
            notes.push(format!(
                "A process could not be started at the limit of processes ({limit}): run fewer at once, and \
                 end those in the background."
            ));
        }
        let killed = reached.memory > since.reached.memory;
        let (true, Some(limit)) = (killed, self.groups.memory_bytes()) else {
            return (status, notes);
        };
        match status {
            // As a shell reports it of what it ran last.
            ExitStatus::Signal(KILLED) | ExitStatus::Code(KILLED_IN_SHELL) => {
                let field = PolicyField::Memory;
                (ExitStatus::LimitReached { field, limit }, notes)
            }
            // It may be told already, or something else went on.
            _ => {
                notes.push(format!(
                    "A process was killed at the limit of memory for everything that runs ({limit} bytes): \
                     work on the data in pieces, or run fewer processes at once."
                ));
                (status, notes)
            }
        }
    }
}

/// Builds the best walls that this machine has, or says why the policy can't be enforced.
pub(crate) fn build(
    root: &mut Root,
    backend: &LocalBackend,
    policy: &Policy,
    is_durable: bool,
    is_kept: bool,
) -> Result<open::Built, SandboxError> {
    let walls = backend.walls();
    let workspace = confinement::workspace(backend.workspace())?;
    let identity = Identity::for_commands(policy, walls);
    let wanted = Wanted {
        policy,
        identity,
        walls,
        workspace,
        is_durable,
    };
    if is_kept {
        open::check_owner(root, identity.uid)?;
    }
    if identity.is_other {
        root.give_to(Uid::from_raw(identity.uid), Gid::from_raw(identity.gid))?;
    }
    let mut reasons = Vec::new();
    for mode in Mode::candidates(policy, walls) {
        if let (true, Some(closed)) = (
            identity.is_other && mode != Mode::Namespaces,
            root.closed_to(identity),
        ) {
            let why = format!(
                "commands run as user {}, who can't go through `{}`",
                identity.uid,
                closed.display()
            );
            if mode == Mode::Open {
                return Err(SandboxError::new(SandboxErrorKind::Unavailable, why).with_advice(
                    "Keep sandboxes where every user may go (set TMPDIR, or the state directory), or run \
                     as an ordinary user.",
                ));
            }
            reasons.push(why);
            continue;
        }
        let groups = Groups::make(&root.name(), mode, policy, identity, walls);
        let plan = Plan::new(mode, wanted, root.places(), &groups)?;
        if plan.has_storage {
            root.make_sized()?;
        }
        let entrances = groups.entrances().unwrap_or_default();
        let (supervisor, built) = match Supervisor::start(&plan.body, &entrances) {
            Ok(started) => started,
            Err(error) if mode == Mode::Open => return Err(not_started(&plan, error)),
            Err(error) => {
                reasons.push(not_built(&plan, &error));
                continue;
            }
        };
        let answers = (built.missing, built.landlock);
        let standing = Standing::new(&plan, wanted, &groups, answers);
        let report = Enforcement::report(policy, |field| standing.enforced_by(field, policy));
        let enforcement = open::check_enforced(policy, report, &reasons)?;
        let listener = settle(root, &plan, built, workspace)?;
        let proxy = match (listener, &policy.network) {
            (Some(listener), Some(Network::Hosts(hosts))) => {
                let proxy = Proxy::start(listener, Settings::new(hosts.clone()));
                Some(proxy.map_err(|error| SandboxError::io("failed to start the proxy", error))?)
            }
            _ => None,
        };
        return Ok(open::Built {
            isolation: standing.isolation(),
            walls: standing.names(),
            enforcement,
            // As its `/etc/passwd` says.
            user: (mode == Mode::Namespaces).then_some("user"),
            proxy_port: proxy.as_ref().map(|_| PROXY_PORT),
            engine: Engine {
                supervisor,
                groups,
                proxy,
                has_terminals: standing.terminals,
            },
        });
    }
    // The last candidate is tried in any case.
    Err(SandboxError::new(
        SandboxErrorKind::Unavailable,
        reasons.join("; "),
    ))
}

/// Tells the files where commands see them. Returns the socket for the proxy.
fn settle(
    root: &mut Root,
    plan: &Plan,
    built: Built,
    workspace: &Path,
) -> Result<Option<TcpListener>, SandboxError> {
    let mut opened = built.opened.into_iter();
    if plan.has_storage {
        let missing = || SandboxError::gone("the sandbox did not hand out its files");
        root.move_to(opened.next().ok_or_else(missing)?)?;
    }
    if plan.mode == Mode::Namespaces {
        root.see(Seen {
            work: SandboxPath::from_os(workspace)?,
            temporary: SandboxPath::new(confinement::TEMPORARY)?,
        });
    }
    Ok(opened.next().map(TcpListener::from))
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
