//! Sandbox lifecycle: info, isolation from other sandboxes, and closing.

use super::prelude::*;

cases! { cases for Harness:
    sandbox_info_is_complete,
    two_sandboxes_share_nothing,
    closing_twice_is_a_no_op,
    a_closed_sandbox_reports_closed,
    closing_ends_a_running_command,
    closing_removes_the_files.optional(),
    a_sandbox_that_is_dropped_ends_its_commands.optional(),
    a_removed_working_directory_is_detected.optional(),
}

/// Context for sandboxes opened outside the bench, which would hold and close them.
fn context() -> SandboxContext {
    SandboxContext::new(RunId::new(), Policy::unconfined())
}

async fn sandbox_info_is_complete(bench: &Bench<'_>) -> Checked {
    let info = bench.info();
    equal("the backend's name", &*info.backend, bench.backend.name())?;
    ensure!(!info.id.is_empty(), "the sandbox has no id");
    ensure!(
        info.working_directory.is_absolute(),
        "the working directory `{}` is not absolute",
        info.working_directory
    );
    let other = bench.open(Policy::unconfined()).await?;
    ensure!(
        other.info().id != info.id,
        "two sandboxes have the id `{}`",
        info.id
    );
    Ok(())
}

async fn two_sandboxes_share_nothing(bench: &Bench<'_>) -> Checked {
    let other = bench.open(Policy::unconfined()).await?;
    let file = path("file")?;
    bench.write_bytes(&file, "one".into()).await?;
    let found = other.stat(&file).await;
    refused("`stat` of another sandbox's file", found, &[NotFound])?;
    other.write_bytes(&file, "other".into()).await?;
    bench
        .must_print("the file in the first", "cat file", "one")
        .await?;
    let second = stdout(&*other, "cat file").await?;
    equal("the file in the second", second, "other")?;
    other.close().await?;
    bench
        .must_print("the first when the second is closed", "cat file", "one")
        .await
}

async fn closing_twice_is_a_no_op(bench: &Bench<'_>) -> Checked {
    bench.close().await?;
    let (one, two) = tokio::join!(bench.close(), bench.close());
    one?;
    Ok(two?)
}

async fn a_closed_sandbox_reports_closed(bench: &Bench<'_>) -> Checked {
    let file = path("file")?;
    bench.write_bytes(&file, "text".into()).await?;
    bench.close().await?;
    let spawned = bench.spawn(SpawnRequest::shell("true")).await;
    refused("a command", spawned, &[Closed])?;
    let read = bench.read(&file, ByteRange::all()).await;
    refused("`read`", read, &[Closed])?;
    let written = bench.write_bytes(&file, Bytes::new()).await;
    refused("`write`", written, &[Closed])?;
    refused("`stat`", bench.stat(&file).await, &[Closed])?;
    refused("`list`", bench.list(&path(".")?).await, &[Closed])?;
    refused("`mkdir`", bench.mkdir(&path("new")?).await, &[Closed])?;
    refused("`remove`", bench.remove(&file).await, &[Closed])?;
    refused(
        "`rename`",
        bench.rename(&file, &path("new")?).await,
        &[Closed],
    )
}

async fn closing_ends_a_running_command(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let request = SpawnRequest::shell(format!("setsid {} & wait", token.sleep()));
    let mut process = bench.spawn(request).await?;
    bench.must_run(&token).await?;
    within("the end of `close`", PROMPT_LIMIT, bench.close()).await??;
    // Reporting the command's exit and the sandbox's end are both correct.
    match within("the result of `wait`", PROMPT_LIMIT, process.wait()).await? {
        Ok(exit) => ensure!(
            !exit.status.success(),
            "a killed command is reported as successful"
        ),
        Err(error) => {
            refused("waiting", Err::<(), _>(error), &[Gone, Closed])?;
        }
    }
    // Processes of a closed sandbox are only visible from the host.
    if bench.require_host_visible().is_ok() {
        bench.must_be_gone(&token).await?;
    }
    Ok(())
}

async fn closing_removes_the_files(bench: &Bench<'_>) -> Checked {
    let directory = bench.host_directory().await?;
    let outside = Outside::new()?;
    // Some package managers create read-only directories.
    let script = "mkdir -p a/b; echo x > a/b/c; chmod 500 a/b; ln -s \"$1\" link";
    let target = outside.path().to_string_lossy().into_owned();
    let argv = ["bash", "-c", script, "bash", &target];
    bench.output_of(SpawnRequest::argv(argv)).await?;
    bench.close().await?;
    ensure!(
        !directory.exists(),
        "`{}` is still there",
        directory.display()
    );
    outside.must_be_untouched()
}

async fn a_sandbox_that_is_dropped_ends_its_commands(bench: &Bench<'_>) -> Checked {
    bench.require_host_visible()?;
    let tokens = [Token::new(), Token::new()];
    let [kept, running] = &tokens;
    let sandbox = bench.backend.open(context()).await?;
    let request = SpawnRequest::shell(format!("setsid {} & true", kept.sleep()));
    let output = sandbox
        .run(request.with_background(Background::Keep))
        .await?;
    equal("the exit", output.exit.status, ExitStatus::Code(0))?;
    let request = SpawnRequest::shell(format!("exec {}", running.sleep()));
    let process = sandbox.spawn(request).await?;
    for token in &tokens {
        bench.must_run(token).await?;
    }
    drop((process, sandbox));
    for token in &tokens {
        bench.must_be_gone(token).await?;
    }
    Ok(())
}

async fn a_removed_working_directory_is_detected(bench: &Bench<'_>) -> Checked {
    // `rmdir` fails on a non-empty directory, so nothing is lost if the backend shares it.
    let removed = bench.sh("cd / && rmdir -- \"$OLDPWD\"").await?;
    if !removed.exit.status.success() {
        return Err(Failure::skip("the working directory can't be removed"));
    }
    match bench.run(SpawnRequest::shell("pwd")).await {
        // The backend may recreate it.
        Ok(output) => {
            let expected = format!("{}\n", bench.info().working_directory);
            equal("`pwd`", output.stdout.text(), expected)
        }
        Err(error) => {
            let what = "a command in a sandbox without its directory";
            refused(what, Err::<(), _>(error), &[Gone])
        }
    }
}
