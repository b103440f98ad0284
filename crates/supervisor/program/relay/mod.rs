//! The relay: multiplexes a sandbox over one stream where no sockets can be passed.
//!
//! It reads [requests](crate::frames) from stdin and writes answers to stdout; it creates the commands'
//! pipes and has init start the commands. It is the init of a container, or a process started in a running
//! one. At the end of stdin, which the owner's death implies, it kills everything that it has started.

mod buffer;
mod commands;
mod incoming;
mod outgoing;

use self::commands::{CommandPipes, PollSource, RelayedCommand, RelayedCommands};
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use crate::frames::{Answer, CONNECTION_ID, Channel, MAX_CONNECTIONS, Request, StdioMode};
use crate::init;
use crate::setup::Mounts;
use crate::sys::{
    self, EAGAIN, EINVAL, EMFILE, ENFILE, Errno, Fd, Forked, List, MAX_FDS, NONE, PollFd,
};
use crate::tree::Tree;
use crate::wire::{Order, REPORT_BYTES, Reader, Report, SETUP_REPLY_BYTES, StartStage};

const INPUT: Fd = Fd(0);
const OUTPUT: Fd = Fd(1);

/// Read size while no payload is outstanding.
const SMALL_READ: usize = 4096;

/// Capacity of the stdin pipe.
const INPUT_PIPE: usize = 256 * 1024;

/// Time in which init must have killed its descendants.
const INIT_DEADLINE_MS: u32 = 2000;

/// Serves until the owner is gone; then no process is left.
pub fn run() -> i32 {
    sys::default_signals();
    sys::ignore_sigchld();
    // Writing to a closed stdout must return an error.
    sys::set_signal_mask(1 << (sys::SIGPIPE - 1));
    let served = start().and_then(|started| {
        let Some(mut relay) = started else {
            return Ok(());
        };
        let served = relay.serve();
        // When a container's init exits, the kernel kills everything in it.
        if sys::getpid() != 1 {
            relay.end();
        }
        served
    });
    i32::from(served.is_err())
}

/// Has init perform the setup; `None` if the owner closes the stream first.
fn start() -> sys::Result<Option<Relay>> {
    sys::close_from(3);
    sys::set_name(c"cantle-relay");
    // No controlling terminal; fails in a session leader.
    let _ = sys::setsid();
    sys::chdir(c"/")?;
    // Steps state their modes exactly; init sets the commands' mask.
    sys::umask(0);
    // If init is killed, the relay inherits its descendants. Commands of the same user must not trace it.
    sys::adopt_orphans()?;
    sys::set_dumpable(false)?;
    sys::set_nonblocking(OUTPUT)?;
    let mut incoming = Incoming::new()?;
    let mut outgoing = Outgoing::new()?;
    let length = match incoming.request()? {
        Some(Request::Setup { length }) => length,
        Some(_) => return Err(EINVAL),
        // The owner has closed the stream.
        None => return Ok(None),
    };
    let body = incoming.body(length)?;
    let (init, control) = start_init(body)?;
    let mut reply = [0; SETUP_REPLY_BYTES];
    let received = sys::receive(control, &mut reply)?;
    if received.length == 0 {
        return Err(sys::EIO);
    }
    // Of the steps of a container, only `Listen` opens something.
    let listener = received.fds.first().copied().unwrap_or(NONE);
    if listener != NONE {
        sys::set_nonblocking(listener)?;
    }
    let length = reply.len() as u64;
    outgoing.send(Answer::Ready { length }, &reply)?;
    outgoing.flush()?;
    sys::raise_descriptor_limit();
    sys::enlarge_pipe(INPUT, INPUT_PIPE);
    Ok(Some(Relay {
        incoming,
        outgoing,
        init,
        control,
        commands: RelayedCommands::new(),
        listener: Listener {
            socket: listener,
            credit: MAX_CONNECTIONS,
            last_id: CONNECTION_ID,
            is_out_of_descriptors: false,
        },
    }))
}

/// Forks init; returns its id and its control socket.
fn start_init(body: Fd) -> sys::Result<(i32, Fd)> {
    let steps = sys::map_file(body)?;
    let (control, init_control) = sys::message_sockets()?;
    match sys::fork(0)? {
        Forked::Parent { child } => {
            sys::close(init_control);
            Ok((child, control))
        }
        Forked::Child => {
            sys::close(control);
            sys::default_signals();
            // Descriptors 0 to 2 must not be reused. A container may have no `/dev/null`.
            let null = sys::open(c"/dev/null", sys::O_RDWR).or_else(|_| sys::empty_pipe());
            for standard in [INPUT, OUTPUT, Fd(2)] {
                if null.and_then(|null| sys::dup_to(null, standard)).is_err() {
                    sys::exit(1);
                }
            }
            null.into_iter().for_each(sys::close);
            init::run(init_control, Reader::new(steps), &Mounts::new(), 0, false)
        }
    }
}

struct Relay {
    incoming: Incoming,
    outgoing: Outgoing,
    init: i32,
    control: Fd,
    commands: RelayedCommands,
    listener: Listener,
}

/// The socket on which clients reach the sandbox's proxy.
struct Listener {
    socket: Fd,
    /// The number of connections that the owner allows.
    credit: usize,
    last_id: u32,
    /// Whether the last connection could not be accepted; until another has ended, none is tried.
    is_out_of_descriptors: bool,
}

/// The payload that is being received: input of a command, or its body.
#[derive(Clone, Copy)]
struct Payload {
    id: u32,
    left: u64,
    /// For a body, the file it is written to and the streams of its command. Without a file it is discarded, and the
    /// command fails.
    body: Option<(sys::Result<Fd>, StdioMode)>,
}

/// Returns how much to read at once. Input is spliced instead, as far as its command takes it.
fn read_size(pending: Option<Payload>) -> usize {
    match pending {
        None => SMALL_READ,
        Some(Payload { body: Some(_), .. }) => incoming::BUFFER_BYTES,
        Some(Payload { left, .. }) => usize::try_from(left)
            .map_or(incoming::BUFFER_BYTES, |left| {
                left.saturating_add(SMALL_READ)
            }),
    }
}

impl Relay {
    /// Returns at the end of the stream.
    fn serve(&mut self) -> sys::Result<()> {
        let mut pending = None;
        loop {
            let takes_output = self.outgoing.is_empty();
            if self.commands.clean() {
                self.listener.is_out_of_descriptors = false;
            }
            let accepts = self.listener.credit > 0
                && !self.listener.is_out_of_descriptors
                && self.commands.has_room_for_connection();
            let mut stream = [
                PollFd::readable(INPUT),
                PollFd::writable(if takes_output { NONE } else { OUTPUT }),
                PollFd::readable(self.control),
                PollFd::readable(if accepts { self.listener.socket } else { NONE }),
            ];
            let polled = self.commands.poll(&mut stream, takes_output)?;
            let [input, output, control, client] = stream.map(|polled| polled.is_ready());
            if control {
                // Init never writes there: it has ended, and the commands with it.
                return Err(sys::EIO);
            }
            if output {
                self.outgoing.flush()?;
            }
            if input && !self.splice_input(&mut pending)? {
                if self.incoming.fill(read_size(pending))? == 0 {
                    return Ok(());
                }
                while self.advance(&mut pending)? {}
            }
            for at in 0..polled {
                self.handle_ready(at)?;
            }
            if client {
                self.accept()?;
            }
            self.outgoing.flush()?;
        }
    }

    /// Waits until no process started here is left.
    fn end(&self) {
        // Init kills its descendants. Killing init first could let some escape if the relay is killed
        // meanwhile.
        sys::close(self.control);
        for _ in 0..INIT_DEADLINE_MS {
            if sys::kill(self.init, 0).is_err() {
                break;
            }
            sys::pause_us(1000);
        }
        Tree::kill_descendants();
    }

    /// Splices input from the stream to its command without reading it; returns whether anything moved.
    /// The stream is readable, so otherwise the command's pipe is full or closed.
    fn splice_input(&mut self, pending: &mut Option<Payload>) -> sys::Result<bool> {
        let Some(Payload {
            id,
            left,
            body: None,
        }) = pending
        else {
            return Ok(false);
        };
        if *left < SMALL_READ as u64 || !self.incoming.is_empty() {
            return Ok(false);
        }
        let Some(command) = self.commands.find(*id) else {
            return Ok(false);
        };
        let moved = command.move_input(INPUT, *left, &mut self.outgoing)?;
        *left -= moved;
        if *left == 0 {
            *pending = None;
        }
        Ok(moved > 0)
    }

    /// Processes the next buffered request or part of a payload; returns whether there was one.
    fn advance(&mut self, pending: &mut Option<Payload>) -> sys::Result<bool> {
        let Some(Payload { id, left, body }) = pending else {
            let Some(request) = self.incoming.header()? else {
                return Ok(false);
            };
            *pending = self.execute(request)?;
            return Ok(true);
        };
        let (id, body) = (*id, *body);
        let piece = self.incoming.payload(*left);
        if piece.is_empty() {
            return Ok(false);
        }
        match body {
            Some((Ok(file), _)) => sys::write_all(file, piece)?,
            Some((Err(_), _)) => {}
            None => {
                if let Some(command) = self.commands.find(id) {
                    command.feed(piece, &mut self.outgoing)?;
                }
            }
        }
        *left -= piece.len() as u64;
        if *left == 0 {
            *pending = None;
            if let Some((file, stdio)) = body {
                self.start(id, stdio, file)?;
            }
        }
        Ok(true)
    }

    /// Performs a request; returns the payload that follows it. Requests about a command that has ended
    /// are ignored.
    fn execute(&mut self, request: Request) -> sys::Result<Option<Payload>> {
        match request {
            Request::Setup { .. } => return Err(EINVAL),
            Request::Spawn {
                id,
                stdio,
                length: left,
            } => {
                incoming::check_body(left)?;
                // Fails if no descriptor is left.
                let body = Some((sys::memory_file(), stdio));
                return Ok(Some(Payload { id, left, body }));
            }
            Request::Input { length: 0, .. } => {}
            Request::Input { id, length: left } => {
                let body = None;
                return Ok(Some(Payload { id, left, body }));
            }
            Request::CloseInput { id } => {
                if let Some(command) = self.commands.find(id) {
                    command.close_input();
                }
            }
            Request::Grant {
                id,
                channel,
                credit,
            } => {
                if let Some(command) = self.commands.find(id) {
                    command.grant(channel, credit);
                }
            }
            Request::Discard { id, channel } => {
                if let Some(command) = self.commands.find(id) {
                    command.discard(channel);
                }
            }
            Request::Accept => self.listener.credit += 1,
            Request::Signal { id, signal } => {
                if let Some(pid) = self.commands.find(id).and_then(|command| command.pid) {
                    self.order(Order::Signal { id, pid, signal }, &[])?;
                }
            }
            Request::Terminate { id } => self.order(Order::Terminate { id }, &[])?,
            Request::Kill { id } => self.order(Order::Kill { id }, &[])?,
            Request::List { id } => self.list(id)?,
            Request::Resize { id, rows, columns } => {
                if let Some(terminal) = self.commands.find(id).and_then(|it| it.terminal()) {
                    // The terminal may have ended.
                    let _ = sys::set_terminal_size(terminal, rows, columns);
                }
            }
        }
        Ok(None)
    }

    /// Accepts a connection of a client, if it still waits.
    fn accept(&mut self) -> sys::Result<()> {
        let listener = &mut self.listener;
        let id = CONNECTION_ID | listener.last_id.wrapping_add(1);
        let accepted = sys::accept(listener.socket).and_then(|socket| {
            RelayedCommand::connection(id, socket).inspect_err(|_| sys::close(socket))
        });
        match accepted {
            Ok(connection) => {
                (listener.credit, listener.last_id) = (listener.credit - 1, id);
                self.commands.add(connection);
                self.outgoing.send(Answer::Connected { id }, &[])
            }
            Err(EMFILE | ENFILE) => {
                listener.is_out_of_descriptors = true;
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    fn order(&self, order: Order, fds: &[Fd]) -> sys::Result<()> {
        sys::send(self.control, &order.encode(), fds)
    }

    /// Has init start a command.
    fn start(&mut self, id: u32, stdio: StdioMode, body: sys::Result<Fd>) -> sys::Result<()> {
        let pipes = body.and_then(|body| {
            self.commands.check_room()?;
            Ok((body, CommandPipes::new(stdio)?))
        });
        match pipes {
            Ok((body, pipes)) => {
                let mut fds = List::<Fd, MAX_FDS>::of(&[body]);
                for fd in &*pipes.inherited {
                    fds.push(*fd)?;
                }
                self.order(Order::Spawn { id }, &fds)?;
                pipes.inherited.iter().copied().for_each(sys::close);
                self.commands.add(RelayedCommand::new(id, &pipes));
                if stdio == StdioMode::Terminal {
                    self.send_empty_end(id, Channel::Stderr)?;
                }
            }
            Err(Errno(errno)) => {
                for channel in [Channel::Stdout, Channel::Stderr] {
                    self.send_empty_end(id, channel)?;
                }
                let stage = StartStage::Prepare;
                self.send_report(id, Report::Failed { stage, errno })?;
                self.outgoing.send(Answer::Gone { id }, &[])?;
            }
        }
        body.into_iter().for_each(sys::close);
        Ok(())
    }

    fn send_report(&mut self, id: u32, report: Report) -> sys::Result<()> {
        let message = report.encode();
        let length = message.len() as u64;
        self.outgoing.send(Answer::Report { id, length }, &message)
    }

    fn send_empty_end(&mut self, id: u32, channel: Channel) -> sys::Result<()> {
        let total = 0;
        self.outgoing.send(Answer::End { id, channel, total }, &[])
    }

    /// Has init write the process list of a command to a pipe, and forwards it.
    fn list(&mut self, id: u32) -> sys::Result<()> {
        if let Some(command) = self.commands.find(id)
            && let Ok((reader, writer)) = sys::pipe()
        {
            // If the pipe is full, the rest is left out.
            let _ = sys::set_nonblocking(writer);
            let _ = sys::set_nonblocking(reader);
            command.forward_list(reader);
            self.order(Order::List { id }, &[writer])?;
            sys::close(writer);
        } else {
            self.send_empty_end(id, Channel::Processes)?;
        }
        Ok(())
    }

    /// Handles a ready descriptor of a command.
    fn handle_ready(&mut self, at: usize) -> sys::Result<()> {
        let Some((source, command)) = self.commands.ready(at) else {
            return Ok(());
        };
        match source {
            PollSource::Report => {
                let id = command.id;
                let mut message = [0; REPORT_BYTES];
                let received = match sys::receive(command.report, &mut message) {
                    Err(EAGAIN) => return Ok(()),
                    // The socket of a killed keeper may report an error instead of its end.
                    received => received.ok().filter(|received| received.length > 0),
                };
                match received.zip(Report::decode(&message)) {
                    Some((received, report)) => {
                        command.handle_report(&report, &received.fds, &mut self.outgoing)?;
                        self.send_report(id, report)?;
                    }
                    None => {
                        command.end();
                        self.outgoing.send(Answer::Gone { id }, &[])?;
                    }
                }
            }
            PollSource::Input => command.feed(&[], &mut self.outgoing)?,
            PollSource::Output(channel) => {
                // Output of another command may be in the buffer.
                self.outgoing.flush()?;
                if self.outgoing.is_empty() {
                    command.forward(channel, &mut self.outgoing)?;
                }
            }
        }
        Ok(())
    }
}
