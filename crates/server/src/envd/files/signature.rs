//! Signed file URLs, which grant one operation on one file without the token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::FileQuery;
use crate::keys;

const VERSION: &str = "v1_";
/// Maximum size of a path and a user name: a request without credentials is compared with every sandbox. No file has a
/// longer path.
const MAX_SIGNED_BYTES: usize = 8192;

/// Operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOperation {
    Read,
    Write,
}

/// Result of checking a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    Valid,
    Invalid,
    Expired,
}

/// Checks whether a query was signed with `token` for this operation.
pub(crate) fn check(query: &FileQuery, operation: FileOperation, token: &str) -> SignatureCheck {
    let Some(signature) = &query.signature else {
        return SignatureCheck::Invalid;
    };
    let signed = [&query.path, &query.username].into_iter().flatten();
    if signed.map(String::len).sum::<usize>() > MAX_SIGNED_BYTES {
        return SignatureCheck::Invalid;
    }
    let expected = sign(query, operation, token);
    if !keys::constant_time_eq(
        signature.trim_end_matches('=').as_bytes(),
        expected.as_bytes(),
    ) {
        return SignatureCheck::Invalid;
    }
    match query.signature_expiration {
        Some(until) if until < Timestamp::now().as_second() => SignatureCheck::Expired,
        _ => SignatureCheck::Valid,
    }
}

fn sign(query: &FileQuery, operation: FileOperation, token: &str) -> String {
    let FileQuery { path, username, .. } = query;
    let path = path.as_deref().unwrap_or_default();
    let username = username.as_deref().unwrap_or_default();
    let operation = match operation {
        FileOperation::Read => "read",
        FileOperation::Write => "write",
    };
    let mut raw = format!("{path}:{operation}:{username}:{token}");
    if let Some(until) = query.signature_expiration {
        raw.push_str(&format!(":{until}"));
    }
    format!("{VERSION}{}", STANDARD_NO_PAD.encode(Sha256::digest(raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_valid_for_one_file_one_operation_and_a_time() {
        let now = Timestamp::now().as_second();
        let mut query = FileQuery {
            path: Some("a".to_owned()),
            username: Some("user".to_owned()),
            signature: None,
            signature_expiration: Some(now + 60),
        };
        query.signature = Some(sign(&query, FileOperation::Read, "t"));
        for (operation, token, expected) in [
            (FileOperation::Read, "t", SignatureCheck::Valid),
            (FileOperation::Write, "t", SignatureCheck::Invalid),
            (FileOperation::Read, "u", SignatureCheck::Invalid),
        ] {
            assert_eq!(check(&query, operation, token), expected);
        }
        let read = |query: &FileQuery| check(query, FileOperation::Read, "t");
        query.signature_expiration = Some(now + 61);
        assert_eq!(read(&query), SignatureCheck::Invalid);
        query.signature_expiration = Some(now - 1);
        query.signature = Some(sign(&query, FileOperation::Read, "t"));
        assert_eq!(read(&query), SignatureCheck::Expired);
        query.path = Some("a".repeat(MAX_SIGNED_BYTES));
        query.signature = Some(sign(&query, FileOperation::Read, "t"));
        assert_eq!(read(&query), SignatureCheck::Invalid);
    }

    #[test]
    fn signatures_equal_those_of_the_sdks() {
        let query = FileQuery {
            path: Some("/home/user/a".to_owned()),
            ..FileQuery::default()
        };
        // `base64(sha256("/home/user/a:read::t"))`.
        let expected: String = STANDARD_NO_PAD.encode(Sha256::digest("/home/user/a:read::t"));
        assert_eq!(
            sign(&query, FileOperation::Read, "t"),
            format!("v1_{expected}")
        );
    }
}
