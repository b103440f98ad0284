//! Types that are text: their names and their serialization.

/// Displays a type by its `as_str`.
macro_rules! display_as_str {
    ($type:ty) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Names the values of an enum: `ALL`, `as_str` and `Display`.
macro_rules! names {
    ($type:ident { $($value:ident: $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values, in order.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// Returns the name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        display_as_str!($type);
    };
}

/// Serializes a type through its `Display` and `FromStr`.
macro_rules! serialize_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text: String = serde::Deserialize::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
