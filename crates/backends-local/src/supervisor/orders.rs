//! The control socket's sending side.
//!
//! The socket holds some 200 orders, which a busy init leaves there. Orders that need no answer are then kept
//! here, and a thread sends them, so that neither the runtime nor a destructor ever waits for init.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use cantle_supervisor::wire::Order;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::MAX_FDS;

/// Maximum number of waiting orders.
const MAX_WAITING: usize = 8192;

/// The orders of a sandbox on their way to init.
#[derive(Debug)]
pub(crate) struct OrderQueue {
    control: OwnedFd,
    /// Orders for which the socket had no room. While there are any, a thread sends them.
    waiting: Mutex<VecDeque<Order>>,
}

impl OrderQueue {
    pub(super) fn new(control: OwnedFd) -> Self {
        Self {
            control,
            waiting: Mutex::default(),
        }
    }

    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Sends an order without blocking.
    ///
    /// # Errors
    /// `BrokenPipe` or `ConnectionReset` if the sandbox is gone, `WouldBlock` if the socket is full.
    pub(crate) fn send(&self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
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

    /// Sends an order without descriptors, now or as soon as the socket has room. Does not block.
    ///
    /// # Errors
    /// As [`send`](Self::send); `WouldBlock` if too many orders wait already.
    pub(crate) fn post(self: &Arc<Self>, order: Order) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            match self.send(order, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
            let queue = Arc::clone(self);
            thread::Builder::new()
                .name("cantle-orders".to_owned())
                .spawn(move || queue.send_waiting())?;
        } else if waiting.contains(&order) {
            return Ok(());
        } else if waiting.len() >= MAX_WAITING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        waiting.push_back(order);
        Ok(())
    }

    /// Sends the waiting orders. Returns when there are none, or the sandbox is gone.
    fn send_waiting(&self) {
        loop {
            let mut polled = [PollFd::new(&self.control, PollFlags::OUT)];
            // Closing the sandbox shuts the socket down, which ends the wait.
            if !matches!(poll(&mut polled, None), Ok(_) | Err(Errno::INTR)) {
                break;
            }
            let mut waiting = self.waiting.lock();
            while let Some(order) = waiting.front() {
                match self.send(*order, &[]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // It fails only if the sandbox is gone, and with it the order's subject.
                    _ => waiting.pop_front(),
                };
            }
            if waiting.is_empty() {
                return;
            }
        }
        self.waiting.lock().clear();
    }
}
