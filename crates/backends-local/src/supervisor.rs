//! The supervisor of a sandbox, as its owner sees it: a socket for orders and a process to wait for.
//!
//! It is started from memory, by `posix_spawn`, so that neither the size of our process nor what
//! becomes of its files matters.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cantle_supervisor::PROGRAM;
use cantle_supervisor::wire::{Order, READY_BYTES, REPORT_BYTES, Ready, Report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};

/// The most descriptors one message carries.
const MOST_FDS: usize = 8;

/// How long building a sandbox may take.
const SETUP_DEADLINE: Duration = Duration::from_secs(20);

/// How long a sandbox that never stood may take to end.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// A running supervisor.
#[derive(Debug)]
pub(crate) struct Supervisor {
    control: OwnedFd,
    guard: Mutex<Child>,
    /// At its end when everything in the sandbox has ended.
    presence: OwnedFd,
}

/// What a supervisor answers once its sandbox stands.
#[derive(Debug)]
pub(crate) struct Built {
    /// One bit for each wall that could not be built.
    pub(crate) missing: u64,
    /// Landlock's version; 0 where it isn't used.
    pub(crate) landlock: u32,
    /// The descriptors that the steps asked for.
    pub(crate) opened: Vec<OwnedFd>,
}

/// Why there is no sandbox.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The supervisor could not be started, or was gone before it answered.
    Start(io::Error),
    /// The kernel refused something: the number of the step, or none where it was making the
    /// namespaces.
    Step(Option<usize>, io::Error),
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Start(error)
    }
}

impl From<Errno> for StartError {
    fn from(error: Errno) -> Self {
        Self::Start(error.into())
    }
}

impl Supervisor {
    /// Starts a supervisor and has it do what `body` says; it joins the control groups whose files
    /// are `groups`. Blocks.
    pub(crate) fn start(body: &[u8], groups: &[File]) -> Result<(Self, Built), StartError> {
        let (control, theirs) = message_sockets(SocketFlags::CLOEXEC)?;
        let program = program()?;
        // The child looks itself up: its descriptors are copies of ours.
        let path = format!("/proc/self/fd/{}", program.as_fd().as_raw_fd());
        let (presence, their_presence) = pipe_with(PipeFlags::CLOEXEC)?;
        let guard = Command::new(path)
            .arg0("cantle-supervisor")
            .env_clear()
            .stdin(theirs)
            .stdout(their_presence)
            .stderr(Stdio::null())
            .spawn()?;
        let supervisor = Self {
            control,
            guard: Mutex::new(guard),
            presence,
        };
        let body = sealed(body)?;
        let mut fds = vec![body.as_fd()];
        fds.extend(groups.iter().map(AsFd::as_fd));
        supervisor.order(Order::Setup, &fds)?;
        supervisor.built().map(|built| (supervisor, built))
    }

    fn built(&self) -> Result<Built, StartError> {
        if !wait(
            &self.control,
            PollFlags::IN,
            Instant::now() + SETUP_DEADLINE,
        ) {
            let message = "building the sandbox takes too long";
            return Err(io::Error::new(io::ErrorKind::TimedOut, message).into());
        }
        let mut message = [0; READY_BYTES];
        let (length, opened) = receive(self.control.as_fd(), &mut message)?;
        match Ready::decode(message.get(..length).unwrap_or_default()) {
            Some(Ready::Ready { missing, landlock }) => Ok(Built {
                missing,
                landlock,
                opened,
            }),
            Some(Ready::Failed { step, errno }) => {
                let step = (step != Ready::BEFORE_STEPS).then_some(step as usize);
                Err(StartError::Step(step, io::Error::from_raw_os_error(errno)))
            }
            None => {
                let message = "the supervisor ended before it answered";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, message).into())
            }
        }
    }

    /// Sends an order; does not block.
    ///
    /// # Errors
    /// `BrokenPipe` or `ConnectionReset` where the sandbox is gone, `WouldBlock` where it doesn't
    /// take orders.
    pub(crate) fn order(&self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let message = order.encode();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(
            &self.control,
            &[IoSlice::new(&message)],
            &mut ancillary,
            flags,
        )?;
        Ok(())
    }

    /// The same, and blocks until there is room for it, at the longest until `deadline`.
    pub(crate) fn order_by(&self, order: Order, deadline: Instant) -> io::Result<()> {
        loop {
            match self.order(order, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !wait(&self.control, PollFlags::OUT, deadline) {
                        return Err(error);
                    }
                }
                sent => return sent,
            }
        }
    }

    /// Whether the sandbox has ended, with everything in it.
    pub(crate) fn has_ended(&self) -> bool {
        self.wait_until(Instant::now())
    }

    /// Ends the sandbox and waits until nothing of it is left, at the longest until `deadline`;
    /// whether it has. Blocks.
    pub(crate) fn end(&self, deadline: Instant) -> bool {
        // It ends where its orders do.
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let ended = self.wait_until(deadline);
        if !ended {
            // With namespaces of its own, everything dies with it.
            let _ = self.guard().kill();
        }
        ended
    }

    /// Lets go of the supervisor's process, which takes the mounts down meanwhile. Blocks.
    pub(crate) fn reap(&self) {
        // Somebody else in our process may have done so.
        let _ = self.guard().wait();
    }

    fn guard(&self) -> MutexGuard<'_, Child> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        wait(&self.presence, PollFlags::IN, deadline)
    }
}

/// Waits until something is ready, at the longest until `deadline`; whether it is.
fn wait(fd: &OwnedFd, what: PollFlags, deadline: Instant) -> bool {
    let mut polled = [PollFd::new(fd, what)];
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
        // Nothing to do where it was closed; where it never stood, it ends by itself, or is stuck.
        self.end(Instant::now() + DROP_DEADLINE);
        self.reap();
    }
}

/// The supervisor's program, in memory.
fn program() -> io::Result<&'static OwnedFd> {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file);
    }
    let file = sealed(PROGRAM)?;
    Ok(FILE.get_or_init(|| file))
}

/// A file in memory that nobody can change any more.
pub(crate) fn sealed(content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create("cantle", flags | MemfdFlags::EXEC) {
        // Linux before 6.3 doesn't ask.
        Err(Errno::INVAL) => memfd_create("cantle", flags)?,
        file => file?,
    };
    let mut file = File::from(file);
    file.write_all(content)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Two sockets for messages.
pub(crate) fn message_sockets(flags: SocketFlags) -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Takes a report from a command's socket, with the terminal that comes along; `None` where the
/// command and all it started are gone. `WouldBlock` where there is none yet.
pub(crate) fn report(socket: BorrowedFd<'_>) -> io::Result<Option<(Report, Option<OwnedFd>)>> {
    let mut message = [0; REPORT_BYTES];
    let (length, fds) = receive(socket, &mut message)?;
    let report = Report::decode(message.get(..length).unwrap_or_default());
    Ok(report.map(|report| (report, fds.into_iter().next())))
}

fn receive(socket: BorrowedFd<'_>, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(message)];
        match recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // It was killed with something of ours unread.
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
