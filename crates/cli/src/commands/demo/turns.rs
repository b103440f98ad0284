//! The recorded model of `cantle demo`: its text and commands in each turn.
//!
//! Only the text is fixed. The commands (`steps/*.sh`) run one after another in the same working
//! directory, on the files there, and compute every number that is displayed; so no text in here
//! contains one. They need bash, awk (any), grep, sed, find, xargs and the coreutils, GNU or busybox.
//!
//! # Definitions
//!
//! They are exact, so that a test can recompute each number from the files alone.
//!
//! - **Files**: regular files below the working directory at the time of the inventory (a
//!   `report.md` among the input files is one of them), except those below `.cantle-survey/`,
//!   where the steps keep their tables. Links, pipes, sockets and devices are neither counted,
//!   followed nor opened; each name of a hard-linked file counts. **Directories**: those below
//!   the working directory, without itself and `.cantle-survey`.
//! - **Path**: relative to the working directory, as shown: each byte below 0x20 and 0x7f is `?`,
//!   and in a path that isn't UTF-8 each byte from 0x80 on as well. *Path order* compares the
//!   bytes of shown paths as a whole (so `a-b/f` comes before `a/f`).
//! - **Text file**: no NUL byte before the last byte. An empty file is one. **Empty file**: zero
//!   bytes.
//! - **Lines** of a text file: newline bytes, and one more if the file is not empty and does not
//!   end with one. Any other file has none, and its *Lines* cell says `binary`.
//! - **Extension**: what follows the last dot of the file name, in ASCII lower case, if something
//!   stands before that dot and it is 1 to 16 ASCII letters, digits, `_`, `+` or `-`; otherwise
//!   `(none)`. Sorted by bytes, descending, then by name. If there are more than twelve, the
//!   first eleven are kept and the rest added up in a last row `(N others)`. **Share**: percent
//!   of all bytes, one decimal; `-` if there are no bytes.
//! - **Largest files**: ten, by bytes descending, then path order.
//! - **Identical files**: files of at least one byte with the same SHA-256. Groups are sorted by
//!   surplus bytes (copies - 1, times bytes each), descending, then by their first path. Ten
//!   groups are listed, with five paths each in path order; the line below the table is about all
//!   groups.
//! - **Deepest path**: the file path with the most `/`, the first in path order among equals.
//! - **Chart**: a bar per row of the extension table, 340 units wide for the largest, one
//!   decimal. Sizes are in steps of 1000 with one decimal (`999 B`, `1.0 kB`).
//!
//! In `report.md`, counts have thousands commas, and a path is a code span whose fence is longer
//! than the backticks in it and whose `|` is `\|`. A section whose table would be empty is left
//! out.

/// One recorded turn: text, then commands in the order of their calls.
pub(super) struct Turn {
    pub(super) text: &'static str,
    pub(super) commands: &'static [&'static str],
}

/// The turns that run commands; the one after them calls `finish`.
pub(super) const TURNS: [Turn; 6] = [
    Turn {
        text: "I'll start by looking at what is here.",
        commands: &[include_str!("steps/1-look.sh")],
    },
    Turn {
        text: "Now an inventory: size, lines, checksum and extension of every file.",
        commands: &[include_str!("steps/2-inventory.sh")],
    },
    Turn {
        text: "From that I can add up the extensions, and find the largest files and the duplicates.",
        commands: &[
            include_str!("steps/3a-extensions.sh"),
            include_str!("steps/3b-largest-and-duplicates.sh"),
        ],
    },
    Turn {
        text: "That is enough for the report.",
        commands: &[include_str!("steps/4-report.sh")],
    },
    Turn {
        text: "A chart shows the proportions better than a table.",
        commands: &[include_str!("steps/5-chart.sh")],
    },
    Turn {
        text: "Before I hand this over, I'll read both files back and check them.",
        commands: &[include_str!("steps/6-check.sh")],
    },
];

/// Text of the last turn.
pub(super) const FINISH_TEXT: &str = "The report and the chart are ready.";

/// The `reason` of the finish call.
pub(super) const FINISH_REASON: &str =
    "Surveyed the files: report.md describes them, chart.svg shows what takes the space.";

/// The `paths` of the finish call, both written by the steps.
pub(super) const FINISH_PATHS: [&str; 2] = ["report.md", "chart.svg"];
