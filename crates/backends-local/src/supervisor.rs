//! The owner's side of a supervisor: its process and control socket (`orders`).
//!
//! It is started from memory by `posix_spawn`, so that neither the size of this process nor changes to its
//! executable file matter.

use std::fs::File;
use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cantle_supervisor::PROGRAM;
use cantle_supervisor::wire::{Order, REPORT_BYTES, Report, SETUP_REPLY_BYTES, SetupReply};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

mod orders;

use self::orders::OrderQueue;

/// Maximum number of descriptors in a message.
const MAX_FDS: usize = 8;

/// Time in which a sandbox must be built.
const SETUP_DEADLINE: Duration = Duration::from_secs(20);

/// Time in which a sandbox that was never ready must end.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// A running supervisor.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) orders: Arc<OrderQueue>,
    guard: Mutex<Child>,
    /// The read end of a pipe that closes when everything in the sandbox has ended.
    lifetime: OwnedFd,
}

/// The supervisor's answer once its sandbox is ready.
#[derive(Debug)]
pub(crate) struct SetupOutcome {
    /// One bit for each optional step that failed.
    pub(crate) missing: u64,
    /// The Landlock ABI version in force; 0 for none.
    pub(crate) landlock: u32,
    /// The descriptors opened by the steps.
    pub(crate) opened: Vec<OwnedFd>,
}

/// The reason why a sandbox could not be built.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The supervisor could not be started, or ended before it answered.
    Start(io::Error),
    /// The kernel refused a step: its number, or `None` for the creation of the namespaces.
    Step(Option<usize>, io::Error),
    /// The kernel refused to mount the disk image.
    Image(io::Error),
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Start(error)
    }
}

impl Supervisor {
    /// Starts a supervisor, which mounts the disk image, joins the control groups `groups` (see [`Order::Setup`]) and
    /// performs the steps of `body`. Blocks.
    pub(crate) fn start(
        body: &[u8],
        image: Option<BorrowedFd<'_>>,
        groups: &[File],
    ) -> Result<(Self, SetupOutcome), StartError> {
        let (control, supervisor_control) = message_sockets(SocketFlags::CLOEXEC)?;
        let program = program()?;
        // Resolved in the child, whose descriptors are copies.
        let path = format!("/proc/self/fd/{}", program.as_fd().as_raw_fd());
        let (lifetime, supervisor_lifetime) = io::pipe()?;
        let guard = Command::new(path)
            .arg0("cantle-supervisor")
            .env_clear()
            .stdin(supervisor_control)
            .stdout(supervisor_lifetime)
            .stderr(Stdio::null())
            .spawn()?;
        let supervisor = Self {
            orders: Arc::new(OrderQueue::new(control)),
            guard: Mutex::new(guard),
            lifetime: lifetime.into(),
        };
        let body = sealed(body)?;
        let mut fds = vec![body.as_fd()];
        fds.extend(image);
        fds.extend(groups.iter().map(AsFd::as_fd));
        supervisor.orders.send(Order::Setup, &fds)?;
        let outcome = supervisor.setup_outcome()?;
        Ok((supervisor, outcome))
    }

    fn setup_outcome(&self) -> Result<SetupOutcome, StartError> {
        if !wait(
            self.orders.control(),
            PollFlags::IN,
            Instant::now() + SETUP_DEADLINE,
        ) {
            let message = "building the sandbox takes too long";
            return Err(io::Error::new(io::ErrorKind::TimedOut, message).into());
        }
        let mut message = [0; SETUP_REPLY_BYTES];
        let (length, opened) = receive(self.orders.control(), &mut message)?;
        match SetupReply::decode(message.get(..length).unwrap_or_default()) {
            Some(SetupReply::Ready { missing, landlock }) => Ok(SetupOutcome {
                missing,
                landlock,
                opened,
            }),
            Some(SetupReply::Failed { step, errno }) if step == SetupReply::IMAGE => {
                Err(StartError::Image(io::Error::from_raw_os_error(errno)))
            }
            Some(SetupReply::Failed { step, errno }) => {
                let step = (step != SetupReply::BEFORE_STEPS).then_some(step as usize);
                Err(StartError::Step(step, io::Error::from_raw_os_error(errno)))
            }
            None => {
                let message = "the supervisor ended before it answered";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, message).into())
            }
        }
    }

    /// Whether init has ended, before which no process in the sandbox is killed by its end.
    pub(crate) fn has_ended(&self) -> bool {
        let nothing = PollFlags::empty();
        // Only init has the other end.
        wait(self.orders.control(), nothing, Instant::now()) || self.wait_until(Instant::now())
    }

    /// Ends the sandbox and waits until nothing of it is left or the deadline passes; returns whether it
    /// has ended. Blocks.
    pub(crate) fn end(&self, deadline: Instant) -> bool {
        self.begin_end();
        let ended = self.wait_until(deadline);
        if !ended {
            // With a PID namespace, everything dies with it.
            let _ = self.guard.lock().kill();
        }
        ended
    }

    /// Starts to end the sandbox, without waiting.
    pub(crate) fn begin_end(&self) {
        // Init exits at the end of its control socket.
        let _ = rustix::net::shutdown(self.orders.control(), rustix::net::Shutdown::Both);
    }

    /// Reaps the supervisor's process, whose exit unmounts the sandbox's file systems. Blocks.
    pub(crate) fn reap(&self) {
        // Other code of this process may have reaped it.
        let _ = self.guard.lock().wait();
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        wait(&self.lifetime, PollFlags::IN, deadline)
    }
}

/// Waits until a descriptor is ready or the deadline passes; returns whether it is ready.
fn wait(fd: impl AsFd, events: PollFlags, deadline: Instant) -> bool {
    let mut polled = [PollFd::new(&fd, events)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        match poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            answer => return answer.is_ok_and(|ready| ready > 0),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Nothing to do if it was closed. One that was never ready ends by itself, or is stuck.
        self.end(Instant::now() + DROP_DEADLINE);
        self.reap();
    }
}

/// Returns a memory file with the supervisor's program.
fn program() -> io::Result<&'static OwnedFd> {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file);
    }
    let file = sealed(PROGRAM)?;
    Ok(FILE.get_or_init(|| file))
}

/// Creates an immutable memory file.
pub(crate) fn sealed(content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create("cantle", flags | MemfdFlags::EXEC) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => memfd_create("cantle", flags)?,
        file => file?,
    };
    let mut file = File::from(file);
    file.write_all(content)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Creates a pair of sockets for messages.
pub(crate) fn message_sockets(flags: SocketFlags) -> io::Result<(OwnedFd, OwnedFd)> {
    let sockets = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    Ok(sockets?)
}

/// Receives a report from a command's socket, with the terminal that accompanies it. Returns `None` when
/// no process of the command is left, `WouldBlock` if there is no report yet.
pub(crate) fn report(socket: BorrowedFd<'_>) -> io::Result<Option<(Report, Option<OwnedFd>)>> {
    let mut message = [0; REPORT_BYTES];
    let (length, fds) = receive(socket, &mut message)?;
    let report = Report::decode(message.get(..length).unwrap_or_default());
    Ok(report.map(|report| (report, fds.into_iter().next())))
}

/// Receives the answer to [`Order::Connect`]; `WouldBlock` if there is none yet.
pub(crate) fn connected_socket(answer: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut errno = [0; size_of::<i32>()];
    let (length, sockets) = receive(answer, &mut errno)?;
    match (i32::from_le_bytes(errno), sockets.into_iter().next()) {
        (0, Some(socket)) if length == errno.len() => Ok(socket),
        (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        (errno, _) => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn receive(socket: BorrowedFd<'_>, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(message)];
        match recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // The peer was killed with unread messages.
            Err(Errno::CONNRESET) => return Ok((0, Vec::new())),
            received => break received?,
        }
    };
    let fds = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    Ok((received.bytes, fds.collect()))
}
