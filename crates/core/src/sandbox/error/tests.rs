use std::error::Error as _;

use super::*;
use crate::tool::{ProviderError, ProviderErrorKind, ToolError, ToolErrorKind};

#[test]
fn io_errors_map_to_kinds() {
    use SandboxErrorKind as Kind;

    let cases = [
        (io::ErrorKind::NotFound, Kind::NotFound),
        (io::ErrorKind::AlreadyExists, Kind::AlreadyExists),
        (io::ErrorKind::PermissionDenied, Kind::PermissionDenied),
        (io::ErrorKind::ReadOnlyFilesystem, Kind::PermissionDenied),
        (io::ErrorKind::NotADirectory, Kind::NotADirectory),
        (io::ErrorKind::IsADirectory, Kind::NotAFile),
        (io::ErrorKind::StorageFull, Kind::StorageFull),
        (io::ErrorKind::QuotaExceeded, Kind::StorageFull),
        (io::ErrorKind::InvalidInput, Kind::InvalidInput),
        (io::ErrorKind::InvalidFilename, Kind::InvalidInput),
        (io::ErrorKind::ArgumentListTooLong, Kind::InvalidInput),
        (io::ErrorKind::BrokenPipe, Kind::Closed),
        (io::ErrorKind::ConnectionReset, Kind::Io),
        (io::ErrorKind::Other, Kind::Io),
    ];
    for (from, kind) in cases {
        let error = SandboxError::io("failed to read `x`", from.into());
        assert_eq!(error.kind(), kind, "{from:?}");
        assert_eq!(error.to_string(), format!("failed to read `x`: {from}"));
        // Stated by the message.
        assert!(error.source().is_none());
    }
}

#[test]
fn errno_values_map_to_kinds() {
    // Linux: E2BIG, ENAMETOOLONG, ENOTEMPTY, ELOOP.
    for (number, kind) in [
        (7, SandboxErrorKind::InvalidInput),
        (36, SandboxErrorKind::InvalidInput),
        (39, SandboxErrorKind::Io),
        (40, SandboxErrorKind::Io),
    ] {
        let error = SandboxError::io("failed", io::Error::from_raw_os_error(number));
        assert_eq!(error.kind(), kind, "{number}");
    }
}

#[test]
fn unenforceable_fields_are_named() {
    let fields = vec![PolicyField::Network, PolicyField::Memory];
    let error = SandboxError::unenforceable("local", fields.clone());
    assert_eq!(error.kind(), SandboxErrorKind::Unenforceable);
    assert_eq!(error.unenforced(), fields);
    assert_eq!(
        error.to_string(),
        "the local backend can't enforce the policy here: network, memory"
    );
}

#[test]
fn advice_is_only_in_the_tool_error() {
    let error = SandboxError::new(SandboxErrorKind::NotFound, "there is no `x`")
        .with_advice("List the directory first.");
    assert_eq!(error.to_string(), "there is no `x`");
    assert_eq!(error.advice(), Some("List the directory first."));
    let error = ToolError::from(error);
    assert_eq!(error.kind(), ToolErrorKind::Failed);
    assert_eq!(
        error.to_string(),
        "there is no `x`. List the directory first."
    );
}

#[test]
fn a_gone_sandbox_keeps_its_kind() {
    let error = ToolError::from(SandboxError::gone("it is gone"));
    assert_eq!(error.kind(), ToolErrorKind::SandboxGone);
    let error = ProviderError::from(SandboxError::gone("it is gone"));
    let inner = error.sandbox_error().map(SandboxError::kind);
    assert_eq!(inner, Some(SandboxErrorKind::Gone));
    assert_eq!(error.kind(), ProviderErrorKind::Sandbox);
    // The message is that of the sandbox, so the sandbox's error is no source.
    assert_eq!(error.to_string(), "it is gone");
    assert!(error.source().is_none());
}
