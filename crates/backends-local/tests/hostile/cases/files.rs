//! The host's files: reading, changing and learning about them.

use std::path::Path;

use cantle_backends_local::Mechanism;
use cantle_core::policy::{Policy, PolicyField, ReadRoots};
use cantle_core::sandbox::SandboxErrorKind;

use super::{changes_outside, reports_success, shows_secret};
use crate::arena::{Arena, python};
use crate::case::{Case, FILES, FILTER, Gap, NAMESPACES, NegativeControl, Tried};
use crate::fixture::{Fixture, shared_memory};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = [
        reading(),
        changing(),
        about_the_host(),
        learning(),
        special(),
        own_directory(),
        read_only_commands(),
    ]
    .concat();
    // Root's part of the test creates the program, and is root already.
    if std::env::var_os(crate::SET_UID).is_some() {
        cases.push(set_user_id());
    }
    cases
}

/// Reading through links and mounts.
fn reading() -> Vec<Case> {
    let reads = |name, line| {
        Case::shell(name, line, shows_secret).stopped_by(FILES, Gap::Field(PolicyField::ReadRoots))
    };
    vec![
        reads("read a file outside", r#"cat "$OUTSIDE/secret""#),
        reads(
            "read it through a symbolic link",
            r#"ln -s "$OUTSIDE/secret" link && cat link"#,
        ),
        reads(
            "read it through a link to its directory",
            r#"ln -s "$OUTSIDE" link && cat link/secret"#,
        ),
        reads(
            "read it through a hard link",
            r#"ln "$OUTSIDE/secret" link && cat link"#,
        ),
        reads(
            "read it by a relative path",
            r#"cd ../../../../../../../../..; cat ".$OUTSIDE/secret""#,
        ),
        reads(
            "read it from its own directory",
            r#"cd "$OUTSIDE"; cat secret"#,
        ),
        reads(
            "read it below /proc/self/root",
            r#"cat "/proc/self/root$OUTSIDE/secret""#,
        ),
        reads(
            "read it below another process's root",
            r#"cat "/proc/$VICTIM/root$OUTSIDE/secret" "/proc/$PPID/root$OUTSIDE/secret" \
               "/proc/1/root$OUTSIDE/secret""#,
        ),
        reads(
            "read it by executing it",
            r#"printf '#!%s\n' "$OUTSIDE/secret" > script; chmod +x script; ./script;
               bash "$OUTSIDE/secret" 2>&1; . "$OUTSIDE/secret" 2>&1; true"#,
        ),
        reads(
            "read it by moving it in",
            r#"mv "$OUTSIDE/secret" here && cat here"#,
        ),
        reads(
            "read the names in a directory outside",
            r#"ls "$OUTSIDE" | grep -qx secret && cat "$OUTSIDE"/s*"#,
        ),
        reads("read the host's shared memory", r#"cat "/dev/shm/$TOKEN""#),
        Case::shell(
            "read it through a descriptor of our process",
            r#"for fd in /proc/self/fd/*; do cat "$fd/secret"; done 2>/dev/null"#,
            shows_secret,
        )
        .control(NegativeControl::Raw),
        Case::shell(
            "read a descriptor of the supervisor",
            r#"for fd in /proc/1/fd/* "/proc/$PPID"/fd/*; do
                 readlink "$fd" && echo GOT; done; true"#,
            reports_success,
        )
        .control(NegativeControl::Raw),
        Case::shell("read the password hashes", "cat /etc/shadow", |_, ran| {
            ran.stdout.contains("root:")
        })
        .stopped_by(
            &[
                Mechanism::Namespaces,
                Mechanism::Landlock,
                Mechanism::Identity,
            ],
            Gap::Field(PolicyField::ReadRoots),
        )
        .takes_root(),
        Case::shell(
            "read who the host's users are",
            "cat /etc/passwd",
            |_, ran| {
                let known = std::fs::read_to_string("/etc/passwd").unwrap();
                known.lines().skip(1).any(|line| ran.stdout.contains(line))
            },
        )
        .stopped_by(FILES, Gap::Field(PolicyField::ReadRoots)),
    ]
}

fn changing() -> Vec<Case> {
    let changes = |name, line| {
        Case::shell(name, line, changes_outside)
            .stopped_by(FILES, Gap::Field(PolicyField::WriteRoots))
    };
    vec![
        changes("append to a file outside", r#"echo more >> "$OUTSIDE/target""#),
        changes("empty a file outside", r#": > "$OUTSIDE/target""#),
        changes(
            "truncate a file outside without opening it",
            r#"python3 -ISc 'import os; os.truncate(os.environ["OUTSIDE"] + "/target", 1)'"#,
        ),
        changes("remove a file outside", r#"rm -f "$OUTSIDE/target""#),
        changes("remove a directory outside", r#"rm -rf "$OUTSIDE/directory""#),
        changes("create a file outside", r#"touch "$OUTSIDE/new""#),
        changes("create a directory outside", r#"mkdir "$OUTSIDE/new""#),
        changes("create a link outside", r#"ln -s /etc "$OUTSIDE/new""#),
        changes("create a fifo outside", r#"mkfifo "$OUTSIDE/new""#),
        changes("rename a file outside", r#"mv "$OUTSIDE/target" "$OUTSIDE/new""#),
        changes("move a file out", r#"echo x > own; mv own "$OUTSIDE/new""#),
        changes(
            "swap a file with one outside",
            r#"echo x > own; python3 -ISc '
import ctypes, os
C = ctypes.CDLL(None)
C.renameat2(-100, b"own", -100, os.environb[b"OUTSIDE"] + b"/target", 2)'"#,
        ),
        changes(
            "link a file of the sandbox outside",
            r#"echo x > own; ln own "$OUTSIDE/new""#,
        ),
        changes(
            "write to a file below a read root",
            r#"echo x > "$OUTSIDE/readable/file""#,
        )
        .under(|fixture| with_read_root(fixture, "readable")),
        changes(
            "remount a read root writable",
            r#"mount -o remount,rw,bind "$OUTSIDE/readable"
               unshare -Urm sh -c 'mount -o remount,rw,bind "$OUTSIDE/readable";
                 echo x > "$OUTSIDE/readable/file"'"#,
        )
        .under(|fixture| with_read_root(fixture, "readable"))
        .stopped_by(&[Mechanism::Namespaces, Mechanism::Landlock, Mechanism::SystemCalls], Gap::None),
        changes(
            "write beside a write root",
            r#"cd "$OUTSIDE/writable"; ls >/dev/null; echo x > ../target; echo x > "$OUTSIDE/new""#,
        )
        .under(with_write_root),
        changes(
            "follow a link out of a write root",
            r#"cd "$OUTSIDE/writable"; ln -s "$OUTSIDE/target" "$TMPDIR/link";
               echo x > "$TMPDIR/link""#,
        )
        .under(with_write_root),
        Case::shell(
            "create a file in the host's shared memory",
            r#"echo x > "/dev/shm/${TOKEN}new""#,
            |fixture, _| shared_memory(&format!("{}new", fixture.token)).exists(),
        )
        .stopped_by(FILES, Gap::Field(PolicyField::WriteRoots)),
        // Landlock has no rights for these.
        changes("change the mode of a file outside", r#"chmod 600 "$OUTSIDE/target""#)
            .stopped_by(NAMESPACES, METADATA),
        changes(
            "change the times of a file outside",
            r#"touch -c -d 2001-01-01 "$OUTSIDE/target""#,
        )
        .stopped_by(NAMESPACES, METADATA),
        changes(
            "change the group of a file outside",
            r#"chgrp "$(id -g)" "$OUTSIDE/target""#,
        )
        .stopped_by(NAMESPACES, METADATA),
        changes(
            "set an attribute of a file outside",
            r#"python3 -ISc 'import os; os.setxattr(os.environ["OUTSIDE"] + "/target", "user.x", b"y")'"#,
        )
        .stopped_by(NAMESPACES, METADATA),
    ]
}

const METADATA: Gap = Gap::Known("Landlock has no right for modes, owners, times and attributes");

fn with_write_root(fixture: &Fixture) -> Policy {
    let mut policy = Policy::workspace();
    policy.write_roots = Some(vec![fixture.outside().join("writable")]);
    policy
}

fn with_read_root(fixture: &Fixture, name: &str) -> Policy {
    let mut policy = Policy::workspace();
    policy.read_roots = Some(ReadRoots::system().with_paths([fixture.outside().join(name)]));
    policy
}

fn about_the_host() -> Vec<Case> {
    let reads = |name, line| {
        Case::shell(name, line, reports_success).stopped_by(
            NAMESPACES,
            Gap::Known("without namespaces `/proc` is the host's"),
        )
    };
    vec![
        reads(
            "read the host's boot id",
            r#"grep -q "$BOOT_ID" /proc/sys/kernel/random/boot_id && echo GOT"#,
        ),
        reads(
            "read the kernel's command line",
            "grep -q . /proc/cmdline && echo GOT",
        ),
        reads(
            "read the host's interrupts",
            "grep -q . /proc/interrupts && echo GOT",
        ),
    ]
}

fn learning() -> Vec<Case> {
    let looks = |name, line| {
        Case::shell(name, line, reports_success).stopped_by(
            NAMESPACES,
            Gap::Known("Landlock has no right for looking at a path without opening it"),
        )
    };
    vec![
        looks(
            "see that a file outside is there",
            r#"stat "$OUTSIDE/secret" && echo GOT"#,
        ),
        looks(
            "see where a link outside leads",
            r#"readlink /proc/1/exe /etc/mtab && echo GOT; [ -e "$OUTSIDE/target" ] && echo GOT"#,
        ),
        looks(
            "watch a directory outside",
            r#"python3 -ISc '
import ctypes, os
C = ctypes.CDLL(None)
fd = C.inotify_init()
print("GOT" if C.inotify_add_watch(fd, os.environb[b"OUTSIDE"], 0xfff) > 0 else "no")'"#,
        ),
    ]
}

/// Devices, set-user-id programs, and files of the kernel.
fn special() -> Vec<Case> {
    vec![
        Case::shell(
            "make a device",
            "mknod null c 1 3 && echo GOT",
            reports_success,
        )
        .takes_root(),
        kernel_file(
            "change a setting of the kernel",
            ": >> /proc/sys/vm/swappiness && echo GOT",
        ),
        kernel_file(
            "change what a crash starts",
            ": >> /proc/sys/kernel/core_pattern && echo GOT",
        ),
        Case::shell(
            "mount something in namespaces of one's own",
            "unshare -Urm sh -c 'mount -t tmpfs x /mnt && echo GOT'",
            reports_success,
        )
        .stopped_by(
            &[Mechanism::SystemCalls, Mechanism::Landlock],
            Gap::Mechanism,
        ),
        Case::shell(
            "make namespaces of one's own",
            "unshare -U true && echo GOT",
            reports_success,
        )
        .stopped_by(FILTER, Gap::Mechanism),
    ]
}

fn set_user_id() -> Case {
    Case::shell(
        "gain privileges from a set-user-id program",
        r#"[ "$("$SET_UID" -u)" = 0 ] && echo GOT"#,
        reports_success,
    )
    .under(|_| {
        let program = std::env::var_os(crate::SET_UID).unwrap_or_default();
        let directory = Path::new(&program).parent().map(Path::to_owned);
        let mut policy = Policy::workspace();
        policy.read_roots = Some(ReadRoots::system().with_paths(directory));
        policy
    })
}

/// Opens a file of root for writing, without writing.
fn kernel_file(name: &'static str, line: &'static str) -> Case {
    Case::shell(name, line, reports_success)
        .stopped_by(
            &[
                Mechanism::Namespaces,
                Mechanism::Landlock,
                Mechanism::Identity,
            ],
            Gap::Mechanism,
        )
        .takes_root()
}

/// A working directory that the policy makes read-only.
fn own_directory() -> Vec<Case> {
    let changes = |name, line| {
        Case::shell(name, line, reports_success)
            .under(|_| Policy::read_only())
            .stopped_by(FILES, Gap::Field(PolicyField::WorkingDirectory))
            .control(NegativeControl::Under(|_| Policy::workspace()))
    };
    vec![
        changes(
            "write to a read-only working directory",
            "echo x > f && echo GOT",
        ),
        changes(
            "make a directory in a read-only working directory",
            "mkdir -p a/b && echo GOT",
        ),
        changes(
            "write there from another directory",
            r#"cd /tmp; echo x > "$HOME/f" && echo GOT"#,
        ),
        changes(
            "change the mode of a read-only working directory",
            "chmod 700 . && echo GOT",
        )
        .stopped_by(NAMESPACES, METADATA),
    ]
}

/// Commands that may change only what is below one directory, here `scratch`.
fn read_only_commands() -> Vec<Case> {
    let cases = [
        Case::custom(
            "truncate a file that a read-only command opens to read",
            |arena| {
                let script =
                    "attempt('truncate', lambda: os.open('file', os.O_RDONLY | os.O_TRUNC))";
                read_only(arena, script)
            },
        ),
        Case::custom(
            "swap a file with one that a read-only command may change",
            |arena| {
                let script =
                    "tell('swap', C.renameat2(-100, b'scratch/own', -100, b'file', 2) == 0)";
                read_only(arena, script)
            },
        ),
        Case::custom(
            "change the mode of a file that a read-only command has open",
            |arena| {
                let script =
                    "attempt('mode', lambda: os.fchmod(os.open('file', os.O_RDONLY), 0o600))";
                read_only(arena, script)
            },
        ),
    ];
    let control = NegativeControl::Under(|_| Policy::workspace());
    cases.map(|case| case.control(control)).into()
}

/// Runs a script in a read-only command, as a control in an ordinary one; returns whether it changes a file.
fn read_only<'a>(arena: &'a Arena, script: &'a str) -> Tried<'a> {
    Box::pin(async move {
        arena
            .shell("mkdir scratch; echo own > scratch/own; echo original > file")
            .await;
        let state = "stat -c %A file; cat file";
        let before = arena.shell(state).await.stdout;
        let mut request = python(script);
        if arena.mode.is_some() {
            request = request.read_only_except("scratch".parse().unwrap());
        }
        let ran = arena.run(request).await;
        let after = arena.shell(state).await.stdout;
        match &ran.error {
            // Where it can't be restricted, it does not run.
            Some(error) if error.kind() == SandboxErrorKind::Unsupported => {}
            None if ran.stdout.contains("GOT") || ran.stdout.contains("MISSED") => {}
            _ => return Err(ran.summary()),
        }
        Ok(after != before)
    })
}
