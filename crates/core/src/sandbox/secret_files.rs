//! Names of files that usually hold keys and passwords.

/// Names of files, in lower case.
const FILES: [&str; 22] = [
    ".env",
    ".envrc",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".htpasswd",
    ".vault-token",
    ".dockercfg",
    ".boto",
    ".s3cfg",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "credentials.json",
    "client_secret.json",
    "kubeconfig",
    "terraform.tfstate",
];

/// Names of directories, in lower case.
const DIRECTORIES: [&str; 6] = [".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker"];

/// Ends of the names of key stores, in lower case.
const ENDS: [&str; 7] = [
    ".p12",
    ".pfx",
    ".jks",
    ".keystore",
    ".kdbx",
    ".ppk",
    ".tfvars",
];

/// Returns whether a file of this name usually holds keys or passwords. `.env.sample` and the like do not.
///
/// Private keys in `.pem` and `.key` files can only be told by their content.
///
/// ```
/// use cantle_core::sandbox::looks_secret;
///
/// assert!(looks_secret("service/.env.production"));
/// assert!(looks_secret("home/.ssh/config"));
/// assert!(!looks_secret("service/.env.sample"));
/// ```
pub fn looks_secret(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let mut components = path.split('/').rev();
    let name = components.next().unwrap_or_default();
    let is_sample = ["example", "sample", "template", "dist"]
        .iter()
        .any(|end| name.ends_with(end));
    let is_variables = name.strip_prefix(".env.").is_some() || name.ends_with(".env");
    FILES.contains(&name)
        || (is_variables && !is_sample)
        || ENDS.iter().any(|end| name.ends_with(end))
        || components.any(|directory| DIRECTORIES.contains(&directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_told_by_name() {
        for secret in [
            ".env",
            "a/.ENV",
            ".env.local",
            "prod.env",
            "id_rsa",
            "x/.aws/credentials",
            "store.P12",
            ".npmrc",
        ] {
            assert!(looks_secret(secret), "{secret}");
        }
        for harmless in [
            ".env.sample",
            ".env.dist",
            "id_rsa.pub",
            "environment.txt",
            "src/env.rs",
            "keys.md",
            "",
            "a.pem",
        ] {
            assert!(!looks_secret(harmless), "{harmless}");
        }
    }
}
