//! The relay: stands between a stream and the sandbox's init, where there are no sockets.
//!
//! It reads [requests](crate::frames) from its input and writes answers to its output; it makes the
//! pipes of commands and has init start them. It is the first process of a container, or one that
//! was started in a container that is there. Its input ends with its owner, however that one ends;
//! then everything that was started here is killed.

mod commands;
mod incoming;
mod outgoing;

use self::commands::{Command, Commands, Connected, Polled};
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use crate::files;
use crate::frames::{Answer, Channels, Lane, Request};
use crate::init;
use crate::sys::{self, EAGAIN, EINVAL, Errno, Fd, Forked, PollFd};
use crate::tree::Tree;
use crate::wire::{ORDER_BYTES, Order, READY_BYTES, REPORT_BYTES, Reader, Report, Stage};

const INPUT: Fd = Fd(0);
const OUTPUT: Fd = Fd(1);
/// Where there is no descriptor.
const NONE: Fd = Fd(-1);

/// Bytes that are read where nothing large is on its way.
const LITTLE: usize = 4096;

/// What the pipe of the input is enlarged to.
const INPUT_PIPE: usize = 256 * 1024;

/// How long init may take to kill what it has started.
const INIT_DEADLINE_MS: u32 = 2000;

/// Serves until the owner is gone; then nothing is left.
pub fn run() -> i32 {
    sys::default_signals();
    sys::let_children_go();
    // An owner who is gone is seen by the error.
    sys::set_signal_mask(1 << (sys::SIGPIPE - 1));
    let served = start().and_then(|started| {
        let Some(mut relay) = started else {
            return Ok(());
        };
        let served = relay.serve();
        // With the first process of a container, the kernel kills all that is in it.
        if sys::getpid() != 1 {
            relay.end();
        }
        served
    });
    i32::from(served.is_err())
}

/// Has init build what the owner says; none where there is no owner.
fn start() -> sys::Result<Option<Relay>> {
    if sys::close_range(3, u32::MAX, false).is_err() {
        // Linux before 5.9.
        (3..4096).map(Fd).for_each(sys::close);
    }
    sys::set_name(c"cantle-relay");
    // No signals from somebody's terminal; it may be the head of a session already.
    let _ = sys::setsid();
    sys::chdir(c"/")?;
    // The modes in the steps are meant as they are; init has another mask for commands.
    sys::umask(0);
    // What commands leave when init is killed comes to us; nobody of our user looks into us.
    sys::adopt_orphans()?;
    sys::set_dumpable(false)?;
    sys::set_nonblocking(OUTPUT)?;
    let mut incoming = Incoming::new()?;
    let mut outgoing = Outgoing::new()?;
    let length = match incoming.request()? {
        Some(Request::Setup { length }) => length,
        Some(_) => return Err(EINVAL),
        // The owner has changed its mind, or is none.
        None => return Ok(None),
    };
    let body = incoming.body(length)?;
    let (init, control) = start_init(body)?;
    let mut ready = [0; READY_BYTES];
    if sys::receive(control, &mut ready)?.length == 0 {
        return Err(sys::EIO);
    }
    let length = ready.len() as u64;
    outgoing.say(Answer::Ready { length }, &ready)?;
    outgoing.flush()?;
    sys::allow_most_descriptors();
    sys::enlarge_pipe(INPUT, INPUT_PIPE);
    Ok(Some(Relay {
        incoming,
        outgoing,
        init,
        control,
        commands: Commands::new(),
    }))
}

/// Forks init, which serves at the other end of the socket that is returned with its id.
fn start_init(body: Fd) -> sys::Result<(i32, Fd)> {
    let steps = sys::map_file(body, sys::file_length(body)?)?;
    sys::close(body);
    let (control, theirs) = sys::message_sockets()?;
    match sys::fork(0)? {
        Forked::Parent { child } => {
            sys::close(theirs);
            Ok((child, control))
        }
        Forked::Child => {
            sys::close(control);
            sys::default_signals();
            // The numbers must not become something else's.
            let flags = sys::O_RDWR;
            let null =
                sys::openat(sys::AT_FDCWD, c"/dev/null", flags, 0).or_else(|_| sys::nothing());
            for standard in [INPUT, OUTPUT, Fd(2)] {
                if null.and_then(|null| sys::dup_to(null, standard)).is_err() {
                    sys::exit(1);
                }
            }
            null.into_iter().for_each(sys::close);
            init::run(theirs, Reader::new(steps), &[], false)
        }
    }
}

struct Relay {
    incoming: Incoming,
    outgoing: Outgoing,
    init: i32,
    /// To init.
    control: Fd,
    commands: Commands,
}

/// What a request brings with it is not all there yet.
#[derive(Clone, Copy)]
enum Awaited {
    Nothing,
    /// The body of a command.
    Body {
        id: u32,
        channels: Channels,
        file: Fd,
        left: u64,
    },
    /// Input for a command.
    Input {
        id: u32,
        left: u64,
    },
}

impl Awaited {
    /// How much to read: input is moved rather than read, as far as its command takes it.
    fn most(self) -> usize {
        match self {
            Self::Nothing => LITTLE,
            Self::Body { .. } => incoming::BUFFER_BYTES,
            Self::Input { left, .. } => usize::try_from(left)
                .map_or(incoming::BUFFER_BYTES, |left| left.saturating_add(LITTLE)),
        }
    }
}

impl Relay {
    /// Returns when the owner is gone.
    fn serve(&mut self) -> sys::Result<()> {
        let mut awaited = Awaited::Nothing;
        loop {
            let mut stream = [
                PollFd::readable(INPUT),
                PollFd::writable(if self.outgoing.is_empty() {
                    NONE
                } else {
                    OUTPUT
                }),
                PollFd::readable(self.control),
            ];
            let takes_output = self.outgoing.is_empty();
            let polled = self.commands.poll(&mut stream, takes_output)?;
            let [input, output, control] = stream.map(|polled| polled.is_ready());
            if control {
                // It says nothing any more: it has ended, and the commands with it.
                return Err(sys::EIO);
            }
            if output {
                self.outgoing.flush()?;
            }
            if input && !self.pass_input(&mut awaited)? {
                if self.incoming.fill(awaited.most())? == 0 {
                    return Ok(());
                }
                while self.advance(&mut awaited)? {}
            }
            for at in 0..polled {
                self.attend(at)?;
            }
            self.outgoing.flush()?;
        }
    }

    /// Waits until nothing is left of what was started here.
    fn end(&self) {
        // Init kills all that it has started. Were it killed before, and we now, something could
        // stay.
        sys::close(self.control);
        for _ in 0..INIT_DEADLINE_MS {
            if sys::kill(self.init, 0).is_err() {
                break;
            }
            sys::pause_us(1000);
        }
        loop {
            Tree::below(sys::getpid()).kill(false);
            match sys::wait(false, false) {
                Ok(_) => sys::pause_us(500),
                Err(_) => break,
            }
        }
    }

    /// Moves input from the stream to its command without reading it; whether that went. The stream has
    /// something, so where it doesn't go the command's pipe is full or closed.
    fn pass_input(&mut self, awaited: &mut Awaited) -> sys::Result<bool> {
        let Awaited::Input { id, left } = awaited else {
            return Ok(false);
        };
        if *left < LITTLE as u64 || !self.incoming.is_empty() {
            return Ok(false);
        }
        let Some(command) = self.commands.find(*id) else {
            return Ok(false);
        };
        let moved = command.move_input(INPUT, *left, &mut self.outgoing)?;
        *left -= moved;
        if *left == 0 {
            *awaited = Awaited::Nothing;
        }
        Ok(moved > 0)
    }

    /// Takes the next of what has come; whether there was enough for something.
    fn advance(&mut self, awaited: &mut Awaited) -> sys::Result<bool> {
        match *awaited {
            Awaited::Nothing => {
                let Some(request) = self.incoming.header()? else {
                    return Ok(false);
                };
                *awaited = self.obey(request)?;
            }
            Awaited::Body {
                id,
                channels,
                file,
                left,
            } => {
                let piece = self.incoming.payload(left);
                if piece.is_empty() {
                    return Ok(false);
                }
                write_all(file, piece)?;
                let left = left - piece.len() as u64;
                *awaited = Awaited::Body {
                    id,
                    channels,
                    file,
                    left,
                };
                if left == 0 {
                    *awaited = Awaited::Nothing;
                    self.start(id, channels, file)?;
                }
            }
            Awaited::Input { id, left } => {
                let piece = self.incoming.payload(left);
                if piece.is_empty() {
                    return Ok(false);
                }
                if let Some(command) = self.commands.find(id) {
                    command.feed(piece, &mut self.outgoing)?;
                }
                let left = left - piece.len() as u64;
                *awaited = if left == 0 {
                    Awaited::Nothing
                } else {
                    Awaited::Input { id, left }
                };
            }
        }
        Ok(true)
    }

    /// Does what is asked for; says what of it is still to come. Of a command that has ended
    /// meanwhile nothing is left to do.
    fn obey(&mut self, request: Request) -> sys::Result<Awaited> {
        match request {
            Request::Setup { .. } => return Err(EINVAL),
            Request::Spawn {
                id,
                channels,
                length,
            } => {
                return Ok(Awaited::Body {
                    id,
                    channels,
                    file: incoming::body_file(length)?,
                    left: length,
                });
            }
            Request::Input { length: 0, .. } => {}
            Request::Input { id, length } => return Ok(Awaited::Input { id, left: length }),
            Request::CloseInput { id } => {
                if let Some(command) = self.commands.find(id) {
                    command.close_input();
                }
            }
            Request::Grant { id, lane, credit } => {
                if let Some(command) = self.commands.find(id) {
                    command.grant(lane, credit);
                }
            }
            Request::Discard { id, lane } => {
                if let Some(command) = self.commands.find(id) {
                    command.discard(lane);
                    self.commands.clean();
                }
            }
            Request::Signal { id, signal } => {
                if let Some(pid) = self.commands.find(id).and_then(|command| command.pid()) {
                    self.order(Order::Signal { id, pid, signal }, &[])?;
                }
            }
            Request::Terminate { id } => self.order(Order::Terminate { id }, &[])?,
            Request::Kill { id } => self.order(Order::Kill { id }, &[])?,
            Request::List { id } => self.list(id)?,
            Request::Stage { id, number } => {
                let number = files::stage(number);
                self.outgoing.say(Answer::Staged { id, number }, &[])?;
            }
            Request::Adopt {
                id,
                number,
                identity,
            } => {
                let number = files::adopt(number, identity);
                self.outgoing.say(Answer::Staged { id, number }, &[])?;
            }
            Request::Unstage { number } => files::unstage(number),
            Request::Resize { id, rows, columns } => {
                if let Some(terminal) = self.commands.find(id).and_then(|it| it.terminal()) {
                    // It may have ended.
                    let _ = sys::set_terminal_size(terminal, rows, columns);
                }
            }
        }
        Ok(Awaited::Nothing)
    }

    fn order(&self, order: Order, fds: &[Fd]) -> sys::Result<()> {
        let message: [u8; ORDER_BYTES] = order.encode();
        sys::send(self.control, &message, fds)
    }

    /// Has init start a command.
    fn start(&mut self, id: u32, channels: Channels, body: Fd) -> sys::Result<()> {
        let connected = self
            .commands
            .has_room()
            .and_then(|()| Connected::new(channels));
        match connected {
            Ok(connected) => {
                let theirs = connected.theirs();
                let mut fds = [body; 1 + Connected::MOST];
                fds[1..=theirs.len()].copy_from_slice(theirs);
                self.order(Order::Spawn { id }, &fds[..=theirs.len()])?;
                theirs.iter().copied().for_each(sys::close);
                self.commands.add(Command::new(id, &connected));
                if channels == Channels::Terminal {
                    let lane = Lane::Errors;
                    let end = Answer::End { id, lane, total: 0 };
                    self.outgoing.say(end, &[])?;
                }
            }
            Err(Errno(errno)) => {
                let stage = Stage::Prepare;
                self.report(id, Report::Failed { stage, errno })?;
                self.outgoing.say(Answer::Gone { id }, &[])?;
            }
        }
        sys::close(body);
        Ok(())
    }

    fn report(&mut self, id: u32, report: Report) -> sys::Result<()> {
        let message: [u8; REPORT_BYTES] = report.encode();
        let length = message.len() as u64;
        self.outgoing.say(Answer::Report { id, length }, &message)
    }

    /// Asks init for the processes of a command, which it writes to a pipe.
    fn list(&mut self, id: u32) -> sys::Result<()> {
        if let Some(command) = self.commands.find(id)
            && let Ok((reader, writer)) = sys::pipe()
        {
            // What there is no room for is left out.
            let _ = sys::set_nonblocking(writer);
            let _ = sys::set_nonblocking(reader);
            command.take_list(reader);
            self.order(Order::List { id }, &[writer])?;
            sys::close(writer);
        } else {
            let lane = Lane::Processes;
            let end = Answer::End { id, lane, total: 0 };
            self.outgoing.say(end, &[])?;
        }
        Ok(())
    }

    /// Does what a descriptor of a command is ready for.
    fn attend(&mut self, at: usize) -> sys::Result<()> {
        let Some((polled, command)) = self.commands.ready(at) else {
            return Ok(());
        };
        match polled {
            Polled::Report => {
                let id = command.id();
                let mut message = [0; REPORT_BYTES];
                let received = match sys::receive(command.reports(), &mut message) {
                    Err(EAGAIN) => return Ok(()),
                    // A keeper that was killed is as gone as one that has ended.
                    received => received.ok().filter(|received| received.length > 0),
                };
                match received.zip(Report::decode(&message)) {
                    Some((received, report)) => {
                        let fds = &received.fds[..received.fd_count];
                        command.note(&report, fds, &mut self.outgoing)?;
                        self.report(id, report)?;
                    }
                    None => {
                        command.end();
                        self.outgoing.say(Answer::Gone { id }, &[])?;
                        self.commands.clean();
                    }
                }
            }
            Polled::Input => command.feed(&[], &mut self.outgoing)?,
            Polled::Lane(lane) => {
                // There may be somebody else's.
                self.outgoing.flush()?;
                if self.outgoing.is_empty() && command.pass(lane, &mut self.outgoing)? {
                    self.commands.clean();
                }
            }
        }
        Ok(())
    }
}

/// Writes to a file, which takes all of it or is full.
fn write_all(file: Fd, mut bytes: &[u8]) -> sys::Result<()> {
    while !bytes.is_empty() {
        let written = sys::write(file, bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}
