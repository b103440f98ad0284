//! Serialization of types as their text.

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
