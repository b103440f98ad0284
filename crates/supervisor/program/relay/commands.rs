//! The commands and connections of a relay: their pipes or sockets, and the credit of each channel.

use super::buffer::Buffer;
use super::outgoing::Outgoing;
use crate::frames::{
    Answer, CONNECTION_ID, CONNECTION_WINDOW, Channel, INPUT_WINDOW, MAX_CONNECTIONS, MAX_PAYLOAD,
    OUTPUT_WINDOW, StdioMode, cost,
};
use crate::sys::{self, EAGAIN, EINTR, EMFILE, Fd, List, NONE, PollFd};
use crate::wire::Report;

/// Maximum number of commands that have processes or output.
const MAX_COMMANDS: usize = 512;
/// Maximum number of commands and connections.
const MAX_SLOTS: usize = MAX_COMMANDS + MAX_CONNECTIONS;
/// Descriptors that are polled besides those of commands.
const STREAM_POLLS: usize = 4;
/// Maximum number of a command's descriptors that are polled.
const MAX_POLLED: usize = 5;
/// With less credit than this no output is read; the next grant comes soon.
const MIN_CREDIT: usize = cost(4096);
/// Consumed input is reported in steps of this size.
const TAKEN_STEP: u64 = INPUT_WINDOW as u64 / 8;
/// Capacity to which a stdin pipe is enlarged once it has been full. Not before, because the kernel bounds
/// the total per user and then hands out tiny pipes.
const LARGE_PIPE: usize = 256 * 1024;

/// The commands that have processes or output, and the connections.
pub struct RelayedCommands {
    commands: [Option<RelayedCommand>; MAX_SLOTS],
    /// The number of connections among them.
    connections: usize,
    /// The index after the last used slot.
    end: usize,
    /// Rounds in which output was read; determines which command comes first.
    round: usize,
    polls: [PollFd; STREAM_POLLS + MAX_SLOTS * MAX_POLLED],
    /// For each polled descriptor of a command: slot, command id and source.
    sources: [(usize, u32, PollSource); MAX_SLOTS * MAX_POLLED],
}

/// A polled descriptor of a command.
#[derive(Clone, Copy)]
pub enum PollSource {
    Report,
    Input,
    Output(Channel),
}

impl RelayedCommands {
    pub fn new() -> Self {
        Self {
            commands: [const { None }; MAX_SLOTS],
            connections: 0,
            end: 0,
            round: 0,
            polls: [const { PollFd::readable(NONE) }; STREAM_POLLS + MAX_SLOTS * MAX_POLLED],
            sources: [(0, 0, PollSource::Report); MAX_SLOTS * MAX_POLLED],
        }
    }

    pub fn find(&mut self, id: u32) -> Option<&mut RelayedCommand> {
        let mut all = self.commands[..self.end].iter_mut().flatten();
        all.find(|command| command.id == id)
    }

    /// Fails if there are as many commands as there may be.
    pub fn check_room(&self) -> sys::Result<()> {
        let used = self.commands[..self.end].iter().flatten().count() - self.connections;
        if used < MAX_COMMANDS {
            Ok(())
        } else {
            Err(EAGAIN)
        }
    }

    /// Whether there may be another connection.
    pub fn has_room_for_connection(&self) -> bool {
        self.connections < MAX_CONNECTIONS
    }

    pub fn add(&mut self, command: RelayedCommand) {
        if let Some(at) = self.commands.iter().position(Option::is_none) {
            self.connections += usize::from(command.is_connection());
            self.commands[at] = Some(command);
            self.end = self.end.max(at + 1);
        }
    }

    /// Frees the slots of commands that have neither processes nor output; returns whether there were any.
    pub fn clean(&mut self) -> bool {
        let mut freed = false;
        for slot in &mut self.commands[..self.end] {
            if let Some(command) = slot
                && command.is_over()
            {
                self.connections -= usize::from(command.is_connection());
                *slot = None;
                freed = true;
            }
        }
        while self.end > 0 && self.commands[self.end - 1].is_none() {
            self.end -= 1;
        }
        freed
    }

    /// Waits until the stream or a command is ready. Returns the number of polled descriptors of commands,
    /// to be passed to [`ready`](Self::ready).
    pub fn poll(
        &mut self,
        stream: &mut [PollFd; STREAM_POLLS],
        takes_output: bool,
    ) -> sys::Result<usize> {
        let mut count = 0;
        // Rotates commands and channels, for fairness: there may be room for the output of one only.
        self.round = self.round.wrapping_add(usize::from(takes_output));
        let all = self.end.max(1);
        let (first, first_channel) = (self.round % all, self.round / all);
        for at in (first..self.end).chain(0..first) {
            let Some(command) = &self.commands[at] else {
                continue;
            };
            let mut add = |poll, source| {
                self.polls[STREAM_POLLS + count] = poll;
                self.sources[count] = (at, command.id, source);
                count += 1;
            };
            if command.report != NONE {
                add(PollFd::readable(command.report), PollSource::Report);
            }
            if command.input.is_waiting() {
                add(PollFd::writable(command.input.pipe), PollSource::Input);
            }
            for at in 0..Channel::ALL.len() {
                let channel = Channel::ALL[first_channel.wrapping_add(at) % Channel::ALL.len()];
                let output = &command.outputs[channel as usize];
                if takes_output && output.may_be_read() {
                    add(PollFd::readable(output.pipe), PollSource::Output(channel));
                }
            }
        }
        let (ours, _) = self.polls.split_at_mut(STREAM_POLLS + count);
        ours[..STREAM_POLLS].swap_with_slice(stream);
        let polled = sys::poll(ours, -1);
        ours[..STREAM_POLLS].swap_with_slice(stream);
        polled.map(|_| count)
    }

    /// Returns the source and command of a polled descriptor that is ready.
    pub fn ready(&mut self, at: usize) -> Option<(PollSource, &mut RelayedCommand)> {
        let (slot, id, source) = self.sources[at];
        // The slot may have been freed, and reused, in this round.
        let command = self.commands[slot].as_mut().filter(|it| it.id == id)?;
        self.polls[STREAM_POLLS + at]
            .is_ready()
            .then_some((source, command))
    }
}

/// The pipes of a command before it is started.
pub struct CommandPipes {
    /// The ends that the command inherits: of a report socket and up to three pipes.
    pub inherited: List<Fd, 4>,
    report: Fd,
    input: Fd,
    outputs: [Fd; 2],
}

impl CommandPipes {
    pub fn new(stdio: StdioMode) -> sys::Result<Self> {
        let mut pipes = Self {
            inherited: List::new(),
            report: NONE,
            input: NONE,
            outputs: [NONE; 2],
        };
        if let Err(errno) = pipes.create(stdio) {
            let ours = [pipes.report, pipes.input].into_iter().chain(pipes.outputs);
            let all = ours.chain(pipes.inherited.iter().copied());
            all.filter(|fd| *fd != NONE).for_each(sys::close);
            return Err(errno);
        }
        Ok(pipes)
    }

    fn create(&mut self, stdio: StdioMode) -> sys::Result<()> {
        let inherited;
        (self.report, inherited) = sys::message_sockets()?;
        self.inherited.push(inherited)?;
        sys::set_nonblocking(self.report)?;
        match stdio {
            StdioMode::Terminal => return Ok(()),
            StdioMode::Output => self.inherited.push(sys::empty_pipe()?)?,
            StdioMode::All => {
                let inherited;
                (inherited, self.input) = sys::pipe()?;
                self.inherited.push(inherited)?;
                sys::set_nonblocking(self.input)?;
            }
        }
        for output in &mut self.outputs {
            let inherited;
            (*output, inherited) = sys::pipe()?;
            self.inherited.push(inherited)?;
            sys::set_nonblocking(*output)?;
        }
        Ok(())
    }
}

/// A command of the relay, or a connection.
pub struct RelayedCommand {
    pub id: u32,
    /// Its first process, once started.
    pub pid: Option<i32>,
    /// The socket of its reports.
    pub report: Fd,
    is_terminal: bool,
    input: InputPipe,
    outputs: [OutputPipe; 3],
}

impl RelayedCommand {
    pub fn new(id: u32, pipes: &CommandPipes) -> Self {
        let [stdout, stderr] = pipes.outputs;
        Self {
            id,
            pid: None,
            report: pipes.report,
            is_terminal: stdout == NONE,
            input: InputPipe::new(pipes.input),
            outputs: [stdout, stderr, NONE].map(|pipe| OutputPipe::new(pipe, OUTPUT_WINDOW)),
        }
    }

    /// Returns a connection, whose socket it closes.
    pub fn connection(id: u32, socket: Fd) -> sys::Result<Self> {
        let sending = sys::dup_above(socket, 3)?;
        let nothing = || OutputPipe::new(NONE, 0);
        Ok(Self {
            id,
            pid: None,
            report: NONE,
            is_terminal: false,
            input: InputPipe::new(sending),
            outputs: [
                OutputPipe::new(socket, CONNECTION_WINDOW),
                nothing(),
                nothing(),
            ],
        })
    }

    fn is_connection(&self) -> bool {
        self.id & CONNECTION_ID != 0
    }

    /// Returns the master of its terminal while that is open.
    pub fn terminal(&self) -> Option<Fd> {
        let master = self.outputs[Channel::Stdout as usize].pipe;
        (self.is_terminal && master != NONE).then_some(master)
    }

    /// Handles a report, and sends what must precede it.
    pub fn handle_report(
        &mut self,
        report: &Report,
        fds: &[Fd],
        outgoing: &mut Outgoing,
    ) -> sys::Result<()> {
        let id = self.id;
        match report {
            Report::Started { pid } => {
                self.pid = Some(*pid);
                if self.is_terminal && self.open_terminal(fds).is_err() {
                    // No descriptor is left. The command is hung up.
                    fds.iter().copied().for_each(sys::close);
                    let (channel, total) = (Channel::Stdout, 0);
                    outgoing.send(Answer::End { id, channel, total }, &[])?;
                }
            }
            Report::Ended { .. } => {
                for channel in [Channel::Stdout, Channel::Stderr] {
                    let total = self.outputs[channel as usize].written_bytes();
                    outgoing.send(Answer::Count { id, channel, total }, &[])?;
                }
            }
            Report::Failed { .. } => {}
        }
        Ok(())
    }

    /// Takes over the master of its terminal.
    fn open_terminal(&mut self, fds: &[Fd]) -> sys::Result<()> {
        let master = *fds.first().ok_or(EMFILE)?;
        sys::set_nonblocking(master)?;
        self.input.pipe = sys::dup_above(master, 3)?;
        self.outputs[Channel::Stdout as usize].pipe = master;
        Ok(())
    }

    /// Handles the end of all its processes; output may remain.
    pub fn end(&mut self) {
        close(&mut self.report);
        self.input.close();
        for output in &mut self.outputs {
            if output.is_discarded {
                close(&mut output.pipe);
            }
        }
    }

    /// Whether it has neither processes nor open pipes.
    fn is_over(&self) -> bool {
        let mut outputs = self.outputs.iter();
        self.report == NONE && !self.input.is_open() && outputs.all(|output| output.pipe == NONE)
    }

    pub fn grant(&mut self, channel: Channel, credit: u64) {
        let output = &mut self.outputs[channel as usize];
        let credit = usize::try_from(credit).unwrap_or(OUTPUT_WINDOW);
        output.credit = output.credit.saturating_add(credit).min(output.window);
    }

    /// Discards all further output of a channel.
    pub fn discard(&mut self, channel: Channel) {
        let is_gone = self.report == NONE;
        let output = &mut self.outputs[channel as usize];
        output.is_discarded = true;
        if is_gone {
            close(&mut output.pipe);
        }
    }

    /// Forwards a process list from a pipe.
    pub fn forward_list(&mut self, pipe: Fd) {
        let output = &mut self.outputs[Channel::Processes as usize];
        close(&mut output.pipe);
        *output = OutputPipe::new(pipe, OUTPUT_WINDOW);
    }

    /// Forwards output of a channel.
    pub fn forward(&mut self, channel: Channel, outgoing: &mut Outgoing) -> sys::Result<()> {
        let id = self.id;
        let output = &mut self.outputs[channel as usize];
        let read = if output.is_discarded {
            outgoing.discard(output.pipe)
        } else {
            let most = (output.credit - cost(0)).min(MAX_PAYLOAD);
            outgoing.take(id, channel, output.pipe, most)
        };
        match read {
            Ok(count @ 1..) => {
                output.total += count as u64;
                if !output.is_discarded {
                    output.credit -= cost(count);
                }
                Ok(())
            }
            Err(EAGAIN | EINTR) => Ok(()),
            // `EIO` is the end of a terminal.
            Ok(0) | Err(_) => {
                let total = output.total;
                close(&mut output.pipe);
                outgoing.send(Answer::End { id, channel, total }, &[])
            }
        }
    }

    /// Forwards input, after what is buffered.
    pub fn feed(&mut self, bytes: &[u8], outgoing: &mut Outgoing) -> sys::Result<()> {
        let id = self.id;
        let before = self.input.is_open();
        let taken = self.input.feed(bytes)?;
        self.add_taken(taken, outgoing)?;
        if before && !self.input.is_open() && !self.input.is_ending {
            outgoing.send(Answer::InputClosed { id }, &[])?;
        }
        Ok(())
    }

    /// Splices input from a pipe, as much as the command's pipe takes at once; returns the count.
    pub fn move_input(&mut self, from: Fd, left: u64, outgoing: &mut Outgoing) -> sys::Result<u64> {
        let most = usize::try_from(left).map_or(MAX_PAYLOAD, |left| left.min(MAX_PAYLOAD));
        let moved = self.input.take_from(from, most);
        self.add_taken(moved, outgoing)?;
        Ok(moved as u64)
    }

    /// Counts consumed input, and reports it in steps; an owner that has used the whole window gets one.
    fn add_taken(&mut self, bytes: usize, outgoing: &mut Outgoing) -> sys::Result<()> {
        let step = match self.is_connection() {
            true => CONNECTION_WINDOW as u64 / 8,
            false => TAKEN_STEP,
        };
        self.input.unreported += bytes as u64;
        if self.input.unreported < step {
            return Ok(());
        }
        let (id, bytes) = (self.id, core::mem::take(&mut self.input.unreported));
        outgoing.send(Answer::Taken { id, bytes }, &[])
    }

    /// Closes stdin once it is empty. A terminal has no end.
    pub fn close_input(&mut self) {
        if !self.is_terminal {
            self.input.is_ending = true;
            if self.input.buffer.is_empty() {
                self.input.close();
            }
        }
    }
}

fn close(fd: &mut Fd) {
    if *fd != NONE {
        sys::close(*fd);
        *fd = NONE;
    }
}

/// The stdin pipe of a command.
struct InputPipe {
    pipe: Fd,
    /// Input that the pipe had no room for; allocated on demand.
    buffer: Buffer,
    /// Whether to close it once the buffer is empty.
    is_ending: bool,
    is_large: bool,
    /// Consumed bytes not reported yet.
    unreported: u64,
}

impl InputPipe {
    fn new(pipe: Fd) -> Self {
        Self {
            pipe,
            buffer: Buffer::empty(),
            is_ending: false,
            is_large: false,
            unreported: 0,
        }
    }

    fn is_open(&self) -> bool {
        self.pipe != NONE
    }

    fn is_waiting(&self) -> bool {
        self.is_open() && !self.buffer.is_empty()
    }

    /// Writes what the pipe takes and buffers the rest; returns the written count. Closes a broken pipe.
    fn feed(&mut self, bytes: &[u8]) -> sys::Result<usize> {
        let mut written = 0;
        if self.is_waiting() {
            let content = self.buffer.content();
            let (result, length) = (sys::write(self.pipe, content), content.len());
            written = self.count_written(result, length);
            self.buffer.take(written);
        }
        let mut rest = bytes;
        if self.is_open() && self.buffer.is_empty() && !rest.is_empty() {
            let count = self.count_written(sys::write(self.pipe, rest), rest.len());
            written += count;
            rest = &rest[count..];
        }
        if self.is_open() && !rest.is_empty() {
            if !self.buffer.has_memory() {
                self.buffer = Buffer::new(INPUT_WINDOW)?;
            }
            // The window guarantees that there is room.
            self.buffer.append(rest)?;
        }
        if self.is_ending && self.buffer.is_empty() {
            self.close();
        }
        Ok(written)
    }

    /// Splices bytes from a pipe, unless buffered bytes come first.
    fn take_from(&mut self, from: Fd, most: usize) -> usize {
        if !self.is_open() || !self.buffer.is_empty() {
            return 0;
        }
        let moved = sys::splice(from, self.pipe, most, false).unwrap_or(0);
        self.enlarge_if(moved < most);
        moved
    }

    /// Returns how many of `length` bytes a write took. Closes a broken pipe.
    fn count_written(&mut self, result: sys::Result<usize>, length: usize) -> usize {
        match result {
            Ok(count) => {
                self.enlarge_if(count < length);
                count
            }
            Err(EAGAIN | EINTR) => 0,
            Err(_) => {
                self.close();
                0
            }
        }
    }

    fn enlarge_if(&mut self, is_full: bool) {
        if is_full && !self.is_large {
            self.is_large = true;
            sys::enlarge_pipe(self.pipe, LARGE_PIPE);
        }
    }

    fn close(&mut self) {
        if self.is_open() {
            // A connection still receives by another descriptor. Pipes refuse it.
            let _ = sys::shutdown_sending(self.pipe);
        }
        close(&mut self.pipe);
        self.buffer.release();
    }
}

/// An output channel's pipe.
struct OutputPipe {
    pipe: Fd,
    credit: usize,
    /// The most credit that it has.
    window: usize,
    /// Bytes read so far.
    total: u64,
    is_discarded: bool,
}

impl OutputPipe {
    fn new(pipe: Fd, window: usize) -> Self {
        Self {
            pipe,
            credit: window,
            window,
            total: 0,
            is_discarded: false,
        }
    }

    fn may_be_read(&self) -> bool {
        self.pipe != NONE && (self.is_discarded || self.credit >= MIN_CREDIT)
    }

    /// Returns the bytes written to it, read or not.
    fn written_bytes(&self) -> u64 {
        let unread = match self.pipe {
            NONE => 0,
            pipe => sys::unread_bytes(pipe).unwrap_or(0),
        };
        self.total + unread as u64
    }
}
