//! The engine for confined commands: selects the best mechanisms that this machine supports for a policy,
//! and has a supervisor run the commands.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use cantle_command_driver::explain_oom_kill;
use cantle_core::policy::{Limits, Network, Policy, Strictness};
use cantle_core::sandbox::{Enforcement, Exit, SandboxError, SandboxPath};
use cantle_proxy::{Denials, Proxy, ProxySettings};
use cantle_supervisor::wire::Order;
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{BuiltEngine, check_enforced, check_owner};
use crate::confinement::{self, ConfinementRequest, EnforcementState, Plan};
use crate::files::{Root, ViewPaths};
use crate::groups::{Groups, LimitEvents};
use crate::identity::Identity;
use crate::mode::{Mode, is_confined};
use crate::readiness::register;
use crate::settings::LocalSettings;
use crate::storage::Storage;
use crate::supervisor::{SetupOutcome, StartError, Supervisor, connected_socket, message_sockets};

/// Time limit for connecting to a port.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// Pause between two attempts to send an order with descriptors.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Runs the commands of a sandbox.
#[derive(Debug)]
pub(crate) struct Engine {
    supervisor: Supervisor,
    groups: Groups,
    /// Set if the policy allows some hosts.
    proxy: Option<Proxy>,
    /// Whether the sandbox can allocate terminals.
    pub(crate) has_terminals: bool,
    /// Whether it has a loopback interface of its own.
    has_network: bool,
}

/// The state of counters when a command was started.
#[derive(Debug)]
pub(crate) struct StartMark {
    /// Position in the proxy's log, up to which its refusals were taken.
    denials: AtomicU64,
    limit_events: LimitEvents,
}

impl Engine {
    /// Sends an order with descriptors once the supervisor has room for it.
    pub(crate) async fn order(&self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match self.supervisor.orders.send(order, fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(BUSY_PAUSE).await,
                sent => return sent,
            }
        }
    }

    /// Connects to a port of the sandbox's loopback interface.
    pub(crate) async fn connect(&self, port: u16) -> Result<TcpStream, SandboxError> {
        if !self.has_network {
            let message = format!(
                "port {port} can't be connected to: the sandbox shares this machine's network, or has no \
                 network namespace"
            );
            return Err(SandboxError::unsupported(message).with_advice(
                "It needs a policy that restricts the network, on a machine that allows namespaces.",
            ));
        }
        let failed = |error: io::Error| SandboxError::connect_failed(port, &error);
        if self.proxy.is_some() && port == cantle_proxy::PORT {
            return Err(failed(io::ErrorKind::ConnectionRefused.into()));
        }
        let connecting = async {
            match self.connect_to(port, false).await {
                // Servers that listen on `localhost` may have chosen this address.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    self.connect_to(port, true).await.map_err(|_| error)
                }
                connected => connected,
            }
        };
        let connected = timeout(CONNECT_DEADLINE, connecting).await;
        connected
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(failed)
    }

    async fn connect_to(&self, port: u16, v6: bool) -> io::Result<TcpStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (answer, answer_end) = message_sockets(flags)?;
        let order = Order::Connect { port, v6 };
        self.order(order, &[answer_end.as_fd()]).await?;
        drop(answer_end);
        let answer = register(answer, Interest::READABLE)?;
        let received = loop {
            let mut ready = answer.readable().await?;
            if let Ok(received) = ready.try_io(|answer| connected_socket(answer.as_fd())) {
                break received;
            }
        };
        let stream = TcpStream::from_std(received?.into())?;
        stream.writable().await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }

    /// Sends an order to the supervisor as soon as it has room for it, without blocking.
    pub(crate) fn post(&self, order: Order) -> io::Result<()> {
        self.supervisor.orders.post(order)
    }

    /// Whether the sandbox has ended unasked.
    pub(crate) fn is_gone(&self) -> bool {
        self.supervisor.has_ended()
    }

    /// Starts to end everything in the sandbox, without waiting.
    pub(crate) fn begin_end(&self) {
        self.supervisor.begin_end();
    }

    /// Ends everything in the sandbox and waits for it until `deadline`; returns whether it has ended.
    /// Blocks.
    pub(crate) fn end(&self, deadline: Instant) -> bool {
        let ended = self.supervisor.end(deadline);
        self.groups.remove();
        ended
    }

    /// Waits for the supervisor's process. Blocks.
    pub(crate) fn reap(&self) {
        self.supervisor.reap();
    }

    fn denials(&self) -> Option<&Denials> {
        self.proxy.as_ref().map(Proxy::denials)
    }

    /// Returns the current counters.
    pub(crate) fn mark(&self) -> StartMark {
        StartMark {
            denials: AtomicU64::new(self.denials().map_or(0, Denials::mark)),
            limit_events: self.groups.limit_events(),
        }
    }

    /// Takes the notes on hosts that the proxy has refused.
    pub(crate) fn take_refusals(&self, since: &StartMark) -> Vec<String> {
        let denials = self.denials();
        denials.map_or_else(Vec::new, |denials| denials.take(&since.denials))
    }

    /// Explains the end of a command: its status, if a limit was the cause, and notes on what programs
    /// cannot know, such as hosts that the proxy refused.
    pub(crate) fn explain_exit(&self, since: &StartMark, exit: &mut Exit) {
        exit.notes.extend(self.take_refusals(since));
        let events = self.groups.limit_events();
        if events.refused_processes > since.limit_events.refused_processes
            && let Some(limit) = self.groups.limits().processes
        {
            exit.notes.push(format!(
                "A process could not be started at the limit of processes ({limit}): run fewer at once, and \
                 end those in the background."
            ));
        }
        if events.oom_kills > since.limit_events.oom_kills
            && let Some(limit) = self.groups.limits().memory_bytes
        {
            if self.groups.share_memory_limit() {
                // It may have been a process of another sandbox.
                exit.notes.push(format!(
                    "While the command ran, all sandboxes together reached their limit of memory ({limit} bytes), and a \
                     process of one of them was killed: process the data in pieces, or run fewer processes at once."
                ));
            } else {
                explain_oom_kill(exit, limit);
            }
        }
    }
}

/// Builds the best confinement that this machine supports, or explains why the policy can't be enforced.
pub(crate) fn build(
    root: &mut Root,
    settings: &LocalSettings,
    policy: &Policy,
    is_durable: bool,
    is_kept: bool,
) -> Result<BuiltEngine, SandboxError> {
    let mechanisms = settings.mechanisms;
    let workspace = confinement::workspace(settings.workspace.as_deref(), policy)?;
    let identity = Identity::for_commands(policy, mechanisms);
    let defaults = settings.defaults.under(policy);
    let mut limits = policy.limits.with_defaults(&defaults);
    limits.memory_bytes = policy.limits.memory_bytes;
    let request = ConfinementRequest {
        policy,
        limits: &limits,
        identity,
        mechanisms,
        workspace,
    };
    if is_kept {
        check_owner(root, identity.uid)?;
    }
    if identity.is_other {
        root.give_to(Uid::from_raw(identity.uid), Gid::from_raw(identity.gid))?;
    }
    let memory_bytes = settings.defaults.limits().memory_bytes;
    let candidates =
        Storage::candidates(root, policy, mechanisms, is_durable, is_kept, memory_bytes);
    let had_image = root.has_image();
    let mut reasons = Vec::new();
    for (mode, storage) in candidates {
        if let Some(why) = inaccessible(root, identity, mode)? {
            reasons.push(why);
            continue;
        }
        let image = match storage {
            Storage::Image if had_image => Some(root.open_image()?),
            Storage::Image => match root.create_image(&limits) {
                Ok(image) => Some(image),
                Err(error) => {
                    reasons.push(format!("failed to make a disk image: {error}"));
                    continue;
                }
            },
            Storage::Directory | Storage::Memory => None,
        };
        let groups = Groups::create(
            &root.name(),
            mode,
            policy,
            identity,
            mechanisms,
            &settings.defaults,
        );
        let plan = Plan::new((mode, storage), request, root.host_paths(), &groups)?;
        if storage != Storage::Directory {
            root.make_sized()?;
        }
        let image_fd = image.as_ref().map(AsFd::as_fd);
        let started = groups.join(|files| Supervisor::start(&plan.body, image_fd, files));
        match started {
            Ok(started) => {
                return complete(root, request, &defaults, &plan, groups, started, &reasons);
            }
            Err(error) if mode == Mode::Open => return Err(start_error(&plan, &error)),
            Err(error) => {
                reasons.push(failure_reason(&plan, &error));
                if image.is_some() && !had_image {
                    root.remove_image();
                }
            }
        }
    }
    // Only a disk image leads here: otherwise the last candidate returns in any case.
    reasons.push("its files are in a disk image, which takes namespaces and root".to_owned());
    Err(SandboxError::unavailable(reasons.join("; ")))
}

/// Says why commands can't reach the sandbox's directory in a mode.
///
/// # Errors
/// If no other mode is left.
fn inaccessible(
    root: &Root,
    identity: Identity,
    mode: Mode,
) -> Result<Option<String>, SandboxError> {
    if !identity.is_other || mode == Mode::Namespaces {
        return Ok(None);
    }
    let Some(closed) = root.inaccessible_ancestor(identity.uid, identity.gid) else {
        return Ok(None);
    };
    let (user, closed) = (identity.uid, closed.display());
    let why = format!("commands run as user {user}, who can't search `{closed}`");
    if mode == Mode::Open {
        return Err(SandboxError::unavailable(why).with_advice(
            "Keep sandboxes where every user has access (set TMPDIR, or the state directory), or run \
             as an ordinary user.",
        ));
    }
    Ok(Some(why))
}

/// Completes the engine of a sandbox that was started, if that enforces the policy; `reasons` say why it may not.
fn complete(
    root: &mut Root,
    request: ConfinementRequest<'_>,
    defaults: &Limits,
    plan: &Plan,
    groups: Groups,
    (supervisor, outcome): (Supervisor, SetupOutcome),
    reasons: &[String],
) -> Result<BuiltEngine, SandboxError> {
    let policy = request.policy;
    let state = EnforcementState::new(plan, request, &groups, &outcome);
    let report = Enforcement::report_with_defaults(policy, defaults, |field| {
        state.enforced_by(field, policy)
    });
    let enforcement = check_enforced(policy, report, reasons)?;
    if policy.strictness == Strictness::Strict && is_confined(policy) && !state.has_filter {
        let message =
            "the kernel did not install the system call filter, which a strict policy needs";
        return Err(SandboxError::unavailable(message).with_advice(
            "Use a kernel with seccomp, or accept that it is missing (best effort).",
        ));
    }
    let listener = adopt_opened(root, plan, outcome, request)?;
    let proxy = match (listener, &policy.network) {
        (Some(listener), Some(Network::Hosts(hosts))) => {
            let proxy = Proxy::listen(listener, ProxySettings::new(hosts.clone()));
            Some(proxy.map_err(|error| SandboxError::io("failed to start the proxy", error))?)
        }
        _ => None,
    };
    Ok(BuiltEngine {
        isolation: state.isolation(),
        mechanisms: state.names(),
        enforcement,
        limits: request.limits.clone(),
        // As in its `/etc/passwd`.
        user: (plan.mode == Mode::Namespaces).then_some("user"),
        proxy_variables: proxy
            .as_ref()
            .map_or_else(Vec::new, |_| cantle_proxy::variables(cantle_proxy::PORT)),
        engine: Engine {
            supervisor,
            groups,
            proxy,
            has_terminals: state.has_terminals,
            has_network: state.has_network,
        },
    })
}

/// Adopts the descriptors that the steps have opened. Returns the proxy's socket.
fn adopt_opened(
    root: &mut Root,
    plan: &Plan,
    outcome: SetupOutcome,
    request: ConfinementRequest<'_>,
) -> Result<Option<TcpListener>, SandboxError> {
    let mut opened = outcome.opened.into_iter();
    if plan.storage != Storage::Directory {
        let missing = || SandboxError::gone("the supervisor did not pass its files");
        root.move_to(opened.next().ok_or_else(missing)?)?;
    }
    if plan.mode == Mode::Namespaces {
        let paths = ViewPaths {
            work: SandboxPath::from_os(request.workspace)?,
            temporary: SandboxPath::new(confinement::TEMPORARY)?,
        };
        // Not before: where namespaces are forbidden, no directory has another path.
        let roots = confinement::roots_within(request.policy, request.workspace)?;
        root.set_view_paths(paths, &roots);
    }
    Ok(opened.next().map(TcpListener::from))
}

fn failure_reason(plan: &Plan, error: &StartError) -> String {
    match error {
        StartError::Start(error) => format!("failed to start the supervisor: {error}"),
        StartError::Image(error) => format!("failed to mount the disk image: {error}"),
        StartError::Step(None, error) => {
            // The kernel uses general error numbers for these.
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

fn start_error(plan: &Plan, error: &StartError) -> SandboxError {
    SandboxError::unavailable(failure_reason(plan, error)).with_advice(start_advice(error))
}

fn start_advice(error: &StartError) -> &'static str {
    let (StartError::Start(cause) | StartError::Step(_, cause) | StartError::Image(cause)) = error;
    match Errno::from_io_error(cause) {
        Some(Errno::TOOMANYREFS) => {
            "Programs of this user, perhaps in another sandbox, have sent each other too many open \
             files that were not received. End them."
        }
        Some(Errno::MFILE) => "Raise the limit of open files (`ulimit -n`), or close sandboxes.",
        _ => {
            "It needs Linux 5.6 or newer with `/proc`, and a container that lets programs be started \
             from memory."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_open_files_is_not_blamed_on_the_kernel() {
        let advice = start_advice(&StartError::Start(Errno::MFILE.into()));
        assert!(advice.contains("ulimit -n"), "{advice}");
        let advice = start_advice(&StartError::Step(None, Errno::PERM.into()));
        assert!(advice.contains("Linux 5.6"), "{advice}");
    }
}
