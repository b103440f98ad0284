//! Runs the target that `CANTLE_FUZZ_TARGET` names: under libFuzzer, or, in an ordinary build, once for each file.

#![cfg_attr(cantle_fuzzing, no_main)]
#![expect(clippy::expect_used, reason = "a wrong call ends the program")]

use cantle_fuzz::Target;

fn target() -> Target {
    let name = std::env::var("CANTLE_FUZZ_TARGET").expect("CANTLE_FUZZ_TARGET names a target");
    cantle_fuzz::find(&name).expect("CANTLE_FUZZ_TARGET is a target")
}

#[cfg(cantle_fuzzing)]
mod fuzzing {
    use std::sync::OnceLock;

    use cantle_fuzz::Target;

    static TARGET: OnceLock<Target> = OnceLock::new();

    libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.get_or_init(super::target).run)(data));
}

#[cfg(not(cantle_fuzzing))]
fn main() {
    for file in std::env::args_os().skip(1) {
        let data = std::fs::read(&file).expect("the input is readable");
        (target().run)(&data);
    }
}
