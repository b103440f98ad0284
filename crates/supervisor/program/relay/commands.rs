//! The commands of a relay: their pipes, and how much may go through them.

use super::NONE;
use super::outgoing::Outgoing;
use crate::frames::{Answer, Channels, INPUT_WINDOW, Lane, MOST_PAYLOAD, OUTPUT_WINDOW, cost};
use crate::sys::{self, EAGAIN, EINTR, EINVAL, Fd, PollFd};
use crate::wire::Report;

/// The most commands at once, with those that have left something running.
const MOST: usize = 512;
/// The most descriptors of a command that are waited for.
const MOST_POLLED: usize = 5;
/// Short of it nothing is read: the next grant comes soon.
const LEAST_CREDIT: usize = cost(4096);
/// Less than this that was taken of input is not told.
const UNTOLD_BYTES: u64 = INPUT_WINDOW as u64 / 8;
/// What the pipe of an input is enlarged to once it was full. Not before: an ordinary user may have
/// only so much memory in large pipes, and then gets tiny ones.
const LARGE_PIPE: usize = 256 * 1024;

/// The commands that have processes or output.
pub struct Commands {
    commands: [Option<Command>; MOST],
    /// After the last one there is.
    end: usize,
    /// How many times output was taken: says who is first the next time.
    turn: usize,
    polls: [PollFd; 3 + MOST * MOST_POLLED],
    /// Whose they are, without the first three: the place, and who was there.
    whose: [(usize, u32, Polled); MOST * MOST_POLLED],
}

/// What was waited for.
#[derive(Clone, Copy)]
pub enum Polled {
    Report,
    Input,
    Lane(Lane),
}

impl Commands {
    pub fn new() -> Self {
        Self {
            commands: [const { None }; MOST],
            end: 0,
            turn: 0,
            polls: [const { PollFd::readable(NONE) }; 3 + MOST * MOST_POLLED],
            whose: [(0, 0, Polled::Report); MOST * MOST_POLLED],
        }
    }

    pub fn find(&mut self, id: u32) -> Option<&mut Command> {
        let mut all = self.commands[..self.end].iter_mut().flatten();
        all.find(|command| command.id == id)
    }

    /// Whether there may be another one.
    pub fn has_room(&self) -> sys::Result<()> {
        match self.commands.iter().any(Option::is_none) {
            true => Ok(()),
            false => Err(EAGAIN),
        }
    }

    pub fn add(&mut self, command: Command) {
        if let Some(at) = self.commands.iter().position(Option::is_none) {
            self.commands[at] = Some(command);
            self.end = self.end.max(at + 1);
        }
    }

    /// Lets go of commands of which nothing is left.
    pub fn clean(&mut self) {
        for slot in &mut self.commands[..self.end] {
            if slot.as_ref().is_some_and(Command::is_over) {
                *slot = None;
            }
        }
        while self.end > 0 && self.commands[self.end - 1].is_none() {
            self.end -= 1;
        }
    }

    /// Waits until something is ready, in the stream or of a command. Returns how many of the commands'
    /// descriptors were waited for, each of which may be [`ready`](Self::ready).
    pub fn poll(&mut self, stream: &mut [PollFd; 3], takes_output: bool) -> sys::Result<usize> {
        let mut count = 0;
        // A different command and another channel begin each time that output is taken, so that nobody
        // always comes last: there may be room for one only.
        self.turn = self.turn.wrapping_add(usize::from(takes_output));
        let all = self.end.max(1);
        let (first, first_lane) = (self.turn % all, self.turn / all);
        for at in (first..self.end).chain(0..first) {
            let Some(command) = &self.commands[at] else {
                continue;
            };
            let mut wait = |poll, what| {
                self.polls[3 + count] = poll;
                self.whose[count] = (at, command.id, what);
                count += 1;
            };
            if command.report != NONE {
                wait(PollFd::readable(command.report), Polled::Report);
            }
            if command.input.is_waiting() {
                wait(PollFd::writable(command.input.pipe), Polled::Input);
            }
            for at in 0..Lane::ALL.len() {
                let lane = Lane::ALL[first_lane.wrapping_add(at) % Lane::ALL.len()];
                let output = &command.outputs[lane as usize];
                if takes_output && output.may_be_read() {
                    wait(PollFd::readable(output.pipe), Polled::Lane(lane));
                }
            }
        }
        let (ours, _) = self.polls.split_at_mut(3 + count);
        ours[..3].swap_with_slice(stream);
        let polled = sys::poll(ours, -1);
        ours[..3].swap_with_slice(stream);
        polled.map(|_| count)
    }

    /// Whose a descriptor is that was waited for, and is ready.
    pub fn ready(&mut self, at: usize) -> Option<(Polled, &mut Command)> {
        let (place, id, polled) = self.whose[at];
        // It may have gone meanwhile, and another one have come.
        let command = self.commands[place].as_mut().filter(|it| it.id == id)?;
        self.polls[3 + at].is_ready().then_some((polled, command))
    }
}

/// The ends of a command's pipes.
pub struct Connected {
    theirs: [Fd; Self::MOST],
    their_count: usize,
    report: Fd,
    input: Fd,
    outputs: [Fd; 2],
}

impl Connected {
    /// A socket for reports, and three pipes.
    pub const MOST: usize = 4;

    pub fn new(channels: Channels) -> sys::Result<Self> {
        let mut connected = Self {
            theirs: [NONE; Self::MOST],
            their_count: 0,
            report: NONE,
            input: NONE,
            outputs: [NONE; 2],
        };
        let made = connected.connect(channels);
        if let Err(errno) = made {
            let ours = [connected.report, connected.input];
            let all = ours
                .into_iter()
                .chain(connected.outputs)
                .chain(connected.theirs);
            all.filter(|fd| *fd != NONE).for_each(sys::close);
            return Err(errno);
        }
        Ok(connected)
    }

    fn connect(&mut self, channels: Channels) -> sys::Result<()> {
        let (report, theirs) = sys::message_sockets()?;
        self.report = report;
        self.give(theirs);
        sys::set_nonblocking(report)?;
        match channels {
            Channels::Terminal => return Ok(()),
            Channels::Output => {
                let nothing = sys::nothing()?;
                self.give(nothing);
            }
            Channels::All => {
                let (theirs, ours) = sys::pipe()?;
                self.input = ours;
                self.give(theirs);
                sys::set_nonblocking(ours)?;
            }
        }
        for at in 0..self.outputs.len() {
            let (ours, theirs) = sys::pipe()?;
            self.outputs[at] = ours;
            self.give(theirs);
            sys::set_nonblocking(ours)?;
        }
        Ok(())
    }

    fn give(&mut self, fd: Fd) {
        self.theirs[self.their_count] = fd;
        self.their_count += 1;
    }

    /// What the command gets.
    pub fn theirs(&self) -> &[Fd] {
        &self.theirs[..self.their_count]
    }
}

/// A command, as its relay sees it.
pub struct Command {
    id: u32,
    /// Its first process, once that runs.
    pid: Option<i32>,
    report: Fd,
    is_terminal: bool,
    input: Input,
    outputs: [Output; 3],
}

impl Command {
    pub fn new(id: u32, connected: &Connected) -> Self {
        let [output, errors] = connected.outputs;
        Self {
            id,
            pid: None,
            report: connected.report,
            is_terminal: output == NONE,
            input: Input::new(connected.input),
            outputs: [output, errors, NONE].map(Output::new),
        }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    pub fn reports(&self) -> Fd {
        self.report
    }

    /// The master of its terminal, while that is open.
    pub fn terminal(&self) -> Option<Fd> {
        let master = self.outputs[Lane::Output as usize].pipe;
        (self.is_terminal && master != NONE).then_some(master)
    }

    /// Takes notice of what it reports, and says what its owner must know before.
    pub fn note(
        &mut self,
        report: &Report,
        fds: &[Fd],
        outgoing: &mut Outgoing,
    ) -> sys::Result<()> {
        let id = self.id;
        match report {
            Report::Started { pid } => {
                self.pid = Some(*pid);
                if let [master, ..] = *fds {
                    sys::set_nonblocking(master)?;
                    self.input.pipe = sys::dup_above(master, 3)?;
                    self.outputs[Lane::Output as usize].pipe = master;
                }
            }
            Report::Ended { .. } => {
                for lane in [Lane::Output, Lane::Errors] {
                    let total = self.outputs[lane as usize].written_bytes();
                    outgoing.say(Answer::Count { id, lane, total }, &[])?;
                }
            }
            Report::Failed { .. } => {}
        }
        Ok(())
    }

    /// Nothing of it is left but output.
    pub fn end(&mut self) {
        close(&mut self.report);
        self.input.close();
        for output in &mut self.outputs {
            if output.is_discarded {
                close(&mut output.pipe);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.report == NONE && self.outputs.iter().all(|output| output.pipe == NONE)
    }

    pub fn grant(&mut self, lane: Lane, credit: u64) {
        let output = &mut self.outputs[lane as usize];
        let credit = usize::try_from(credit).unwrap_or(OUTPUT_WINDOW);
        output.credit = output.credit.saturating_add(credit).min(OUTPUT_WINDOW);
    }

    /// Its owner wants no more of a channel.
    pub fn discard(&mut self, lane: Lane) {
        let is_gone = self.report == NONE;
        let output = &mut self.outputs[lane as usize];
        output.is_discarded = true;
        if is_gone {
            close(&mut output.pipe);
        }
    }

    /// Will pass on a list of processes.
    pub fn take_list(&mut self, pipe: Fd) {
        let output = &mut self.outputs[Lane::Processes as usize];
        close(&mut output.pipe);
        *output = Output::new(pipe);
    }

    /// Passes on what a channel brings; whether it is at its end.
    pub fn pass(&mut self, lane: Lane, outgoing: &mut Outgoing) -> sys::Result<bool> {
        let id = self.id;
        let output = &mut self.outputs[lane as usize];
        let read = if output.is_discarded {
            outgoing.discard(output.pipe)
        } else {
            let most = (output.credit - cost(0)).min(MOST_PAYLOAD);
            outgoing.take(id, lane, output.pipe, most)
        };
        match read {
            Ok(count @ 1..) => {
                output.total += count as u64;
                if !output.is_discarded {
                    output.credit -= cost(count);
                }
                Ok(false)
            }
            Err(EAGAIN | EINTR) => Ok(false),
            // A terminal whose other end nobody has open any more answers `EIO`.
            Ok(0) | Err(_) => {
                let total = output.total;
                close(&mut output.pipe);
                outgoing.say(Answer::End { id, lane, total }, &[])?;
                Ok(true)
            }
        }
    }

    /// Passes on input, of which nothing may be new.
    pub fn feed(&mut self, bytes: &[u8], outgoing: &mut Outgoing) -> sys::Result<()> {
        let id = self.id;
        let before = self.input.is_open();
        let taken = self.input.feed(bytes)?;
        self.tell_taken(taken, outgoing)?;
        if before && !self.input.is_open() && !self.input.is_ending {
            outgoing.say(Answer::InputClosed { id }, &[])?;
        }
        Ok(())
    }

    /// Moves input from a pipe, as far as the command takes it at once; how much.
    pub fn move_input(&mut self, from: Fd, left: u64, outgoing: &mut Outgoing) -> sys::Result<u64> {
        let most = usize::try_from(left).map_or(MOST_PAYLOAD, |left| left.min(MOST_PAYLOAD));
        let moved = self.input.take_from(from, most);
        self.tell_taken(moved, outgoing)?;
        Ok(moved as u64)
    }

    /// Says how much was taken, once it is worth it: whoever has used all of the window is told.
    fn tell_taken(&mut self, bytes: usize, outgoing: &mut Outgoing) -> sys::Result<()> {
        self.input.untold += bytes as u64;
        if self.input.untold < UNTOLD_BYTES {
            return Ok(());
        }
        let (id, bytes) = (self.id, core::mem::take(&mut self.input.untold));
        outgoing.say(Answer::Taken { id, bytes }, &[])
    }

    /// No more input comes. A terminal has no end.
    pub fn close_input(&mut self) {
        if !self.is_terminal {
            self.input.is_ending = true;
            if self.input.is_empty() {
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

/// What a command is given to read.
struct Input {
    pipe: Fd,
    /// What the pipe had no room for; no memory before there is something.
    buffer: &'static mut [u8],
    start: usize,
    end: usize,
    /// It is closed once the buffer is empty.
    is_ending: bool,
    is_large: bool,
    /// What was taken, and the owner not told.
    untold: u64,
}

impl Input {
    fn new(pipe: Fd) -> Self {
        Self {
            pipe,
            buffer: &mut [],
            start: 0,
            end: 0,
            is_ending: false,
            is_large: false,
            untold: 0,
        }
    }

    fn is_open(&self) -> bool {
        self.pipe != NONE
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn is_waiting(&self) -> bool {
        self.is_open() && !self.is_empty()
    }

    /// Writes what it can and keeps the rest; how much was written. It is closed where nobody reads.
    fn feed(&mut self, bytes: &[u8]) -> sys::Result<usize> {
        if !self.is_open() {
            return Ok(0);
        }
        let mut written = 0;
        if !self.is_empty() {
            written += self.write_kept();
        }
        let mut rest = bytes;
        if self.is_open() && self.is_empty() && !rest.is_empty() {
            let count = self.write(rest);
            written += count;
            rest = &rest[count..];
        }
        if self.is_open() && !rest.is_empty() {
            self.keep(rest)?;
        }
        if self.is_ending && self.is_empty() {
            self.close();
        }
        Ok(written)
    }

    /// Moves bytes from a pipe where nothing is kept that comes before them.
    fn take_from(&mut self, from: Fd, most: usize) -> usize {
        if !self.is_open() || !self.is_empty() {
            return 0;
        }
        let moved = sys::splice(from, self.pipe, most, false).unwrap_or(0);
        if moved < most && !self.is_large {
            self.is_large = true;
            sys::enlarge_pipe(self.pipe, LARGE_PIPE);
        }
        moved
    }

    fn write_kept(&mut self) -> usize {
        let (start, end) = (self.start, self.end);
        // So that writing may close it.
        let buffer = core::mem::take(&mut self.buffer);
        let count = self.write(&buffer[start..end]);
        if self.is_open() {
            self.buffer = buffer;
            self.start += count;
        } else {
            sys::unmap_bytes(buffer);
        }
        count
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        match sys::write(self.pipe, bytes) {
            Ok(count) => {
                if count < bytes.len() && !self.is_large {
                    self.is_large = true;
                    sys::enlarge_pipe(self.pipe, LARGE_PIPE);
                }
                count
            }
            Err(EAGAIN | EINTR) => 0,
            Err(_) => {
                self.close();
                0
            }
        }
    }

    /// Keeps bytes for later. There is room for as many as may come.
    fn keep(&mut self, bytes: &[u8]) -> sys::Result<()> {
        if self.buffer.is_empty() {
            self.buffer = sys::map_bytes(INPUT_WINDOW)?;
        }
        if self.buffer.len() - self.end < bytes.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.get_mut(self.end..self.end + bytes.len());
        room.ok_or(EINVAL)?.copy_from_slice(bytes);
        self.end += bytes.len();
        Ok(())
    }

    fn close(&mut self) {
        close(&mut self.pipe);
        sys::unmap_bytes(core::mem::take(&mut self.buffer));
        self.start = 0;
        self.end = 0;
    }
}

/// What a command writes to.
struct Output {
    pipe: Fd,
    credit: usize,
    /// Bytes so far.
    total: u64,
    is_discarded: bool,
}

impl Output {
    fn new(pipe: Fd) -> Self {
        Self {
            pipe,
            credit: OUTPUT_WINDOW,
            total: 0,
            is_discarded: false,
        }
    }

    fn may_be_read(&self) -> bool {
        self.pipe != NONE && (self.is_discarded || self.credit >= LEAST_CREDIT)
    }

    /// What was written to it, read or not.
    fn written_bytes(&self) -> u64 {
        let unread = match self.pipe {
            NONE => 0,
            pipe => sys::unread_bytes(pipe).unwrap_or(0),
        };
        self.total + unread as u64
    }
}
