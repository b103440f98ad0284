//! Needs of tools that a sandbox has to meet when it opens.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::policy::Policy;

/// The needs of a provider's tools for the session's sandbox. They are known before the sandbox opens, because a
/// policy does not change later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Requirements {
    /// Absolute host paths that code reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_roots: Vec<PathBuf>,
    /// Environment variables of commands. They are part of a run's identity, so they hold no secrets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

impl Requirements {
    /// Creates requirements of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether nothing is required.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds those of another provider. Of variables with the same name, the present one stays.
    pub fn merge(&mut self, other: Self) {
        for root in other.read_roots {
            if !self.read_roots.contains(&root) {
                self.read_roots.push(root);
            }
        }
        for (name, value) in other.environment {
            self.environment.entry(name).or_insert(value);
        }
    }

    /// Lets a policy permit them. A policy that permits all reading stays, and so do its own variables.
    pub fn add_to(&self, policy: &mut Policy) {
        if let Some(roots) = &mut policy.read_roots {
            let missing = self.read_roots.iter();
            let missing = missing.filter(|root| !roots.paths.contains(root));
            let missing: Vec<_> = missing.cloned().collect();
            roots.paths.extend(missing);
        }
        for (name, value) in &self.environment {
            let variables = policy.environment.entry(name.clone());
            variables.or_insert_with(|| value.clone().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_extend_a_policy_and_change_nothing_that_it_says() {
        let mut first = Requirements::new();
        first.read_roots = vec!["/opt/a".into()];
        first.environment.insert("A".to_owned(), "1".to_owned());
        let mut second = first.clone();
        second.read_roots.push("/opt/b".into());
        second.environment.insert("A".to_owned(), "2".to_owned());
        second.environment.insert("B".to_owned(), "3".to_owned());
        first.merge(second);
        assert_eq!(first.read_roots, [PathBuf::from("/opt/a"), "/opt/b".into()]);
        assert_eq!(first.environment["A"], "1");

        let mut policy = Policy::workspace();
        policy
            .environment
            .insert("B".to_owned(), "own".to_owned().into());
        first.add_to(&mut policy);
        first.add_to(&mut policy);
        let roots = policy.read_roots.clone().unwrap();
        assert!(roots.system);
        assert_eq!(roots.paths, first.read_roots);
        let value = |name: &str| policy.environment[name].expose().to_owned();
        assert_eq!((value("A"), value("B")), ("1".to_owned(), "own".to_owned()));

        let mut unconfined = Policy::unconfined();
        first.add_to(&mut unconfined);
        assert_eq!(unconfined.read_roots, None);
    }
}
