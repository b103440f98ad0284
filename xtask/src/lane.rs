//! The lanes of `cargo xtask test`.

/// The environment variable that `cantle_testkit::lane` reads.
pub const VARIABLE: &str = "CANTLE_TEST_LANE";

/// How much is tested.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Lane {
    /// Every behaviour once.
    Quick,
    /// The long matrix as well.
    Full,
}

impl Lane {
    pub fn name(self) -> &'static str {
        match self {
            Lane::Quick => "quick",
            Lane::Full => "full",
        }
    }
}
