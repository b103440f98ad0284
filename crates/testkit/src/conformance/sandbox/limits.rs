//! Limits: each limit reported as enforced is exceeded in a sandbox of its own.

use cantle_core::policy::{PolicyField, Strictness};

use super::policy::policy_with_only;
use super::prelude::*;

/// Includes opening a sandbox, and a second of CPU time or filling memory on a busy machine.
const CASE_DEADLINE: Duration = Duration::from_secs(300);

/// Uses twice the limit. `times` is only per process in the shell itself, not in a subshell.
const USE_CPU: &str = "while :; do for i in {1..20000}; do :; done; times > used; \
                       read -r user _ < used; user=${user%.*}; \
                       [ ${user#*m} -ge 2 ] && echo kept && exit; done";

// Each script holds the excess for 15 s, since some limits are enforced by polling, then prints `kept`.
// `tail` buffers a line until its end.
const USE_MEMORY: &str = "head -c 300000000 /dev/zero | tail -n 1 | tail -c 1 | wc -c | \
                          grep -q 1 && { sleep 15; echo kept; }";
const FORK: &str = "for i in {1..300}; do sleep 30 & done 2>/dev/null; sleep 15; echo kept";
const WRITE: &str = "head -c 200000000 /dev/zero > large && { sleep 15; echo kept; }";
const CREATE_FILES: &str =
    "mkdir many && cd many && seq 20000 | xargs touch && { sleep 15; echo kept; }";

cases! { cases for Harness:
    a_reported_cpu_time_limit_is_effective => must_stop(PolicyField::CpuTime, USE_CPU).deadline(CASE_DEADLINE),
    a_reported_memory_limit_is_effective => must_stop(PolicyField::Memory, USE_MEMORY).deadline(CASE_DEADLINE),
    a_reported_process_limit_is_effective => must_stop(PolicyField::Processes, FORK).deadline(CASE_DEADLINE),
    a_reported_disk_limit_is_effective => must_stop(PolicyField::Disk, WRITE).deadline(CASE_DEADLINE),
    a_reported_inode_limit_is_effective => must_stop(PolicyField::Inodes, CREATE_FILES).deadline(CASE_DEADLINE),
}

/// Runs a script that prints `kept` unless it is stopped.
async fn must_stop(bench: &Bench<'_>, field: PolicyField, script: &str) -> Checked {
    const SCRIPT_TIMEOUT: Duration = Duration::from_secs(120);
    let mut policy = policy_with_only(field);
    policy.strictness = Strictness::BestEffort;
    let sandbox = bench.open(policy).await?;
    if !sandbox.info().enforces(field) {
        return Ok(());
    }
    let request = SpawnRequest::shell(script).with_timeout(SCRIPT_TIMEOUT);
    let limit = SCRIPT_TIMEOUT + STEP_TIMEOUT;
    let run = within("the exit at a limit", limit, sandbox.run(request)).await?;
    let output = match run {
        // At the memory limit, the OOM killer may choose the sandbox itself.
        Err(error) if error.kind() == Gone => return Ok(()),
        run => run?,
    };
    let kept = output.stdout.text().contains("kept");
    ensure!(
        !kept,
        "{field} is reported as enforced, but `{script}` was not stopped"
    );
    Ok(())
}
