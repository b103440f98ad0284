//! The journal: the append-only record from which a run is resumed.
//!
//! A run has its own directory in a [`RunStore`], with `journal.jsonl` (one entry per line) and
//! `media` (images and sounds, each stored once, named by SHA-256). The first entry is the
//! [`Header`]; the facts that the state machine was given follow in order, and the end of the run.
//! Lines that a crash left incomplete are recognized ([`seal`]) and cut off when the run is resumed.
//!
//! A fact is on disk (`fdatasync`) before anything that follows from it is done: an answer before
//! its first tool runs, the start of a call before the call. After a kill at any moment the journal
//! therefore knows every effect, or that it may have happened.

mod commit_queue;
mod error;
mod format;
mod identity;
mod lock;
mod media;
mod overview;
mod reader;
mod seal;
mod store;
mod writer;

pub use self::error::{StoreError, StoreErrorKind};
pub(crate) use self::format::{BackgroundAgentRecord, DeliveredFiles, End, Header, VERSION};
pub(crate) use self::identity::Identity;
pub use self::overview::{KeptRun, KeptStatus};
pub(crate) use self::store::{JournalContent, WorkClock, already_finished};
pub use self::store::{LockedRun, RunStore};
pub(crate) use self::writer::Journal;
