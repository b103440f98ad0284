//! Limits: what is said to be enforced is tried, each in a sandbox of its own.

use std::time::Duration;

use cantle_core::policy::{PolicyField, Strictness};
use cantle_core::sandbox::{EnforcedBy, Sandbox, SandboxExt as _, SpawnRequest};

use super::super::check::{Checked, ensure, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, PATIENCE};
use super::case;
use super::policy::alone;

/// For five sandboxes and what is slow by nature: to use up a second of processor time on a busy
/// machine, to fill memory.
const SLOW: Duration = Duration::from_secs(300);

/// How long what is more than the limit is held: some limits are measured now and then, by somebody
/// who may be held up.
const HELD: &str = "sleep 15; echo kept";

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(a_limit_of_processor_time_that_is_promised_holds).deadline(SLOW),
        case!(a_limit_of_memory_that_is_promised_holds).deadline(SLOW),
        case!(a_limit_of_processes_that_is_promised_holds).deadline(SLOW),
        case!(a_limit_of_disk_that_is_promised_holds).deadline(SLOW),
        case!(a_limit_of_inodes_that_is_promised_holds).deadline(SLOW),
    ]
}

/// Runs a script that says `kept` if nothing stops it.
async fn must_stop(bench: &Bench<'_>, field: PolicyField, script: &str) -> Checked {
    let mut policy = alone(field);
    policy.strictness = Strictness::BestEffort;
    let sandbox = bench.open(policy).await?;
    let mut enforcement = sandbox.info().enforcement.iter();
    if enforcement.all(|it| it.by == EnforcedBy::NotEnforced) {
        return Ok(());
    }
    must_not_be_kept(&*sandbox, field, script).await
}

async fn must_not_be_kept(sandbox: &dyn Sandbox, field: PolicyField, script: &str) -> Checked {
    const LONG: Duration = Duration::from_secs(120);
    let request = SpawnRequest::shell(script).with_timeout(LONG);
    let run = within("the end at a limit", LONG + PATIENCE, sandbox.run(request)).await?;
    // At the limit of memory, the kernel may choose the sandbox itself.
    let Ok(output) = run else { return Ok(()) };
    let kept = output.stdout.text().contains("kept");
    ensure!(
        !kept,
        "{field} is said to be enforced, and `{script}` was not stopped"
    );
    Ok(())
}

async fn a_limit_of_processor_time_that_is_promised_holds(bench: &Bench<'_>) -> Checked {
    // Twice as much as it has. Only in the shell itself does `times` tell the shell's own.
    let script = "while :; do for i in {1..20000}; do :; done; times > used; \
                  read -r user _ < used; user=${user%.*}; \
                  [ ${user#*m} -ge 2 ] && echo kept && exit; done";
    must_stop(bench, PolicyField::CpuTime, script).await
}

async fn a_limit_of_memory_that_is_promised_holds(bench: &Bench<'_>) -> Checked {
    // `tail` keeps a line until it ends.
    let script = format!(
        "head -c 300000000 /dev/zero | tail -n 1 | tail -c 1 | wc -c | grep -q 1 && {{ {HELD}; }}"
    );
    must_stop(bench, PolicyField::Memory, &script).await
}

async fn a_limit_of_processes_that_is_promised_holds(bench: &Bench<'_>) -> Checked {
    let script = format!("for i in {{1..300}}; do sleep 30 & done 2>/dev/null; {HELD}");
    must_stop(bench, PolicyField::Processes, &script).await
}

async fn a_limit_of_disk_that_is_promised_holds(bench: &Bench<'_>) -> Checked {
    let script = format!("head -c 200000000 /dev/zero > large && {{ {HELD}; }}");
    must_stop(bench, PolicyField::Disk, &script).await
}

async fn a_limit_of_inodes_that_is_promised_holds(bench: &Bench<'_>) -> Checked {
    let script = format!("mkdir many && cd many && seq 20000 | xargs touch && {{ {HELD}; }}");
    must_stop(bench, PolicyField::Inodes, &script).await
}
