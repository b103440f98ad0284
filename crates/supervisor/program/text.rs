//! Short text in a buffer of fixed size: paths below `/proc`, and numbers in them.

use core::ffi::CStr;

/// Text followed by a NUL.
#[must_use]
pub struct Text {
    bytes: [u8; 64],
    length: usize,
}

impl Text {
    pub const fn new() -> Self {
        Self {
            bytes: [0; 64],
            length: 0,
        }
    }

    /// Appends text; what does not fit is cut off.
    pub fn text(mut self, text: &[u8]) -> Self {
        for byte in text {
            // The last byte stays NUL.
            if self.length + 1 < self.bytes.len() {
                self.bytes[self.length] = *byte;
                self.length += 1;
            }
        }
        self
    }

    pub fn number(self, number: i32) -> Self {
        let mut digits = [0; 10];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(&digits[at..])
    }

    /// Appends 16 hexadecimal digits.
    pub fn hex(self, number: u64) -> Self {
        let digit = |at| b"0123456789abcdef"[(number >> (4 * at)) as usize & 15];
        self.text(&core::array::from_fn::<u8, 16, _>(digit))
    }

    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
