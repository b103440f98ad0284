//! Browser tools: Chromium in the session's sandbox.
//!
//! [`BrowserTools`] is their provider. The browser is a command in the sandbox, with its files, network and limits, and
//! is driven through the DevTools protocol over its pipes. Pages are described by their accessible elements, with
//! references for clicks and input; what a page says is marked as data for the model.

#![forbid(unsafe_code)]

mod actions;
mod browser;
mod connection;
mod failure;
mod keys;
mod provider;
mod requests;
mod result;
mod settings;
mod target;

pub use self::settings::BrowserTools;
