//! Invalid requests and unenforceable policies: the kinds of errors.

use bytes::Bytes;
use cantle_backends_local::Mechanism;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{SandboxErrorKind, SandboxPath, SpawnRequest, Stdin};

use crate::arena::{Arena, LATE};
use crate::case::{Case, Tried};
use crate::mode::Mode;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::promise("have a command with NUL in it run", |arena| {
            runs(
                arena,
                SpawnRequest::shell("echo a\0b"),
                SandboxErrorKind::InvalidInput,
            )
        }),
        Case::promise("have a command of three megabytes run", |arena| {
            let line = format!("echo {}", "x".repeat(3 << 20));
            runs(
                arena,
                SpawnRequest::shell(line),
                SandboxErrorKind::InvalidInput,
            )
        }),
        Case::promise(
            "have a command with thousands of arguments break something",
            |arena| {
                let argv =
                    std::iter::once("true".to_owned()).chain((0..20_000).map(|n| n.to_string()));
                let request = SpawnRequest::argv(argv);
                Box::pin(async move { Ok(arena.run(request).await.error.is_some()) })
            },
        ),
        Case::promise("start in a directory outside", |arena| {
            let outside = SandboxPath::from_os(arena.fixture.outside());
            let request = SpawnRequest::shell("pwd").in_directory(outside.unwrap());
            runs_not_of(arena, request)
        }),
        Case::promise("start in a directory behind a link", |arena| {
            Box::pin(async {
                arena.shell(r#"ln -s "$OUTSIDE" link"#).await;
                let request =
                    SpawnRequest::shell("cat secret").in_directory("link".parse().unwrap());
                let ran = arena.run(request).await;
                Ok(ran.stdout.contains(&arena.fixture.secret))
            })
        }),
        Case::promise("start in a directory that is missing", |arena| {
            let request = SpawnRequest::shell("pwd").in_directory("missing".parse().unwrap());
            runs(arena, request, SandboxErrorKind::NotFound)
        }),
        Case::promise("never read a megabyte of input", |arena| {
            Box::pin(async {
                let input = Stdin::Bytes(Bytes::from(vec![b'x'; 1 << 20]));
                let ran = arena
                    .run(SpawnRequest::shell("echo done").with_stdin(input))
                    .await;
                Ok(ran.stdout != "done\n" || ran.took > LATE)
            })
        }),
        Case::promise("write a line without an end", |arena| {
            Box::pin(async {
                let line =
                    "head -c 20M /dev/zero | tr '\\0' '\\377'; printf '\\n\\342\\202'; exit 3";
                let ran = arena.shell(line).await;
                let wrong = ran.error.is_some() || ran.stdout.len() > 4 << 20;
                Ok(wrong)
            })
        }),
        Case::promise("be strict about what can't be enforced", is_strict),
    ]
}

fn runs(arena: &Arena, request: SpawnRequest, kind: SandboxErrorKind) -> Tried<'_> {
    Box::pin(async move {
        let ran = arena.run(request).await;
        match &ran.error {
            Some(error) if error.kind() == kind => Ok(false),
            _ => Err(ran.summary()),
        }
    })
}

/// If the directory is visible, the command starts like any other, and may be blocked.
fn runs_not_of(arena: &Arena, request: SpawnRequest) -> Tried<'_> {
    Box::pin(async move {
        let ran = arena.run(request).await;
        let mode = arena.mode.ok_or("only in a mode")?;
        Ok(ran.error.is_none() && mode.has(Mechanism::Namespaces))
    })
}

/// The fields that `open` refuses under a strict policy, in each mode.
fn is_strict(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let mode = arena.mode.ok_or("only in a mode")?;
        let mut policy = Policy::workspace();
        policy.subprocesses = Some(false);
        for limit in [
            "processes=64",
            "disk=64M",
            "inodes=1000",
            "memory=1G",
            "open_files=100",
        ] {
            policy
                .limits
                .set(limit)
                .map_err(|error| error.to_string())?;
        }
        let refused = match arena.open_under(policy).await {
            Ok(sandbox) => {
                sandbox.close().await.map_err(|error| error.to_string())?;
                Vec::new()
            }
            Err(error) if error.kind() == SandboxErrorKind::Unenforceable => {
                error.unenforced().to_vec()
            }
            Err(error) => return Err(error.to_string()),
        };
        let expected = unenforced(mode);
        if refused == expected {
            Ok(false)
        } else {
            Err(format!("refused {refused:?}, not {expected:?}"))
        }
    })
}

fn unenforced(mode: Mode) -> Vec<PolicyField> {
    let filter = mode.has(Mechanism::SystemCalls);
    let namespaces = mode.has(Mechanism::Namespaces);
    let files = namespaces || mode.has(Mechanism::Landlock);
    [
        (files, PolicyField::ReadRoots),
        (files, PolicyField::WriteRoots),
        (namespaces || filter, PolicyField::Network),
        (filter, PolicyField::Subprocesses),
    ]
    .into_iter()
    .filter_map(|(enforced, field)| (!enforced).then_some(field))
    .collect()
}
