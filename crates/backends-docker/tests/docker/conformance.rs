//! What every sandbox must do.

use std::sync::Arc;

use cantle_backends_docker::DockerBackend;
use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{Report, SandboxOptions, sandbox_with};
use tokio::sync::Mutex;

use crate::support::Peer;

/// Some cases look at the memory of this process: one suite at a time.
static ONE_SUITE: Mutex<()> = Mutex::const_new(());

/// The cases of these names, or all of them; a sandbox is killed as somebody kills it who knows nothing of us.
async fn suite(peer: &Peer, backend: &DockerBackend, names: &[&str]) -> Report {
    let options = SandboxOptions::new()
        .only(names)
        .killed_by(async |sandbox: Arc<dyn Sandbox>| {
            peer.docker(["kill", &peer.container(&*sandbox)]);
            Ok(())
        });
    let _alone = ONE_SUITE.lock().await;
    sandbox_with(backend, options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_docker_backend_conforms() {
    let Some(peer) = Peer::find() else { return };
    suite(&peer, &peer.backend(), &[]).await.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_conforms_with_a_read_only_image() {
    let Some(peer) = Peer::find() else { return };
    suite(&peer, &peer.backend().with_read_only_root(), &[])
        .await
        .assert();
}

/// The cases whose scripts any shell understands, of each kind some.
const WITHOUT_BASH: &[&str] = &[
    "arguments_without_a_shell_are_not_expanded",
    "a_program_that_is_missing_is_an_error",
    "a_background_child_is_killed",
    "a_kept_child_delays_no_answer",
    "exit_codes_are_kept",
    "death_by_a_signal_is_told_from_an_exit_code",
    "commands_start_in_the_working_directory",
    "nothing_of_our_environment_is_inherited",
    "a_signal_reaches_the_command",
    "a_terminal_has_the_size_asked_for",
    "timeout_kills_a_child_that_left_the_process_group",
    "timeout_kills_a_grandchild_that_holds_the_pipe",
    "cancellation_kills_everything",
    "files_are_read_as_they_were_written",
    "commands_and_files_share_one_view",
    "a_pipe_is_refused_at_once",
    "output_that_nobody_reads_holds_up_nothing_else",
    "a_killed_sandbox_is_gone",
    "a_kept_sandbox_is_found_again",
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
async fn it_conforms_without_bash() {
    let Some(peer) = Peer::find() else { return };
    suite(&peer, &peer.busybox(), WITHOUT_BASH).await.assert();
}
