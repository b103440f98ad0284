//! The runtime: the entry point, and the memory functions that the compiler calls.

use core::arch::{asm, global_asm};
use core::ffi::{CStr, c_char};

use crate::{guard, relay, sys};

// The kernel starts a program with the stack pointer at the argument count, which `start` receives. The
// ABI demands 8 below a multiple of 16 in a function, as a call leaves it.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {start}",
    "ud2",
    start = sym start,
);

extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: `stack` is the initial stack, laid out by the kernel.
    let code = match unsafe { first_argument(stack) } {
        Some(b"relay") => relay::run(),
        _ => guard::run(),
    };
    sys::exit(code)
}

/// Returns the first argument after the program's name.
///
/// # Safety
/// `stack` points to the argument count, followed by as many pointers to strings.
unsafe fn first_argument(stack: *const usize) -> Option<&'static [u8]> {
    // SAFETY: the caller guarantees the count, and with it the pointers; arguments live as long as the
    // process.
    unsafe {
        if *stack < 2 {
            return None;
        }
        let argument = *stack.add(2).cast::<*const c_char>();
        Some(CStr::from_ptr(argument).to_bytes())
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(101)
}

/// Named by the precompiled `core`; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As `rust_eh_personality`, for a `core` that was not compiled to abort.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    sys::exit(101)
}

/// # Safety
/// As for C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller guarantees `count` bytes at both addresses.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As for C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: `to` is not within the source; the rest as in `memcpy`.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller guarantees `count` bytes at both addresses; `count` is not zero here.
    unsafe {
        asm!("std", "rep movsb", "cld",
            inout("rcx") count => _, inout("rdi") to.add(count - 1) => _,
            inout("rsi") from.add(count - 1) => _, options(nostack));
    }
    to
}

/// # Safety
/// As for C's `memset`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller guarantees `count` bytes.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As for C's `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    let mut at = 0;
    while at < count {
        // SAFETY: the caller guarantees `count` bytes at both addresses. Volatile, or the compiler would
        // turn this loop into a call of this function.
        let (left, right) =
            unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
        at += 1;
    }
    0
}

/// # Safety
/// As for C's `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(left, right, count) }
}

/// # Safety
/// As for C's `strlen`.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller guarantees a NUL.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
