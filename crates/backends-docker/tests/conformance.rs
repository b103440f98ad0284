//! The conformance suite, in a program of its own: some cases measure the memory of their process.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

#[path = "docker/engine.rs"]
mod engine;

use std::sync::Arc;

use cantle_backends_docker::DockerBackend;
use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{Report, SandboxOptions, sandbox_with};
use cantle_testkit::lane;
use tokio::sync::Mutex;

use self::engine::TestEngine;

/// Serializes the suites.
static ONE_SUITE: Mutex<()> = Mutex::const_new(());

/// Runs the named cases, or all if `names` is empty; sandboxes are killed by the Docker CLI.
async fn suite(engine: &TestEngine, backend: &DockerBackend, names: &[&str]) -> Report {
    let options =
        SandboxOptions::new()
            .in_lane()
            .only(names)
            .killed_by(async |sandbox: Arc<dyn Sandbox>| {
                engine.docker(["kill", &engine.container(&*sandbox)]);
                Ok(())
            });
    let _alone = ONE_SUITE.lock().await;
    sandbox_with(backend, options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_backend_conforms() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    suite(&engine, &engine.backend(), &[]).await.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_read_only_root() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let names = lane::choose("cases that do not depend on the image", WITHOUT_BASH, &[]);
    suite(&engine, &engine.backend().with_read_only_root(), names)
        .await
        .assert();
}

/// A selection of the cases whose scripts run in any shell.
const WITHOUT_BASH: &[&str] = &[
    "arguments_without_a_shell_are_not_expanded",
    "a_program_that_is_missing_is_an_error",
    "a_background_child_is_killed",
    "a_kept_child_does_not_delay_the_exit",
    "exit_codes_are_kept",
    "signal_death_differs_from_an_exit_code",
    "commands_start_in_the_working_directory",
    "host_environment_is_not_inherited",
    "a_signal_reaches_the_command",
    "a_terminal_has_the_requested_size",
    "timeout_kills_a_child_that_left_the_process_group",
    "timeout_kills_a_grandchild_that_holds_the_pipe",
    "cancellation_kills_everything",
    "files_are_read_as_they_were_written",
    "commands_and_files_share_one_view",
    "a_pipe_is_refused_at_once",
    "unread_output_does_not_block_other_operations",
    "a_killed_sandbox_is_gone",
    "a_kept_sandbox_is_reattached",
    "a_link_within_the_sandbox_is_followed",
    "a_listing_has_5000_entries",
    "renaming_moves_and_replaces",
    "output_of_100_megabytes_takes_little_memory",
    "large_output_is_spilled_to_a_file",
    "given_input_arrives_whole",
    "outputs_are_saved_by_their_names",
    "a_failed_write_leaves_nothing",
];

#[tokio::test(flavor = "multi_thread")]
async fn conforms_without_bash() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    suite(&engine, &engine.busybox(), WITHOUT_BASH)
        .await
        .assert();
}
