//! Tools and tool providers that most agents need.
//!
//! [`CodeExec`] provides a sandbox and the tool that runs commands in it. [`Finish`] ends a run;
//! [`FinishWith`] and [`finish_schema`] do so with a structured result. [`view_image`] shows the model an
//! image, [`user_input`] asks the user, and [`calculator`] evaluates arithmetic. All of these are
//! configuration that any number of sessions can share, and work with every backend.

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
