//! Removal of the secrets that are known when a run is exported.

use std::collections::BTreeMap;

use cantle::agent::KeptRun;
use cantle::core::secret::SecretText;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::saved_settings::SavedSettings;

/// Minimum length of a secret: shorter values, such as `1`, are part of ordinary text.
const MIN_CHARS: usize = 6;

/// Endings of the names of variables that hold secrets.
const SECRET_ENDINGS: [&str; 7] = [
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIALS",
    "DSN",
];

/// Replaces secrets by the names of their variables.
///
/// Values of a run's variables are not kept with it, so it knows those that it is given and those that the environment has
/// at export time.
#[derive(Debug)]
pub(crate) struct Redactor {
    /// A secret as it is or as it appears in JSON, and its replacement; the longest first, since one may contain another.
    replacements: Vec<(String, String)>,
    /// Variables of the run whose values are not known.
    unknown: Vec<String>,
}

impl Redactor {
    /// Returns the redactor of a run's variables, of these values of theirs, and of all keys in the environment.
    pub(super) fn new(run: &KeptRun, values: &BTreeMap<String, SecretText>) -> Self {
        let names = SavedSettings::read(run.note.clone()).map(|it| it.variables);
        let mut unknown = names.unwrap_or_default();
        let of_run = |name: &str| unknown.iter().any(|named| named == name);
        let here = environment().filter(|(name, _)| of_run(name) || is_secret(name));
        let known: Vec<_> = here.chain(exposed(values)).collect();
        unknown.retain(|name| !known.iter().any(|(known, _)| known == name));
        Self {
            unknown,
            ..Self::of(known.into_iter())
        }
    }

    /// Returns the redactor of these variables and of all keys in the environment.
    #[cfg(feature = "otel")]
    pub(crate) fn with_values(values: &BTreeMap<String, SecretText>) -> Self {
        let keys = environment().filter(|(name, _)| is_secret(name));
        Self::of(keys.chain(exposed(values)))
    }

    /// Returns the names of the run's variables whose values are not known, such as `A, B and C`; `None` if all are.
    pub(super) fn unknown(&self) -> Option<String> {
        let (last, others) = self.unknown.split_last()?;
        Some(match others {
            [] => last.clone(),
            others => format!("{} and {last}", others.join(", ")),
        })
    }

    fn of(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut replacements = BTreeMap::new();
        for (name, value) in variables {
            for secret in [&*value, value.trim()] {
                if secret.chars().count() < MIN_CHARS {
                    continue;
                }
                for form in [secret.to_owned(), json_content(secret)] {
                    replacements.insert(form, format!("[{name} redacted]"));
                }
            }
        }
        let mut replacements: Vec<_> = replacements.into_iter().collect();
        replacements.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.len()));
        Self {
            replacements,
            unknown: Vec::new(),
        }
    }

    /// Returns a value without secrets in any of its texts.
    ///
    /// # Errors
    /// If the value can't be converted to JSON and back.
    pub(super) fn redact<T: Serialize + DeserializeOwned>(
        &self,
        value: T,
    ) -> serde_json::Result<T> {
        if self.replacements.is_empty() {
            return Ok(value);
        }
        let json = serde_json::to_value(&value)?;
        let redacted = self.redacted(json.clone(), false);
        if redacted == json {
            return Ok(value);
        }
        // A secret that is an ordinary word can be the name of a field or of a variant, which has to stay.
        serde_json::from_value(redacted)
            .or_else(|_| serde_json::from_value(self.redacted(json, true)))
    }

    /// Replaces secrets in all texts. `keeps_words`: not in names of fields, nor in texts that are nothing but a secret.
    fn redacted(&self, json: Value, keeps_words: bool) -> Value {
        match json {
            Value::String(text) => self.redacted_text(text, keeps_words).into(),
            Value::Array(values) => {
                let values = values.into_iter();
                values
                    .map(|value| self.redacted(value, keeps_words))
                    .collect()
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| {
                    let name = match keeps_words {
                        true => name,
                        false => self.redacted_text(name, false),
                    };
                    (name, self.redacted(value, keeps_words))
                });
                Value::Object(fields.collect())
            }
            other => other,
        }
    }

    /// Returns a text without secrets.
    #[cfg(feature = "otel")]
    pub(crate) fn text(&self, text: &str) -> String {
        self.redacted_text(text.to_owned(), false)
    }

    fn redacted_text(&self, mut text: String, keeps_words: bool) -> String {
        for (secret, replacement) in &self.replacements {
            if text.contains(secret) && !(keeps_words && text == *secret) {
                text = text.replace(secret, replacement);
            }
        }
        text
    }
}

fn exposed(values: &BTreeMap<String, SecretText>) -> impl Iterator<Item = (String, String)> {
    let values = values.iter();
    values.map(|(name, value)| (name.clone(), value.expose().to_owned()))
}

fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Returns whether a variable of this name holds a secret.
fn is_secret(name: &str) -> bool {
    let upper = name.to_uppercase();
    SECRET_ENDINGS.iter().any(|ending| upper.ends_with(ending))
}

/// Returns a text as it appears between the quotes of a JSON string.
fn json_content(text: &str) -> String {
    let json = Value::from(text).to_string();
    let inner = json.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    inner.unwrap_or(&json).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redactor(variables: &[(&str, &str)]) -> Redactor {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Redactor::of(variables.iter().map(owned))
    }

    #[test]
    fn secrets_are_replaced_wherever_they_are() {
        let redactor = redactor(&[
            ("A_KEY", "sk-12345678"),
            ("LONG_KEY", "sk-123456789"),
            ("QUOTED", "pass\"word\n"),
            ("DEBUG", "1"),
        ]);
        let nested = json!({"cmd": "login pass\"word"}).to_string();
        let value = json!({"sk-123456789": ["x sk-12345678 1", {"arguments": nested}]});
        let redacted: Value = redactor.redact(value).unwrap();
        let expected = json!({"[LONG_KEY redacted]": [
            "x [A_KEY redacted] 1",
            {"arguments": "{\"cmd\":\"login [QUOTED redacted]\"}"},
        ]});
        assert_eq!(redacted, expected);
    }

    #[test]
    fn words_of_the_format_stay() {
        #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
        #[serde(tag = "event", rename_all = "snake_case")]
        enum Sample {
            Finished { result: String },
        }
        let redactor = redactor(&[("A_KEY", "finished"), ("B_KEY", "result")]);
        let result = "finished with this result".to_owned();
        let redacted = redactor.redact(Sample::Finished { result }).unwrap();
        let result = "[A_KEY redacted] with this [B_KEY redacted]".to_owned();
        assert_eq!(redacted, Sample::Finished { result });
    }
}
