//! The encoding. A type that crosses the wire is declared once; both directions are derived from that.
//!
//! Numbers are little-endian. A string is its length without the NUL (`u32`), its bytes and the NUL; bytes
//! are their length and themselves; an enum is its tag (`u8`) and the fields of the variant.

use core::ffi::CStr;

/// A type with a wire representation.
pub trait Wire<'b>: Sized {
    /// Passes the encoded value to `sink`, in pieces.
    fn write_to(&self, sink: &mut dyn FnMut(&[u8]));

    /// Reads a value; `None` if it is truncated or invalid.
    fn read_from(reader: &mut Reader<'b>) -> Option<Self>;
}

/// A cursor over encoded values.
#[derive(Clone, Debug)]
pub struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    /// Starts at the first byte.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether every byte has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next value.
    pub fn read<T: Wire<'b>>(&mut self) -> Option<T> {
        T::read_from(self)
    }

    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

/// Encodes a value at the start of `buffer`. Returns its length, or `None` if the buffer is too small.
pub fn encode_into<'b>(value: &impl Wire<'b>, buffer: &mut [u8]) -> Option<usize> {
    let mut end = Some(0_usize);
    value.write_to(&mut |piece| {
        end = end.and_then(|start| {
            let end = start.checked_add(piece.len())?;
            buffer.get_mut(start..end)?.copy_from_slice(piece);
            Some(end)
        });
    });
    end
}

macro_rules! number {
    ($($type:ty)*) => {$(
        impl<'b> Wire<'b> for $type {
            fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
                sink(&self.to_le_bytes());
            }

            fn read_from(reader: &mut Reader<'b>) -> Option<Self> {
                let bytes = reader.take(size_of::<Self>())?;
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

number!(u8 u16 u32 i32 u64);

impl<'b> Wire<'b> for bool {
    fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
        sink(&[u8::from(*self)]);
    }

    fn read_from(reader: &mut Reader<'b>) -> Option<Self> {
        Some(reader.read::<u8>()? != 0)
    }
}

impl<'b> Wire<'b> for &'b [u8] {
    fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
        // A body of 4 GiB is refused long before.
        u32::try_from(self.len()).unwrap_or(u32::MAX).write_to(sink);
        sink(self);
    }

    fn read_from(reader: &mut Reader<'b>) -> Option<Self> {
        let length = reader.read::<u32>()?;
        reader.take(length as usize)
    }
}

impl<'b> Wire<'b> for &'b CStr {
    fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
        self.to_bytes().write_to(sink);
        sink(&[0]);
    }

    fn read_from(reader: &mut Reader<'b>) -> Option<Self> {
        let length = reader.read::<u32>()? as usize;
        CStr::from_bytes_with_nul(reader.take(length.checked_add(1)?)?).ok()
    }
}

impl<'b, T: Wire<'b>> Wire<'b> for Option<T> {
    fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
        self.is_some().write_to(sink);
        if let Some(value) = self {
            value.write_to(sink);
        }
    }

    fn read_from(reader: &mut Reader<'b>) -> Option<Self> {
        Some(match reader.read()? {
            true => Some(reader.read()?),
            false => None,
        })
    }
}

impl<'b, A: Wire<'b>, B: Wire<'b>> Wire<'b> for (A, B) {
    fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
        self.0.write_to(sink);
        self.1.write_to(sink);
    }

    fn read_from(reader: &mut Reader<'b>) -> Option<Self> {
        Some((reader.read()?, reader.read()?))
    }
}

/// Declares a struct and derives [`Wire`]: its fields in order.
macro_rules! wire_struct {
    ($(#[$meta:meta])* pub struct $name:ident<$life:lifetime> {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<$life> {
            $(
                #[allow(missing_docs, reason = "a name can suffice")]
                $(#[$field_meta])*
                pub $field: $type,
            )*
        }

        impl<$life> $crate::wire::Wire<$life> for $name<$life> {
            fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
                $($crate::wire::Wire::write_to(&self.$field, sink);)*
            }

            fn read_from(reader: &mut $crate::wire::Reader<$life>) -> Option<Self> {
                Some(Self { $($field: reader.read()?,)* })
            }
        }
    };
}

/// Declares an enum and derives [`Wire`]: a variant's tag, then its fields in order. With
/// `message LENGTH`, values are also exchanged as messages of that length, padded with zeros.
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident $(<$life:lifetime>)? $(message $length:ident)? {
        $($(#[$variant_meta:meta])* $variant:ident
            $({ $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? })? = $tag:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name $(<$life>)? {
            $($(#[$variant_meta])* $variant $({
                $(
                    #[allow(missing_docs, reason = "a name can suffice")]
                    $(#[$field_meta])*
                    $field: $type,
                )*
            })?,)*
        }

        impl<'b> $crate::wire::Wire<'b> for $name $(<$life>)? {
            fn write_to(&self, sink: &mut dyn FnMut(&[u8])) {
                match self {
                    $(Self::$variant $({ $($field,)* })? => {
                        sink(&[$tag]);
                        $($($crate::wire::Wire::write_to($field, sink);)*)?
                    })*
                }
            }

            fn read_from(reader: &mut $crate::wire::Reader<'b>) -> Option<Self> {
                Some(match reader.read::<u8>()? {
                    $($tag => Self::$variant $({ $($field: reader.read()?,)* })?,)*
                    _ => return None,
                })
            }
        }

        $(impl $name {
            /// Returns the value as a message.
            pub fn encode(self) -> [u8; $length] {
                let mut message = [0; $length];
                // A test encodes every variant, so the length suffices.
                let _ = $crate::wire::encode_into(&self, &mut message);
                message
            }

            /// Reads a message; `None` if it is truncated or invalid.
            pub fn decode(message: &[u8]) -> Option<Self> {
                let message = message.first_chunk::<$length>()?;
                $crate::wire::Reader::new(message).read()
            }
        })?
    };
}

pub(crate) use {wire_enum, wire_struct};
