//! Sets the cfg `confined` if commands are confined by the kernel, which takes Linux.
//!
//! Elsewhere they run unconfined. That code is checked and tested on Linux, too: with `CANTLE_PORTABLE` set,
//! it is what is built (`cargo xtask check portable`).

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CANTLE_PORTABLE");
    println!("cargo::rustc-check-cfg=cfg(confined)");
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if is_linux && env::var_os("CANTLE_PORTABLE").is_none() {
        println!("cargo::rustc-cfg=confined");
    }
}
