//! Sandboxes that outlive their owner: kept, found again, and gone once they are closed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Background, Sandbox, SandboxContext, SandboxErrorKind, SandboxExt as _, SandboxHandle,
    SpawnRequest, Survival, WriteOptions,
};
use cantle_core::secret::SecretText;
use futures_util::stream;

use super::super::check::{Checked, Failure, ensure, equal, refused, same_bytes};
use super::super::suite::Case;
use super::bench::{Bench, Harness, PATIENCE, Token, path, stdout, until};
use super::case;
use super::files::read;

/// For two sandboxes one after another, on a backend that takes seconds to open one.
const TWO_SANDBOXES: Duration = Duration::from_secs(240);

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(what_is_kept_is_what_survives),
        case!(a_kept_sandbox_is_found_again)
            .optional()
            .deadline(TWO_SANDBOXES),
        case!(a_kept_sandbox_can_be_kept_again)
            .optional()
            .deadline(TWO_SANDBOXES),
        case!(processes_of_a_kept_sandbox_survive_as_it_says)
            .optional()
            .deadline(TWO_SANDBOXES),
        case!(a_kept_sandbox_that_is_closed_is_gone).optional(),
        case!(a_handle_is_text_without_secrets)
            .optional()
            .deadline(TWO_SANDBOXES),
        case!(a_handle_of_nothing_is_gone).optional(),
        case!(a_handle_of_another_backend_is_refused),
        case!(a_dropped_sandbox_that_was_not_kept_leaves_nothing).optional(),
    ]
}

fn durable(policy: Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy).durable()
}

/// Does something with a sandbox that was opened beside the bench, and closes it. Where that failed,
/// it is the more telling failure.
async fn closing(sandbox: &dyn Sandbox, checked: impl Future<Output = Checked>) -> Checked {
    let checked = checked.await;
    let closed = sandbox.close().await;
    checked.and(closed.map_err(Failure::from))
}

/// A sandbox that is kept, and how to find it; closed where it can't be.
async fn keep(bench: &Bench<'_>, policy: Policy) -> Checked<(Arc<dyn Sandbox>, SandboxHandle)> {
    let sandbox = bench.backend.open(durable(policy)).await?;
    match sandbox.persist().await {
        Ok(handle) => Ok((sandbox, handle)),
        Err(error) => {
            sandbox.close().await?;
            Err(error.into())
        }
    }
}

async fn what_is_kept_is_what_survives(bench: &Bench<'_>) -> Checked {
    let sandbox = bench.backend.open(durable(Policy::unconfined())).await?;
    closing(&*sandbox, async {
        let survives = sandbox.info().survival != Survival::Nothing;
        match sandbox.persist().await {
            Ok(_) => ensure!(survives, "a sandbox of which nothing survives can be kept"),
            Err(error) if survives => {
                return Err(Failure::new(format!(
                    "it says that {:?} survive, and can't be kept: {error}",
                    sandbox.info().survival
                )));
            }
            Err(error) => equal("the error", error.kind(), SandboxErrorKind::Unsupported)?,
        }
        Ok(())
    })
    .await
}

async fn a_kept_sandbox_is_found_again(bench: &Bench<'_>) -> Checked {
    let (sandbox, handle) = keep(bench, Policy::unconfined()).await?;
    equal("the backend's name", &*handle.backend, bench.backend.name())?;
    let file = path("dir/file")?;
    let data = Box::pin(stream::iter([Ok("text".into())]));
    let options = WriteOptions::default().with_mode(0o640);
    sandbox.write(&file, options, data).await?;
    stdout(
        &*sandbox,
        "echo made > dir/made; ln -s file dir/link; chmod 750 dir/made",
    )
    .await?;
    let before = sandbox.info().working_directory.clone();
    drop(sandbox);

    let again = bench
        .backend
        .reattach(&handle, durable(Policy::unconfined()))
        .await?;
    closing(&*again, async {
        equal(
            "the working directory",
            &again.info().working_directory,
            &before,
        )?;
        same_bytes("its file", &read(&*again, &file).await?, b"text")?;
        let script = "cat dir/link dir/made; stat -c %a dir/file dir/made; echo more >> dir/made";
        let expected = "textmade\n640\n750\n";
        equal("a command in it", stdout(&*again, script).await?, expected)
    })
    .await?;
    let gone = bench
        .backend
        .reattach(&handle, durable(Policy::unconfined()))
        .await;
    let kinds = [SandboxErrorKind::Gone];
    refused("finding it once more", gone.map(drop), &kinds)
}

async fn a_kept_sandbox_can_be_kept_again(bench: &Bench<'_>) -> Checked {
    let (sandbox, mut handle) = keep(bench, Policy::unconfined()).await?;
    let file = path("file")?;
    sandbox.write_bytes(&file, "0".into()).await?;
    drop(sandbox);
    for number in 1..=2 {
        let again = bench
            .backend
            .reattach(&handle, durable(Policy::unconfined()))
            .await?;
        let so_far = read(&*again, &file).await?;
        let expected = (number - 1).to_string();
        same_bytes("its file", &so_far, expected.as_bytes())?;
        again.write_bytes(&file, number.to_string().into()).await?;
        handle = again.persist().await?;
        drop(again);
    }
    let last = bench
        .backend
        .reattach(&handle, durable(Policy::unconfined()))
        .await?;
    closing(&*last, async {
        same_bytes("its file", &read(&*last, &file).await?, b"2")
    })
    .await
}

async fn processes_of_a_kept_sandbox_survive_as_it_says(bench: &Bench<'_>) -> Checked {
    let (sandbox, handle) = keep(bench, Policy::unconfined()).await?;
    let survival = sandbox.info().survival;
    let script =
        "(while :; do echo tick >> log; sleep 0.1; done) & until [ -s log ]; do sleep 0.01; done";
    let request = SpawnRequest::shell(script).with_background(Background::Keep);
    sandbox.run(request).await?;
    drop(sandbox);
    let again = bench
        .backend
        .reattach(&handle, durable(Policy::unconfined()))
        .await?;
    closing(&*again, async {
        let log = path("log")?;
        let before = again.stat(&log).await?.size_bytes;
        let survives = survival == Survival::Processes;
        // What has survived may be held up; what hasn't has written its last, or nearly.
        let limit = if survives { PATIENCE } else { PATIENCE / 10 };
        let grows = async |from: u64, limit| {
            until(
                limit,
                async || Ok(again.stat(&log).await?.size_bytes > from),
            )
            .await
        };
        let mut runs_on = grows(before, limit).await?;
        if runs_on && !survives {
            let last = again.stat(&log).await?.size_bytes;
            runs_on = grows(last, limit).await?;
        }
        equal(
            &format!("whether a process runs on where {survival:?} is said to survive"),
            runs_on,
            survives,
        )
    })
    .await
}

async fn a_kept_sandbox_that_is_closed_is_gone(bench: &Bench<'_>) -> Checked {
    let (sandbox, handle) = keep(bench, Policy::unconfined()).await?;
    sandbox.write_bytes(&path("file")?, "text".into()).await?;
    sandbox.close().await?;
    let closed = sandbox.persist().await;
    refused(
        "keeping what is closed",
        closed,
        &[SandboxErrorKind::Closed],
    )?;
    drop(sandbox);
    let gone = bench
        .backend
        .reattach(&handle, durable(Policy::unconfined()))
        .await;
    refused(
        "finding what was closed",
        gone.map(drop),
        &[SandboxErrorKind::Gone],
    )
}

async fn a_handle_is_text_without_secrets(bench: &Bench<'_>) -> Checked {
    let secret = format!("secret-{}", Token::new().as_str());
    let policy = || {
        let mut policy = Policy::unconfined();
        let value = SecretText::from(secret.as_str());
        policy.environment = [("CONFORMANCE".to_owned(), value)].into();
        policy
    };
    let (sandbox, handle) = keep(bench, policy()).await?;
    drop(sandbox);
    // As a journal keeps it, which other people may read.
    let text = serde_json::to_string(&handle).map_err(|error| Failure::new(error.to_string()))?;
    let told = text.contains(&secret);
    let found = serde_json::from_str(&text).map_err(|error| Failure::new(error.to_string()))?;
    let again = bench.backend.reattach(&found, durable(policy())).await?;
    closing(&*again, async {
        ensure!(!told, "the handle holds a secret of the environment");
        let value = stdout(&*again, "printf %s \"$CONFORMANCE\"").await?;
        equal(
            "a variable of the policy it was found under",
            value,
            secret.clone(),
        )
    })
    .await
}

async fn a_handle_of_nothing_is_gone(bench: &Bench<'_>) -> Checked {
    let handle = SandboxHandle::new(bench.backend.name(), "no-such-sandbox");
    let found = bench
        .backend
        .reattach(&handle, durable(Policy::unconfined()))
        .await;
    refused(
        "finding nothing",
        found.map(drop),
        &[SandboxErrorKind::Gone],
    )
}

async fn a_handle_of_another_backend_is_refused(bench: &Bench<'_>) -> Checked {
    let handle = SandboxHandle::new("another-backend", "no-such-sandbox");
    let found = bench
        .backend
        .reattach(&handle, durable(Policy::unconfined()))
        .await;
    ensure!(
        found.is_err(),
        "a handle of another backend was taken for one's own"
    );
    Ok(())
}

async fn a_dropped_sandbox_that_was_not_kept_leaves_nothing(bench: &Bench<'_>) -> Checked {
    // That of the bench shows whether there is anything to be seen.
    bench.host_directory().await?;
    let sandbox = bench.backend.open(durable(Policy::unconfined())).await?;
    sandbox
        .write_bytes(&path("dir/file")?, "text".into())
        .await?;
    let directory = PathBuf::from(sandbox.info().working_directory.to_string());
    ensure!(
        directory.join("dir/file").exists(),
        "its files are elsewhere"
    );
    drop(sandbox);
    let removed = until(PATIENCE, async || Ok(!directory.exists())).await?;
    ensure!(removed, "`{}` is still there", directory.display());
    Ok(())
}
