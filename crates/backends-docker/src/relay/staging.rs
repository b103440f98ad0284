//! Large files, into the sandbox and out of it past the relay's stream.
//!
//! Whoever else moves them may do more in the sandbox than its user. So the user is asked first whether
//! a file can be written; it is brought to [`STAGING`], where only the relay changes names, and the
//! user gives it its own. What is read the user opens, and links to where the relay takes it
//! from there; if it still is the file that was opened, it is brought out. Where anything of that can't
//! be (another file system, another's file, an engine that refuses) the stream does it.
//!
//! While an engine brings a file nobody can look at the container, kill it or remove it. So it does that
//! only for as long as the bytes flow, and not long in any case; the stream does the rest.

use std::ffi::{CStr, CString};
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use bytes::{Buf as _, Bytes, BytesMut};
use cantle_core::sandbox::{ByteRange, ByteStream, SandboxError, SandboxPath, WriteOptions};
use cantle_supervisor::frames::{Channels, Request};
use cantle_supervisor::tasks::{COMPLETE, INCOMPLETE, Task};
use cantle_supervisor::wire::{OFFERED, STAGING};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::select;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::Inner;
use super::feed::{Feed, LEASE, STILL};
use super::files::{Running, body, check_size, output};
use super::link;
use super::options::c_path;

/// Smaller files are written before somebody else has been asked.
const LEAST_BYTES: u64 = 8 * 1024 * 1024;

/// Numbers begin again after this one.
const MOST_NUMBER: u32 = 0xff_ffff;

/// Pieces of a file between the engine and the reader.
const PIECES_IN_FLIGHT: usize = 4;

/// Who can bring files into a sandbox in another way.
#[async_trait]
pub(crate) trait Staging: std::fmt::Debug + Send + Sync {
    /// Writes a file, of which so many bytes come or an error.
    ///
    /// # Errors
    /// Those of the data, as they are, and its own.
    async fn put(&self, file: StagedFile, data: ByteStream) -> Result<(), StagingError>;

    /// Reads a file of [`STAGING`]; ends early where it breaks off.
    async fn get(&self, name: &str) -> Result<Brought, SandboxError>;
}

/// A file on its way out of a sandbox.
pub(crate) struct Brought {
    /// How many bytes there are to come.
    pub(crate) size_bytes: u64,
    /// What comes.
    pub(crate) data: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
}

/// A file to be brought to a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct StagedFile {
    /// Where; its directory is [`STAGING`].
    pub(crate) name: String,
    /// Of how many bytes.
    pub(crate) size_bytes: u64,
    /// Its permissions.
    pub(crate) mode: u32,
    /// Whose it is.
    pub(crate) owner: (u32, u32),
}

/// Why a file was not brought.
#[derive(Debug)]
pub(crate) enum StagingError {
    /// There are no such bytes.
    Data(SandboxError),
    /// It can't be done that way.
    Itself(SandboxError),
}

/// What is known of the other way.
#[derive(Debug, Default)]
pub(super) struct Staged {
    next: AtomicU32,
    /// It didn't work once.
    is_out_of_use: AtomicBool,
}

impl Staged {
    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed) & MOST_NUMBER
    }
}

/// A file that may be there until this is dropped.
struct Place {
    stream: Arc<link::Stream>,
    number: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let number = self.number;
        self.stream.say(Request::Unstage { number });
    }
}

/// The data, with an error where there are more or fewer than there should be.
fn counted(path: &SandboxPath, options: WriteOptions, data: ByteStream) -> ByteStream {
    let path = path.clone();
    let mut total_bytes = 0;
    let end = stream::iter([None]);
    Box::pin(data.map(Some).chain(end).filter_map(move |next| {
        let checked = match next.transpose() {
            Err(error) => Some(Err(error)),
            Ok(piece) => {
                total_bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                match check_size(&path, options, total_bytes, piece.is_none()) {
                    Ok(()) => piece.map(Ok),
                    Err(error) => Some(Err(error)),
                }
            }
        };
        ready(checked)
    }))
}

fn numbered(directory: &CStr, number: u32) -> Option<CString> {
    let name = number.to_string();
    CString::new([directory.to_bytes(), b"/", name.as_bytes()].concat()).ok()
}

impl Inner {
    /// Reads all of a file, in the other way where it is large; `None` where that is not to be tried.
    pub(super) async fn read_offered(
        &self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Option<Result<ByteStream, SandboxError>> {
        let is_all = range.offset == 0 && range.length.is_none();
        let staging = self.options.staging.as_ref().filter(|_| is_all)?;
        if self.staged.is_out_of_use.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.staged.number();
        let task = Task::Offer {
            path: &c_path(&self.options.absolute(path)).ok()?,
            offered: &numbered(OFFERED, number)?,
            least_bytes: LEAST_BYTES,
        };
        let gate = &self.gates.reads;
        let begun = self.begin(gate, "read", path, body(&task, &[]), Channels::All);
        let mut running = begun.await.ok()?;
        let stream = Arc::clone(&self.link.stream);
        let place = Place { stream, number };
        let inode = match answer(&mut running).await {
            Ok(Answer::Offered { inode }) => inode,
            Ok(Answer::Reads(first)) => return Some(Ok(output(first, running))),
            Err(error) => return Some(Err(error)),
        };
        let id = running.spawned.command.id;
        self.link.stream.say(Request::Stage { id, number });
        let brought = match running.spawned.staged.recv().await {
            Some(staged) if staged == inode => staging.get(&number.to_string()).await.ok(),
            _ => None,
        };
        let reading = Reading {
            running,
            _place: place,
        };
        Some(match brought {
            Some(brought) => Ok(reading.brought(brought)),
            None => reading.rest(0).await,
        })
    }

    /// Writes a file in the other way; where that can't be, the data come back, untouched.
    pub(super) async fn write_staged(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<Result<(), SandboxError>, ByteStream> {
        let limit = self.options.limits.file_size_bytes;
        let fits = |size: &u64| *size >= LEAST_BYTES && limit.is_none_or(|limit| *size <= limit);
        let (Some(staging), Some(owner), Some(size_bytes), false) = (
            &self.options.staging,
            self.options.identity,
            options.size_bytes.filter(fits),
            self.staged.is_out_of_use.load(Ordering::Relaxed),
        ) else {
            return Err(data);
        };
        let number = self.staged.number();
        let Some((mut running, place)) = self.ask_for_place(path, options.mode, number).await
        else {
            return Err(data);
        };
        let file = StagedFile {
            name: number.to_string(),
            size_bytes,
            mode: options.mode & 0o777,
            owner,
        };
        let feed = Feed::new(counted(path, options, data));
        let feed = Arc::new(Mutex::new(Some(feed)));
        let fed = stream::unfold(Arc::clone(&feed), async |feed| {
            let piece = feed.lock().await.as_mut()?.next().await?;
            Some((piece, feed))
        });
        let put = select! {
            biased;
            () = running.over() => Ok(()),
            put = staging.put(file, Box::pin(fed)) => put,
        };
        let Some(mut input) = running.spawned.input.take() else {
            return Ok(Err(self.link.stream.gone_error()));
        };
        let (error, is_data) = match put {
            Ok(()) => {
                // It says itself whether it has written the file.
                let _ = input.write(Bytes::from_static(&[COMPLETE])).await;
                return Ok(running.end().await);
            }
            Err(StagingError::Data(error)) => (error, true),
            Err(StagingError::Itself(error)) => {
                self.staged.is_out_of_use.store(true, Ordering::Relaxed);
                (error, false)
            }
        };
        // Whoever was to take the data has let go of them, or is about to.
        let feed = timeout(STILL * 10, feed.lock()).await;
        let Some(feed) = feed.ok().and_then(|mut feed| feed.take()) else {
            return Ok(Err(error));
        };
        if is_data && !feed.is_left() {
            return Ok(Err(error));
        }
        if feed.is_whole() {
            return feed.rest(0).map_or(Ok(Err(error)), Err);
        }
        let id = running.spawned.command.id;
        let identity = owner;
        self.link.stream.say(Request::Adopt {
            id,
            number,
            identity,
        });
        let Some(offset) = running.spawned.staged.recv().await else {
            return Ok(Err(self.link.stream.gone_error()));
        };
        let Some(mut rest) = feed.rest(offset) else {
            return Ok(Err(error));
        };
        let head = [&[INCOMPLETE][..], &offset.to_le_bytes()].concat();
        if input.write(head.into()).await.is_err() {
            return Ok(running.end().await);
        }
        let options = WriteOptions::default().with_mode(options.mode);
        let poured = running.pour(input, path, options, &mut rest).await;
        drop(place);
        Ok(poured)
    }

    /// Begins to write a file that comes later; `None` where it is to be tried in the ordinary way, and
    /// be it to hear why it doesn't go.
    async fn ask_for_place(
        &self,
        path: &SandboxPath,
        mode: u32,
        number: u32,
    ) -> Option<(Running, Place)> {
        let task = Task::Place {
            path: &c_path(&self.options.absolute(path)).ok()?,
            mode: mode & 0o777,
            staged: &numbered(STAGING, number)?,
        };
        let gate = &self.gates.writes;
        let begun = self.begin(gate, "write", path, body(&task, &[]), Channels::All);
        let mut running = begun.await.ok()?;
        running.spawned.output.next().await?;
        let stream = Arc::clone(&self.link.stream);
        Some((running, Place { stream, number }))
    }
}

/// What a reading task says first.
enum Answer {
    /// It waits.
    Offered { inode: u64 },
    /// It reads; what came with that.
    Reads(Option<Bytes>),
}

async fn answer(running: &mut Running) -> Result<Answer, SandboxError> {
    let mut said = BytesMut::new();
    loop {
        match running.spawned.output.next().await {
            // It says why itself.
            None => return running.end().await.map(|()| Answer::Reads(None)),
            Some(piece) => said.extend_from_slice(&piece),
        }
        if said.first() == Some(&0) {
            said.advance(1);
            let first = Some(said.freeze()).filter(|first| !first.is_empty());
            return Ok(Answer::Reads(first));
        }
        if let Some(&[inode]) = said.get(1..).map(|rest| rest.as_chunks().0) {
            let inode = u64::from_le_bytes(inode);
            return Ok(Answer::Offered { inode });
        }
    }
}

/// A file that is offered, and the task that has opened it.
struct Reading {
    running: Running,
    _place: Place,
}

impl Reading {
    /// What comes, and where it breaks off, the rest from the task.
    fn brought(self, brought: Brought) -> ByteStream {
        let Brought { size_bytes, data } = brought;
        let state = (self.while_taken(data), 0, Some(self));
        Box::pin(stream::unfold(state, move |state| async move {
            let (mut data, offset, reading) = state;
            if let Some(piece) = data.next().await {
                let length = piece.as_ref().map_or(0, |piece| piece.len() as u64);
                return Some((piece, (data, offset + length, reading)));
            }
            let reading = reading.filter(|_| offset < size_bytes)?;
            match reading.rest(offset).await {
                Ok(mut rest) => Some((rest.next().await?, (rest, offset, None))),
                Err(error) => Some((Err(error), (data, offset, None))),
            }
        }))
    }

    /// What comes, until nobody takes it.
    fn while_taken(&self, mut data: Pin<Box<dyn Stream<Item = Bytes> + Send>>) -> ByteStream {
        let (sender, mut pieces) = mpsc::channel(PIECES_IN_FLIGHT);
        let gone = self.running.stream().gone().clone();
        let bring = tokio::spawn(async move {
            let bringing = async {
                while let Ok(Ok(room)) = timeout(STILL, sender.reserve()).await
                    && let Ok(Some(piece)) = timeout(STILL, data.next()).await
                {
                    room.send(Ok(piece));
                }
            };
            let bringing = timeout(LEASE, bringing);
            gone.run_until_cancelled(bringing).await;
        });
        let bring = AbortOnDropHandle::new(bring);
        Box::pin(stream::poll_fn(move |cx| {
            // Dropped with it, it lets the engine go.
            let _ = &bring;
            pieces.poll_recv(cx)
        }))
    }

    /// What the task itself reads from there.
    async fn rest(mut self, offset: u64) -> Result<ByteStream, SandboxError> {
        if let Some(mut input) = self.running.spawned.input.take() {
            let offset = Bytes::copy_from_slice(&offset.to_le_bytes());
            input.write(offset).await?;
        }
        Ok(output(None, self.running))
    }
}
