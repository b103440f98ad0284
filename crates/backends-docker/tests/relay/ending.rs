//! Ends of a relay, after which no process is left.

use std::sync::Arc;

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, Sandbox as _, SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest,
    WriteOptions,
};
use futures_util::{StreamExt as _, stream};

use crate::support::{RelayBackend, eventually, is_root, is_running, kill_relay, soon, token};

fn backends() -> Vec<RelayBackend> {
    let mut backends = vec![RelayBackend::own_user()];
    if is_root() {
        backends.push(RelayBackend::other_user());
    }
    backends
}

/// A command with a process that left its session and group, and holds no pipe.
fn daemon(token: &str) -> SpawnRequest {
    let script =
        format!("( setsid setsid sleep {token} </dev/null >/dev/null 2>&1 & ) ; sleep 1000");
    SpawnRequest::shell(script)
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_stream_kills_all_processes() {
    for backend in backends() {
        let sandbox = backend.sandbox().await;
        let token = token();
        let process = sandbox.spawn(daemon(&token)).await.unwrap();
        eventually("the daemon runs", || is_running(&token)).await;
        // As if this process were killed: the pipes are closed without a request.
        let sandbox = Arc::into_inner(sandbox).unwrap();
        let (child, _directory) = sandbox.into_parts();
        // Its drop must not send a request.
        std::mem::forget(process);
        let mut child = child.unwrap();
        let status = soon(child.wait()).await.unwrap();
        assert_eq!(status.code(), Some(0));
        eventually("the daemon is dead", || !is_running(&token)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_relay_is_gone_and_leaves_no_process() {
    for backend in backends() {
        let sandbox = backend.sandbox().await;
        let token = token();
        let mut process = sandbox.spawn(daemon(&token)).await.unwrap();
        eventually("the daemon runs", || is_running(&token)).await;
        kill_relay(&sandbox.info().id).await.unwrap();
        soon(sandbox.relay.gone()).await;
        let gone = SandboxErrorKind::Gone;
        assert_eq!(soon(process.wait()).await.unwrap_err().kind(), gone);
        let spawned = sandbox.spawn(SpawnRequest::shell("true")).await;
        assert_eq!(spawned.map(drop).unwrap_err().kind(), gone);
        let path = SandboxPath::working_directory();
        assert_eq!(sandbox.list(&path).await.unwrap_err().kind(), gone);
        let read = sandbox.read(&path, ByteRange::all()).await;
        assert_eq!(read.map(drop).unwrap_err().kind(), gone);
        eventually("the daemon is dead", || !is_running(&token)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_can_neither_signal_nor_inspect_a_relay_of_another_user() {
    if !is_root() {
        return;
    }
    let sandbox = RelayBackend::other_user().sandbox().await;
    let relay = &sandbox.info().id;
    let script = format!(
        "for pid in {relay} $PPID; do kill -KILL $pid; kill -STOP $pid; \
         cat /proc/$pid/mem /proc/$pid/environ; ls /proc/$pid/fd; done 2>/dev/null; \
         grep -E '^(Uid|Gid|Groups|NoNewPrivs|CapPrm|CapEff|CapAmb|CapBnd)' /proc/self/status"
    );
    let output = sandbox.run(SpawnRequest::shell(script)).await.unwrap();
    let expected = "Uid:\t65534\t65534\t65534\t65534\nGid:\t65534\t65534\t65534\t65534\n\
                    Groups:\t \nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                    CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";
    assert_eq!(output.stdout.text(), expected);
    let after = sandbox
        .run(SpawnRequest::shell("echo alive"))
        .await
        .unwrap();
    assert_eq!(after.stdout.text(), "alive\n");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_inherit_no_descriptors() {
    for backend in backends() {
        let sandbox = backend.sandbox().await;
        // The last one is the listed directory.
        let line = "for fd in /proc/self/fd/*; do echo ${fd##*/}; done";
        let output = sandbox.run(SpawnRequest::shell(line)).await.unwrap();
        assert_eq!(output.stdout.text(), "0\n1\n2\n3\n");
        sandbox.close().await.unwrap();
    }
}

/// With a limit of 0, the kernel would pass core dumps to a program of the host.
#[tokio::test(flavor = "multi_thread")]
async fn core_dumps_of_commands_are_limited_to_one_byte() {
    for backend in backends() {
        let sandbox = backend.sandbox().await;
        let line = "while read -r line; do case $line in 'Max core'*) echo $line;; esac; done < /proc/self/limits";
        let output = sandbox.run(SpawnRequest::shell(line)).await.unwrap();
        assert_eq!(output.stdout.text(), "Max core file size 1 1 bytes\n");
        sandbox.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_another_user_have_the_system_call_filter() {
    if !is_root() {
        return;
    }
    let sandbox = RelayBackend::other_user().sandbox().await;
    assert!(sandbox.relay.has_filter());
    let script =
        "unshare --user true 2>&1 | grep -o 'not permitted'; grep ^Seccomp: /proc/self/status";
    let output = sandbox.run(SpawnRequest::shell(script)).await.unwrap();
    assert_eq!(output.stdout.text(), "not permitted\nSeccomp:\t2\n");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_can_neither_stop_nor_inspect_file_operations() {
    // A user of its own, because the attack must not reach the files of other tests.
    const USER: u32 = 54_321;
    if !is_root() {
        return;
    }
    let sandbox = RelayBackend::other_user().with_user(USER).sandbox().await;
    let script = format!(
        "while :; do for status in /proc/[0-9]*/status; do \
         if grep -q '^Name:.cantle-files' $status && grep -q '^Uid:.*{USER}' $status; then \
         pid=${{status#/proc/}}; pid=${{pid%/status}}; \
         for signal in STOP KILL; do kill -$signal $pid && echo $signal; done; \
         for file in auxv environ maps mem; do head -c 1 /proc/$pid/$file >file && echo $file; done; \
         ls /proc/$pid/fd && echo fd; echo tried; exit; \
         fi; done; done 2>/dev/null"
    );
    let mut attack = sandbox.spawn(SpawnRequest::shell(script)).await.unwrap();
    let output = attack.take_output().unwrap();
    let (sender, tried) = tokio::sync::oneshot::channel();
    let listen = async {
        let lines = output.map(|chunk| chunk.unwrap().bytes);
        sender
            .send(lines.collect::<Vec<_>>().await.concat())
            .unwrap();
    };
    let path: SandboxPath = "file".parse().unwrap();
    // The file is complete only after the attack on the operation that writes it.
    let begin = stream::iter([Ok(Bytes::from_static(b"begin "))]);
    let end = stream::once(async {
        assert_eq!(tried.await.unwrap(), b"tried\n");
        Ok(Bytes::from_static(b"end"))
    });
    let data = Box::pin(begin.chain(end));
    let write = sandbox.write(&path, WriteOptions::default(), data);
    let (written, ()) = soon(async { tokio::join!(write, listen) }).await;
    written.unwrap();
    assert_eq!(sandbox.read_bytes(&path, 100).await.unwrap(), "begin end");
    soon(attack.wait()).await.unwrap();
    sandbox.close().await.unwrap();
}
