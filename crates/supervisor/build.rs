//! Compiles the supervisor, so that it can be embedded.
//!
//! It is a program of its own, for the target's kernel and nothing else: no C library, no standard
//! library, no dependency. What is needed to build any Rust program for the target builds it.

#![expect(
    clippy::expect_used,
    reason = "a build that can't go on says why and ends"
)]

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=program");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let variable = |name| env::var(name).expect("cargo sets it");
    // On other systems there is nothing to supervise; on other processors the crate says so.
    if variable("CARGO_CFG_TARGET_OS") != "linux" || variable("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        return;
    }
    let output = PathBuf::from(variable("OUT_DIR")).join("supervisor");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "cantle_supervisor_program",
        ])
        .args(["--crate-type", "bin", "--target", &variable("TARGET")])
        .args([
            "-C",
            "panic=abort",
            "-C",
            "opt-level=2",
            "-C",
            "strip=symbols",
        ])
        // One piece at a fixed address, that needs neither a loader nor relocations.
        .args([
            "-C",
            "relocation-model=static",
            "-C",
            "target-feature=+crt-static",
        ])
        .args(["-C", "link-arg=-nostartfiles", "-C", "link-arg=-nostdlib"])
        .args(["-C", "link-arg=-Wl,--build-id=none,-z,noexecstack"])
        .arg("-o")
        .arg(&output)
        .arg("program/main.rs");
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // Or the compiler adds the start-up code that it brings for musl.
        rustc.args(["-C", "link-self-contained=no"]);
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    let status = rustc.status().expect("the Rust compiler runs");
    assert!(
        status.success(),
        "failed to compile the supervisor: {status}"
    );
    println!("cargo::rustc-env=CANTLE_SUPERVISOR={}", output.display());
}
