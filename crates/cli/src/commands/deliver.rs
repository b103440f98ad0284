//! `cantle run --resume` of a finished run whose files are not in its store yet.

use anyhow::anyhow;
use cantle::core::event::Finish;
use serde::Deserialize as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::print;
use crate::args::RunArgs;
use crate::delivery::StoreTarget;
use crate::display::Display;
use crate::exit::{Code, Failure, FailureExt as _, cancelled_early};
use crate::kept_sandbox;
use crate::saved_settings::SavedSettings;
use crate::settings::KeepSettings;
use crate::settings::layers::Layers;
use crate::state_dir::StateDir;
use crate::task;
use crate::text::one_line;
use crate::undelivered;

/// Delivers the files that a finished run has left, prints its result, and returns the exit code; `None` if it has left
/// nothing.
pub(crate) async fn perform(
    args: &RunArgs,
    name: &str,
    cancellation: &CancellationToken,
) -> Result<Option<u8>, Failure> {
    let state = StateDir::find().usage()?;
    let run = state.find_run(name).usage()?;
    let Some(directory) = undelivered::of(&state, &run) else {
        return Ok(None);
    };
    let saved = SavedSettings::read(run.note.clone()).internal()?;
    let given = args.output_dir.as_ref().or(saved.output_dir.as_ref());
    let Some(target) = given.and_then(|given| StoreTarget::of(given)) else {
        let directory = directory.display();
        let message =
            format!("the output files are for a store: name one, or take them from {directory}");
        return Err(anyhow!(message)).usage();
    };
    let settings = Layers::with_files(&args.settings).usage()?;
    let settings: KeepSettings = settings.typed().usage()?;
    let result = undelivered::read_result(&directory).internal()?;
    let finish = result.get("finish").unwrap_or(&Value::Null);
    let finish = Finish::deserialize(finish).internal()?;
    let delivered = async {
        let store = args.store.open(&target).await.usage()?;
        undelivered::deliver(&store, run.run, &directory)
            .await
            .internal()
    };
    let delivered = cancellation.run_until_cancelled(delivered).await;
    let addresses = delivered.ok_or_else(cancelled_early)??;
    let mut display = Display::new(args.display);
    // A process that was killed has not done the rest either.
    if let Some(in_place) = &saved.in_place {
        let lines = in_place.set_aside(None).internal()?;
        display.closing_lines(&lines, !lines.is_empty()).await;
    }
    if saved.working_copy.is_none() {
        let settled = kept_sandbox::settle(&state, &run, settings.retention());
        settled.await.internal()?;
    }
    for address in addresses {
        let line = format!("stored   {}\n", one_line(&address));
        display.closing_lines(&line, false).await;
    }
    if !args.display.json {
        print(task::result_text(&finish, saved.schema.is_some()) + "\n")?;
    }
    Ok(Some(Code::Finished as u8))
}
