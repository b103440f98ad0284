//! Compiles the supervisor, so that it can be embedded.
//!
//! It is a freestanding program for the target's kernel: no C library, standard library or dependency. Any
//! toolchain that builds Rust programs for the target builds it.

#![expect(
    clippy::expect_used,
    reason = "a failed build reports the reason and ends"
)]

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=program");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let variable = |name| env::var(name).expect("cargo sets it");
    // Other systems have no supervisor; on other processors the crate fails to compile with a message.
    if variable("CARGO_CFG_TARGET_OS") != "linux" || variable("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        return;
    }
    let output = PathBuf::from(variable("OUT_DIR")).join("supervisor");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args(["--edition", "2024", "--crate-type", "bin"])
        .args(["--crate-name", "cantle_supervisor_program"])
        .args(["--target", &variable("TARGET")])
        .args([
            "-C",
            "panic=abort",
            "-C",
            "opt-level=2",
            "-C",
            "strip=symbols",
        ])
        // A single segment at a fixed address, which needs neither a loader nor relocations.
        .args(["-C", "relocation-model=static"])
        .args(["-C", "target-feature=+crt-static"])
        .args(["-C", "link-arg=-nostartfiles", "-C", "link-arg=-nostdlib"])
        .args(["-C", "link-arg=-Wl,--build-id=none,-z,noexecstack"])
        .arg("-o")
        .arg(&output)
        .arg("program/main.rs");
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // Without it the compiler adds its own start-up code for musl.
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
