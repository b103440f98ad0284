//! For the tests of people who write a backend, a model client or a tool provider for Cantle: what
//! it must pass, and scripted servers to test it against.
//!
//! - [`conformance`] has a suite for each of the three, as a function over the trait that returns a
//!   report.
//! - [`openai`] is a server that speaks OpenAI's Chat Completions from a script, and goes wrong as
//!   the script says.
//!
//! A dev-dependency, beside `cantle-core`: nothing here has a place in a program.

pub mod conformance;
pub mod openai;
