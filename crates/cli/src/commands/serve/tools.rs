//! `cantle serve --tools`: the tools of code_executor for orchestrators.

use anyhow::Context as _;
use cantle_files::{Limits, Quota};
use cantle_server::ToolService;
use url::Url;

use crate::args::ServedToolsArgs;
use crate::files::signing_key;
use crate::settings::Size;
use crate::state_dir::StateDir;

const MODULE: &str = "code_executor";
const DESCRIPTION: &str = "Executes Python code and read-only shell commands in a sandbox, and keeps the files they make.";

/// Returns the service, whose file addresses begin with `base` unless a flag says otherwise.
pub(super) async fn service(
    args: &ServedToolsArgs,
    state: &StateDir,
    base: &str,
) -> anyhow::Result<ToolService> {
    let base: Url = base.parse().context("the server's address is invalid")?;
    let key = signing_key(&state.server())?;
    let files = args
        .files
        .open_served(state, base, key, args.files_url.clone());
    let mut limits = Limits::default();
    let quota = limits.quota;
    limits.quota = Quota::new(
        args.max_stored_files.unwrap_or(quota.files),
        args.max_stored_bytes
            .as_ref()
            .map_or(quota.bytes, Size::bytes),
    );
    let files = files.await?.with_limits(limits);
    let tools = cantle_code_executor::tools(&files);
    let mut service = ToolService::new(MODULE, DESCRIPTION, tools)
        .without_sandbox(cantle_code_executor::WITHOUT_SANDBOX)
        .files(files);
    if let Some(calls) = args.max_calls_per_minute {
        service = service.calls_per_minute(calls);
    }
    Ok(service)
}
