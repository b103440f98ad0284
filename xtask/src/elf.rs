//! Enough of ELF to distinguish a static program from one that needs a loader.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const PT_INTERP: u32 = 3;

/// Reports whether the program starts without a loader; a static-pie does.
pub fn is_static(path: &Path) -> Result<bool> {
    let bytes = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let types = segment_types(&bytes).with_context(|| {
        format!(
            "{} is not a 64-bit little-endian ELF program",
            path.display()
        )
    })?;
    Ok(!types.contains(&PT_INTERP))
}

/// Returns the types of the program headers.
fn segment_types(bytes: &[u8]) -> Option<Vec<u32>> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (u64_at(32)?, u16_at(54)?, u16_at(56)?);
    (0..usize::from(count))
        .map(|index| {
            let at = usize::try_from(table)
                .ok()?
                .checked_add(index * usize::from(size))?;
            Some(u32::from_le_bytes(
                bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_build_needs_a_loader() {
        let this_test = std::env::current_exe().unwrap();
        assert!(!is_static(&this_test).unwrap());
    }

    #[test]
    fn other_files_are_errors() {
        assert_eq!(segment_types(b"#!/bin/sh\n"), None);
        assert_eq!(segment_types(b"\x7fELF\x02\x01"), None);
    }
}
