//! Tools and tool providers that most agents need.
//!
//! [`CodeExec`] gives a session a sandbox and the tool that runs commands in it. [`Finish`] is how a
//! model says that it is done; [`FinishWith`] and [`finish_schema`] are the same for results that
//! have a structure. [`view_image`] shows the model a picture, [`user_input`] lets it ask the user, and
//! [`calculator`] calculates. Everything here is configuration, shared by any number of sessions; it knows
//! sandboxes by their trait and never which backend made one.

#![forbid(unsafe_code)]

mod calculator;
mod code_exec;
mod finish;
mod user_input;
mod view_image;

pub use self::calculator::calculator;
pub use self::code_exec::{CodeExec, InvalidPattern};
pub use self::finish::{Finish, FinishParams, FinishWith, finish_schema};
pub use self::user_input::user_input;
pub use self::view_image::view_image;
