//! Signed addresses of files: who has one may do one thing with one file, without the token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::Query;
use crate::keys;

const VERSION: &str = "v1_";

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What a signature is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    Wrong,
    Expired,
}

/// Whether the signature of a query was made with `token`, for this operation.
pub(crate) fn check(query: &Query, operation: Operation, token: &str) -> Verdict {
    let Some(signature) = &query.signature else {
        return Verdict::Wrong;
    };
    let own = sign(query, operation, token);
    if !keys::same(signature.trim_end_matches('='), &own) {
        return Verdict::Wrong;
    }
    match query.signature_expiration {
        Some(until) if until < Timestamp::now().as_second() => Verdict::Expired,
        _ => Verdict::Good,
    }
}

fn sign(query: &Query, operation: Operation, token: &str) -> String {
    let Query { path, username, .. } = query;
    let path = path.as_deref().unwrap_or_default();
    let username = username.as_deref().unwrap_or_default();
    let mut raw = format!("{path}:{}:{username}:{token}", operation.as_str());
    if let Some(until) = query.signature_expiration {
        raw.push_str(&format!(":{until}"));
    }
    format!("{VERSION}{}", STANDARD_NO_PAD.encode(Sha256::digest(raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_for_one_file_one_operation_and_a_time() {
        let now = Timestamp::now().as_second();
        let mut query = Query {
            path: Some("a".to_owned()),
            username: Some("user".to_owned()),
            signature: None,
            signature_expiration: Some(now + 60),
        };
        query.signature = Some(sign(&query, Operation::Read, "t"));
        assert_eq!(check(&query, Operation::Read, "t"), Verdict::Good);
        assert_eq!(check(&query, Operation::Write, "t"), Verdict::Wrong);
        assert_eq!(check(&query, Operation::Read, "u"), Verdict::Wrong);
        query.signature_expiration = Some(now + 61);
        assert_eq!(check(&query, Operation::Read, "t"), Verdict::Wrong);
        query.signature_expiration = Some(now - 1);
        query.signature = Some(sign(&query, Operation::Read, "t"));
        assert_eq!(check(&query, Operation::Read, "t"), Verdict::Expired);
    }

    #[test]
    fn it_is_what_sdks_make() {
        let query = Query {
            path: Some("/home/user/a".to_owned()),
            ..Query::default()
        };
        // `base64(sha256("/home/user/a:read::t"))`.
        let expected: String = STANDARD_NO_PAD.encode(Sha256::digest("/home/user/a:read::t"));
        assert_eq!(sign(&query, Operation::Read, "t"), format!("v1_{expected}"));
    }
}
