//! Kept sandboxes: persisting, reattaching and closing.

use cantle_core::sandbox::{SandboxHandle, Survival};
use cantle_core::secret::SecretText;

use super::prelude::*;

/// Deadline for opening two sandboxes in sequence on a slow backend.
const TWO_SANDBOXES: Duration = Duration::from_secs(240);

cases! { cases for Harness:
    survival_matches_persist,
    a_kept_sandbox_is_reattached.optional().deadline(TWO_SANDBOXES),
    a_kept_sandbox_can_be_kept_again.optional().deadline(TWO_SANDBOXES),
    processes_of_a_kept_sandbox_survive_as_reported.optional().deadline(TWO_SANDBOXES),
    a_kept_sandbox_that_is_closed_is_gone.optional(),
    a_handle_is_text_without_secrets.optional().deadline(TWO_SANDBOXES),
    a_handle_of_an_unknown_sandbox_is_gone.optional(),
    a_handle_of_another_backend_is_refused,
    a_dropped_sandbox_that_was_not_kept_leaves_nothing.optional(),
}

fn durable(policy: Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy).durable()
}

/// Runs a check on a sandbox opened outside the bench, then closes it. The check's failure takes
/// precedence.
async fn closing(sandbox: &dyn Sandbox, checked: impl Future<Output = Checked>) -> Checked {
    let checked = checked.await;
    let closed = sandbox.close().await;
    checked.and(closed.map_err(Failure::from))
}

async fn reattach(
    bench: &Bench<'_>,
    handle: &SandboxHandle,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let context = durable(Policy::unconfined());
    bench.backend.reattach(handle, context).await
}

/// Opens and persists a sandbox; closes it if that fails.
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

async fn survival_matches_persist(bench: &Bench<'_>) -> Checked {
    let sandbox = bench.backend.open(durable(Policy::unconfined())).await?;
    closing(&*sandbox, async {
        let survives = sandbox.info().survival != Survival::Nothing;
        match sandbox.persist().await {
            Ok(_) => ensure!(survives, "a sandbox with `Survival::Nothing` was persisted"),
            Err(error) if survives => {
                return Err(Failure::new(format!(
                    "a sandbox with survival {:?} can't be persisted: {error}",
                    sandbox.info().survival
                )));
            }
            Err(error) => equal("the error", error.kind(), Unsupported)?,
        }
        Ok(())
    })
    .await
}

async fn a_kept_sandbox_is_reattached(bench: &Bench<'_>) -> Checked {
    let (sandbox, handle) = keep(bench, Policy::unconfined()).await?;
    equal("the backend's name", &*handle.backend, bench.backend.name())?;
    let file = path("dir/file")?;
    let data = Box::pin(stream::iter([Ok("text".into())]));
    let options = WriteOptions::default().with_mode(0o640);
    sandbox.write(&file, options, data).await?;
    let script = "echo made > dir/made; ln -s file dir/link; chmod 750 dir/made";
    stdout(&*sandbox, script).await?;
    let before = sandbox.info().working_directory.clone();
    drop(sandbox);

    let again = reattach(bench, &handle).await?;
    closing(&*again, async {
        let after = &again.info().working_directory;
        equal("the working directory", after, &before)?;
        same_bytes("its file", &read(&*again, &file).await?, b"text")?;
        let script = "cat dir/link dir/made; stat -c %a dir/file dir/made; echo more >> dir/made";
        let expected = "textmade\n640\n750\n";
        equal("a command in it", stdout(&*again, script).await?, expected)
    })
    .await?;
    let gone = reattach(bench, &handle).await;
    refused("reattaching to a closed sandbox", gone, &[Gone])
}

async fn a_kept_sandbox_can_be_kept_again(bench: &Bench<'_>) -> Checked {
    let (sandbox, mut handle) = keep(bench, Policy::unconfined()).await?;
    let file = path("file")?;
    sandbox.write_bytes(&file, "0".into()).await?;
    drop(sandbox);
    for number in 1..=2 {
        let again = reattach(bench, &handle).await?;
        let so_far = read(&*again, &file).await?;
        let expected = (number - 1).to_string();
        same_bytes("its file", &so_far, expected.as_bytes())?;
        again.write_bytes(&file, number.to_string().into()).await?;
        handle = again.persist().await?;
        drop(again);
    }
    let last = reattach(bench, &handle).await?;
    closing(&*last, async {
        same_bytes("its file", &read(&*last, &file).await?, b"2")
    })
    .await
}

async fn processes_of_a_kept_sandbox_survive_as_reported(bench: &Bench<'_>) -> Checked {
    let (sandbox, handle) = keep(bench, Policy::unconfined()).await?;
    let survival = sandbox.info().survival;
    let script =
        "(while :; do echo tick >> log; sleep 0.1; done) & until [ -s log ]; do sleep 0.01; done";
    let request = SpawnRequest::shell(script).with_background(Background::Keep);
    sandbox.run(request).await?;
    drop(sandbox);
    let again = reattach(bench, &handle).await?;
    closing(&*again, async {
        let log = path("log")?;
        let before = again.stat(&log).await?.size_bytes;
        let survives = survival == Survival::Processes;
        // A surviving process may be delayed; a killed one writes at most once more.
        let limit = STEP_TIMEOUT / if survives { 1 } else { 10 };
        let grows = async |from: u64, limit| {
            let has_grown = async || Ok(again.stat(&log).await?.size_bytes > from);
            until(limit, has_grown).await
        };
        let mut runs_on = grows(before, limit).await?;
        if runs_on && !survives {
            let last = again.stat(&log).await?.size_bytes;
            runs_on = grows(last, limit).await?;
        }
        let what = format!("whether a process survives with {survival:?}");
        equal(&what, runs_on, survives)
    })
    .await
}

async fn a_kept_sandbox_that_is_closed_is_gone(bench: &Bench<'_>) -> Checked {
    let (sandbox, handle) = keep(bench, Policy::unconfined()).await?;
    sandbox.write_bytes(&path("file")?, "text".into()).await?;
    sandbox.close().await?;
    let closed = sandbox.persist().await;
    refused("persisting a closed sandbox", closed, &[Closed])?;
    drop(sandbox);
    let gone = reattach(bench, &handle).await;
    refused("reattaching to a closed sandbox", gone, &[Gone])
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
    // The handle is stored in the journal, which other people may read.
    let text = serde_json::to_string(&handle)?;
    let leaked = text.contains(&secret);
    let found = serde_json::from_str(&text)?;
    let again = bench.backend.reattach(&found, durable(policy())).await?;
    closing(&*again, async {
        ensure!(!leaked, "the handle holds a secret of the environment");
        let value = stdout(&*again, "printf %s \"$CONFORMANCE\"").await?;
        equal("a variable of the reattached policy", value, secret.clone())
    })
    .await
}

async fn a_handle_of_an_unknown_sandbox_is_gone(bench: &Bench<'_>) -> Checked {
    let handle = SandboxHandle::new(bench.backend.name(), "no-such-sandbox");
    let found = reattach(bench, &handle).await;
    refused("reattaching to an unknown sandbox", found, &[Gone])
}

async fn a_handle_of_another_backend_is_refused(bench: &Bench<'_>) -> Checked {
    let handle = SandboxHandle::new("another-backend", "no-such-sandbox");
    let found = reattach(bench, &handle).await;
    ensure!(found.is_err(), "a handle of another backend was accepted");
    Ok(())
}

async fn a_dropped_sandbox_that_was_not_kept_leaves_nothing(bench: &Bench<'_>) -> Checked {
    // Skips the case unless files are visible on the host.
    bench.host_directory().await?;
    let sandbox = bench.backend.open(durable(Policy::unconfined())).await?;
    sandbox
        .write_bytes(&path("dir/file")?, "text".into())
        .await?;
    let directory = PathBuf::from(sandbox.info().working_directory.to_string());
    ensure!(
        directory.join("dir/file").exists(),
        "its files are not in its working directory"
    );
    drop(sandbox);
    let removed = until(STEP_TIMEOUT, async || Ok(!directory.exists())).await?;
    ensure!(removed, "`{}` is still there", directory.display());
    Ok(())
}
