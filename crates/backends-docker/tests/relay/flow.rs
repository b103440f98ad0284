//! Concurrent commands and transfers on one stream.

use std::time::Instant;

use bytes::Bytes;
use cantle_core::sandbox::{
    Channel, ExitStatus, OutputChunk, PtySize, Sandbox as _, SandboxErrorKind, SandboxExt as _,
    SandboxPath, SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::{DEADLINE, RelayBackend, connect, is_root, soon, start};

#[tokio::test(flavor = "multi_thread")]
async fn unread_output_does_not_block_other_commands() {
    let sandbox = RelayBackend::own_user().sandbox().await;
    let mut blocked = Vec::new();
    for _ in 0..4 {
        let request = SpawnRequest::argv(["cat", "/dev/zero"]);
        let mut process = sandbox.spawn(request).await.unwrap();
        let mut output = process.take_output().unwrap();
        assert!(soon(output.next()).await.is_some());
        blocked.push((process, output));
    }
    let path: SandboxPath = "file".parse().unwrap();
    let started = Instant::now();
    for number in 0..20 {
        let line = format!("echo {number}");
        let output = soon(sandbox.run(SpawnRequest::shell(line))).await.unwrap();
        assert_eq!(output.stdout.text(), format!("{number}\n"));
        let data = Bytes::from(vec![b'x'; 100_000]);
        soon(sandbox.write_bytes(&path, data.clone()))
            .await
            .unwrap();
        let read = soon(sandbox.read_bytes(&path, 1 << 20)).await.unwrap();
        assert_eq!(read, data);
    }
    // Sixty operations of a few milliseconds each.
    assert!(started.elapsed() < DEADLINE);
    drop(blocked);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stdout_flood_does_not_block_stderr() {
    let sandbox = RelayBackend::own_user().sandbox().await;
    let line =
        "cat /dev/zero & for number in 1 2 3 4 5; do sleep 0.05; echo $number >&2; done; wait";
    let mut process = soon(sandbox.spawn(SpawnRequest::shell(line)))
        .await
        .unwrap();
    let mut output = process.take_output().unwrap();
    let mut stderr = Vec::new();
    let reading = async {
        while !stderr.ends_with(b"5\n") {
            let chunk = output.next().await.unwrap().unwrap();
            if chunk.channel == Channel::Stderr {
                stderr.extend_from_slice(&chunk.bytes);
            }
        }
    };
    soon(reading).await;
    assert_eq!(stderr, b"1\n2\n3\n4\n5\n");
    drop(process);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn output_consumed_inside_the_sandbox_does_not_affect_other_commands() {
    let sandbox = RelayBackend::own_user().sandbox().await;
    // The command reads from its own stdout pipe after the relay has polled it.
    let line = "for reader in 1 2 3; do dd bs=4k < /dev/stdout > /dev/null 2>&1 & done; \
                head -c 500000000 /dev/zero; kill $(jobs -p)";
    let mut command = sandbox.spawn(SpawnRequest::shell(line)).await.unwrap();
    let mut output = command.take_output().unwrap();
    let reading = async {
        let mut total = 0;
        while let Some(chunk) = soon(output.next()).await {
            let bytes = chunk.unwrap().bytes;
            assert!(bytes.iter().all(|byte| *byte == 0));
            total += bytes.len();
        }
        total
    };
    let concurrent = async {
        for _ in 0..10 {
            let request = SpawnRequest::shell("printf %0100000d 7");
            let mut process = soon(sandbox.spawn(request)).await.unwrap();
            let mut bytes = Vec::new();
            let mut output = process.take_output().unwrap();
            while let Some(chunk) = soon(output.next()).await {
                bytes.extend_from_slice(&chunk.unwrap().bytes);
            }
            assert!(bytes.len() == 100_000 && bytes.ends_with(b"07"));
        }
    };
    let (total, ()) = tokio::join!(reading, concurrent);
    assert!(total < 500_000_000, "no output was consumed");
    assert_eq!(
        soon(command.wait()).await.unwrap().status,
        ExitStatus::Code(0)
    );
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_input_does_not_block_other_commands() {
    let sandbox = RelayBackend::own_user().sandbox().await;
    let request = SpawnRequest::shell("exec sleep 1000").with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let mut writing = Box::pin(stdin.write(vec![b'x'; 10_000_000].into()));
    tokio::select! {
        written = &mut writing => panic!("unread input was written: {written:?}"),
        output = soon(sandbox.run(SpawnRequest::shell("echo done"))) => {
            assert_eq!(output.unwrap().stdout.text(), "done\n");
        }
    }
    drop(writing);
    drop(process);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hundred_concurrent_commands_are_isolated() {
    let sandbox = RelayBackend::own_user().sandbox().await;
    let commands = (0..100).map(async |number| {
        let line = format!("read line; echo $line; seq 1000 >&2; exit {number}");
        let input = Stdin::Bytes(format!("input {number}\n").into());
        let request = SpawnRequest::shell(line).with_stdin(input);
        let output = sandbox.run(request).await.unwrap();
        assert_eq!(output.exit.status, ExitStatus::Code(number));
        assert_eq!(output.stdout.text(), format!("input {number}\n"));
        assert_eq!(output.stderr.total_bytes(), 3893);
    });
    soon(join_all(commands)).await;
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_of_1500_kilobytes_are_passed() {
    let sandbox = RelayBackend::own_user().sandbox().await;
    let arguments = vec!["x".repeat(100_000); 15];
    let script = ["bash", "-c", "printf %s \"$*\" | wc -c", "bash"].map(str::to_owned);
    let request = SpawnRequest::argv(script.into_iter().chain(arguments));
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.stdout.text().trim(), "1500014");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn large_output_is_complete_and_ordered() {
    let sandbox = RelayBackend::own_user().sandbox().await;
    let mut expected = 0_u32;
    let mut rest = Vec::new();
    let mut sink = |chunk: OutputChunk| {
        rest.extend_from_slice(&chunk.bytes);
        let whole = rest.len() / 8 * 8;
        for line in rest[..whole].chunks(8) {
            assert_eq!(line, format!("{:07}\n", expected + 1_000_000).as_bytes());
            expected += 1;
        }
        rest.drain(..whole);
    };
    let request = SpawnRequest::shell("seq 1000000 2999999");
    let exit = soon(sandbox.exec(request, &mut sink)).await.unwrap();
    assert_eq!((exit.status, expected), (ExitStatus::Code(0), 2_000_000));
    assert_eq!(exit.stdout.total_bytes, 16_000_000);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_can_be_reopened_by_name() {
    for backend in [RelayBackend::own_user(), RelayBackend::other_user()] {
        let sandbox = backend.sandbox().await;
        let size = PtySize {
            rows: 24,
            columns: 80,
        };
        let request = SpawnRequest::shell("echo seen > $(tty); echo also > /dev/tty");
        let output = soon(sandbox.run(request.with_pty(size))).await.unwrap();
        assert_eq!(output.stdout.text(), "seen\r\nalso\r\n");
        sandbox.close().await.unwrap();
        if !is_root() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_run_without_a_shell() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = SandboxPath::from_os(directory.path()).unwrap();
    let mut options = cantle_backends_docker::relay::RelayOptions::new(path);
    options.shells = vec!["/no/such/shell".into()];
    let mut child = start(None).await;
    let relay = connect(&mut child, options).await;
    assert_eq!(relay.shell(), None);
    let refused = relay.spawn(SpawnRequest::shell("true")).await;
    let error = refused.map(drop).unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotFound);
    assert!(error.to_string().contains("/no/such/shell"), "{error}");
    let mut process = relay.spawn(SpawnRequest::argv(["true"])).await.unwrap();
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::Code(0));
    relay.close().await.unwrap();
    assert!(soon(child.wait()).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_gets_no_descriptors_fails_alone() {
    // Each terminal takes three, so that the last command of each sandbox fails at another point.
    for descriptors in 32..35 {
        // The limits of another user's process can be set only with a capability that root may lack.
        let backend = match is_root() {
            true => RelayBackend::other_user(),
            false => RelayBackend::own_user(),
        };
        let sandbox = backend.sandbox().await;
        let relay = Pid::from_raw(sandbox.info().id.parse().unwrap());
        let limit = Rlimit {
            current: Some(descriptors),
            maximum: Some(descriptors),
        };
        prlimit(relay, Resource::Nofile, limit).unwrap();
        let size = PtySize {
            rows: 24,
            columns: 80,
        };
        let mut running = Vec::new();
        let error = loop {
            let request = SpawnRequest::argv(["sleep", "1000"]).with_pty(size);
            match soon(sandbox.spawn(request)).await {
                Ok(process) => running.push(process),
                Err(error) => break error,
            }
        };
        assert_ne!(error.kind(), SandboxErrorKind::Gone, "{error}");
        assert!(!running.is_empty());
        let began = Instant::now();
        let directory = SandboxPath::working_directory();
        let refused = soon(sandbox.list(&directory)).await.unwrap_err();
        assert_ne!(refused.kind(), SandboxErrorKind::Gone, "{refused}");
        assert!(began.elapsed() < DEADLINE / 2, "{refused}");
        drop(running);
        let deadline = Instant::now() + DEADLINE;
        let output = loop {
            match soon(sandbox.run(SpawnRequest::shell("echo here"))).await {
                // The others are still being killed.
                Err(error) if error.kind() != SandboxErrorKind::Gone => {
                    assert!(Instant::now() < deadline, "{error}");
                }
                output => break output.unwrap(),
            }
        };
        assert_eq!(output.stdout.text(), "here\n");
        sandbox.close().await.unwrap();
    }
}
