//! Policy: each field is enforced or refused.

use std::collections::BTreeSet;
use std::net::TcpListener;

use cantle_core::policy::{Access, HostPattern, Network, PolicyField, Strictness};
use cantle_core::sandbox::EnforcedBy;

use super::bench::sh;
use super::prelude::*;

/// Deadline for opening one sandbox per field on a slow backend.
const MANY_SANDBOXES: Duration = Duration::from_secs(300);

cases! { cases for Harness:
    a_field_is_enforced_or_refused_by_name.deadline(MANY_SANDBOXES),
    reported_enforcement_is_effective.deadline(MANY_SANDBOXES),
    best_effort_opens_and_reports_each_field.deadline(MANY_SANDBOXES),
    a_hidden_file_is_neither_read_nor_changed,
    a_host_allowlist_blocks_other_hosts,
    unset_fields_are_not_reported,
}

/// Returns a policy that sets only this field. Commands can run under it.
pub(super) fn policy_with_only(field: PolicyField) -> Policy {
    let mut policy = Policy::unconfined();
    set(&mut policy, field);
    policy
}

const WALL_TIME: Duration = Duration::from_secs(2);
const OUTPUT_BYTES: u64 = 1_000_000;
const FILE_BYTES: u64 = 1_000_000;
const OPEN_FILES: u64 = 64;

fn set(policy: &mut Policy, field: PolicyField) {
    let limits = &mut policy.limits;
    match field {
        // Directories that bash and common programs need.
        PolicyField::ReadRoots => {
            let roots = [
                "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc",
            ];
            policy.read_roots = Some(roots.map(PathBuf::from).into());
        }
        PolicyField::WriteRoots => policy.write_roots = Some(Vec::new()),
        PolicyField::HiddenPaths => policy.hidden_paths = vec!["/etc/passwd".into()],
        PolicyField::WorkingDirectory => policy.working_directory = Access::ReadOnly,
        PolicyField::Network => policy.network = Some(Network::Off),
        PolicyField::Subprocesses => policy.subprocesses = Some(false),
        PolicyField::Environment => {
            let value = "of the policy".into();
            policy.environment = [("CONFORMANCE".to_owned(), value)].into();
        }
        PolicyField::WallTime => limits.wall_time = Some(WALL_TIME),
        PolicyField::CpuTime => limits.cpu_time = Some(Duration::from_secs(1)),
        PolicyField::Memory => limits.memory_bytes = Some(128 * 1024 * 1024),
        PolicyField::Processes => limits.processes = Some(100),
        PolicyField::FileSize => limits.file_size_bytes = Some(FILE_BYTES),
        PolicyField::Disk => limits.disk_bytes = Some(100_000_000),
        PolicyField::Inodes => limits.inodes = Some(10_000),
        PolicyField::OpenFiles => limits.open_files = Some(OPEN_FILES),
        PolicyField::Output => limits.output_bytes = Some(OUTPUT_BYTES),
        // A newer field stays unset, which fails its case.
        _ => {}
    }
}

async fn a_field_is_enforced_or_refused_by_name(bench: &Bench<'_>) -> Checked {
    for &field in PolicyField::ALL {
        let policy = policy_with_only(field);
        equal("fields set", policy.fields(), vec![field])?;
        match bench.open(policy).await {
            Ok(sandbox) => {
                let reported: Vec<_> = sandbox.info().demanded().collect();
                let one = reported.iter().map(|it| it.field).eq([field]);
                let enforced = reported.iter().all(|it| it.by != EnforcedBy::NotEnforced);
                ensure!(
                    one && enforced,
                    "a strict policy with only {field} was opened with the report {reported:?}"
                );
            }
            Err(error) => {
                equal("the error", error.kind(), Unenforceable)?;
                equal("the fields it names", error.unenforced(), [field])?;
            }
        }
    }
    Ok(())
}

async fn best_effort_opens_and_reports_each_field(bench: &Bench<'_>) -> Checked {
    let mut all = Policy::unconfined();
    for &field in PolicyField::ALL {
        let mut policy = policy_with_only(field);
        set(&mut all, field);
        policy.strictness = Strictness::BestEffort;
        let sandbox = bench.open(policy).await?;
        let reported: Vec<_> = fields_of(&*sandbox).into_iter().collect();
        equal("the fields reported", reported, vec![field])?;
    }
    all.strictness = Strictness::BestEffort;
    let expected = all.fields().into_iter().collect();
    let sandbox = bench.open(all).await?;
    equal::<_, BTreeSet<_>>("the fields reported", fields_of(&*sandbox), expected)?;
    let status = sh(&*sandbox, "exit 3").await?.exit.status;
    equal("a command under it", status, ExitStatus::Code(3))
}

fn fields_of(sandbox: &dyn Sandbox) -> BTreeSet<PolicyField> {
    let enforcement = sandbox.info().demanded();
    enforcement.map(|it| it.field).collect()
}

async fn unset_fields_are_not_reported(bench: &Bench<'_>) -> Checked {
    let demanded = bench.info().demanded().map(|it| it.field);
    equal::<Vec<_>, Vec<PolicyField>>("the fields reported", demanded.collect(), vec![])
}

async fn reported_enforcement_is_effective(bench: &Bench<'_>) -> Checked {
    for &field in PolicyField::ALL {
        let mut policy = policy_with_only(field);
        policy.strictness = Strictness::BestEffort;
        let sandbox = bench.open(policy).await?;
        if sandbox.info().enforces(field) {
            attempt_violation(&*sandbox, field).await?;
        }
    }
    Ok(())
}

/// Attempts what the policy forbids, for fields where a short script suffices.
async fn attempt_violation(sandbox: &dyn Sandbox, field: PolicyField) -> Checked {
    match field {
        PolicyField::ReadRoots => {
            let outside = Outside::new()?;
            let read = sh(sandbox, &format!("cat '{}'", outside.secret().display())).await?;
            ensure!(
                !Outside::is_secret(&read.stdout.head),
                "a file outside the roots was read"
            );
        }
        PolicyField::WriteRoots => {
            let outside = Outside::new()?;
            let [new, old] = [outside.path().join("new"), outside.secret()];
            for (redirect, file) in [(">", new), (">>", old)] {
                sh(sandbox, &format!("echo x {redirect} '{}'", file.display())).await?;
            }
            outside.must_be_untouched()?;
        }
        PolicyField::WorkingDirectory => {
            let file = path("given")?;
            sandbox.write_bytes(&file, "given".into()).await?;
            let script = "echo x >> given; echo x > new; rm -f given; mkdir dir";
            sh(sandbox, script).await?;
            let content = stdout(sandbox, "ls -A; cat given").await?;
            equal("the read-only working directory", content, "given\ngiven")?;
        }
        PolicyField::Network => must_not_reach_host(sandbox).await?,
        PolicyField::Subprocesses => {
            let started = sh(sandbox, "$(type -P ls) / && echo started").await?;
            ensure!(
                started.stdout.head.is_empty(),
                "a command started another program"
            );
        }
        PolicyField::Environment => {
            let value = stdout(sandbox, "printf %s \"$CONFORMANCE\"").await?;
            equal("a variable of the policy", value, "of the policy")?;
            let own =
                SpawnRequest::shell("printf %s \"$CONFORMANCE\"").with_env("CONFORMANCE", "own");
            let value = sandbox.run(own).await?.stdout.text();
            equal("the same variable of a request", value, "own".to_owned())?;
        }
        PolicyField::WallTime => {
            let started = Instant::now();
            let mut request = SpawnRequest::shell("sleep 60");
            request.grace = WALL_TIME / 4;
            let (what, limit) = ("the exit at the wall time", WALL_TIME + PROMPT_LIMIT);
            let output = within(what, limit, sandbox.run(request)).await??;
            ensure_prompt(what, started, limit)?;
            let end = ExitStatus::TimedOut { limit: WALL_TIME };
            equal("the exit", output.exit.status, end)?;
        }
        PolicyField::FileSize => {
            sh(sandbox, "head -c 3000000 /dev/zero > large").await?;
            let size = stdout(sandbox, "stat -c %s large").await?;
            let size: u64 = size.trim().parse().unwrap_or(u64::MAX);
            ensure!(
                size <= FILE_BYTES,
                "a file has {size} bytes; {FILE_BYTES} are the limit"
            );
        }
        PolicyField::OpenFiles => {
            let script = "for i in {10..200}; do eval \"exec $i</dev/null\" || exit 9; done";
            let opened = sh(sandbox, script).await?;
            ensure!(
                !opened.exit.status.success(),
                "190 files were open; {OPEN_FILES} are the limit"
            );
        }
        PolicyField::Output => {
            let run = sandbox.run(SpawnRequest::argv(["yes"]));
            let output = step("the exit at the output limit", run).await??;
            ensure!(
                !output.exit.status.success(),
                "a command succeeded after too much output"
            );
        }
        // Hidden paths and slow limits have cases of their own.
        _ => {}
    }
    Ok(())
}

/// Checks that no port of this host is reachable under its loopback names.
async fn must_not_reach_host(sandbox: &dyn Sandbox) -> Checked {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    for name in ["127.0.0.1", "localhost"] {
        let connect = sh(sandbox, &format!("exec 3<>/dev/tcp/{name}/{port}")).await?;
        let connected = connect.exit.status.success();
        ensure!(!connected, "a port of this host was reached");
    }
    Ok(())
}

async fn a_hidden_file_is_neither_read_nor_changed(bench: &Bench<'_>) -> Checked {
    let outside = Outside::new()?;
    let mut policy = Policy::workspace();
    policy.write_roots = Some(vec![outside.path().to_owned()]);
    policy.hidden_paths = vec![outside.secret()];
    policy.strictness = Strictness::BestEffort;
    let sandbox = bench.open(policy).await?;
    if !sandbox.info().enforces(PolicyField::HiddenPaths) {
        return Ok(());
    }
    let file = outside.secret().display().to_string();
    let read = sh(&*sandbox, &format!("cat '{file}'")).await?;
    ensure!(
        !Outside::is_secret(&read.stdout.head),
        "a hidden file was read"
    );
    sh(&*sandbox, &format!("echo x >> '{file}'; rm -f '{file}'")).await?;
    outside.must_be_untouched()
}

async fn a_host_allowlist_blocks_other_hosts(bench: &Bench<'_>) -> Checked {
    let mut policy = Policy::unconfined();
    let host: HostPattern = "allowed.example.com".parse()?;
    policy.network = Some(Network::Hosts(vec![host]));
    policy.strictness = Strictness::BestEffort;
    let sandbox = bench.open(policy).await?;
    if !sandbox.info().enforces(PolicyField::Network) {
        return Ok(());
    }
    must_not_reach_host(&*sandbox).await
}
