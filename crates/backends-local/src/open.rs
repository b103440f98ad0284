//! Opening a sandbox: its directory and the state its commands share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use cantle_command_driver::check_environment;
use cantle_core::sandbox::{SandboxContext, SandboxError, SandboxInfo, Survival};
use parking_lot::Mutex;

use crate::engine;
use crate::environment;
use crate::files::Root;
use crate::limits::BackendLimits;
use crate::sandbox::LocalSandbox;
use crate::settings::LocalSettings;
use crate::shared::{SandboxState, Shared};

/// Opens a sandbox on a new directory, or on the `kept` one of an earlier sandbox. Blocks, and needs a runtime.
pub(crate) fn open(
    settings: &LocalSettings,
    cx: &SandboxContext,
    kept: Option<&Path>,
) -> Result<LocalSandbox, SandboxError> {
    let search_path = environment::absolute_directories(settings.search_path());
    let shell = find_shell(settings.shell.as_deref(), &search_path)?;
    check_environment(&cx.policy.environment)?;
    let mut root = match kept {
        Some(directory) => Root::reopen(directory)?,
        None => Root::create(&settings.parent_directory(), cx.run, cx.durable)?,
    };
    let is_kept = kept.is_some();
    let is_durable = is_kept || cx.durable;
    let built = match engine::build(&mut root, settings, &cx.policy, is_durable, is_kept) {
        Ok(built) => built,
        Err(error) if is_kept => return Err(error),
        Err(error) => {
            // The first error is the one to report.
            let _ = root.delete();
            return Err(error);
        }
    };
    let view = root.view_paths().clone();
    let environment = environment::variables(
        environment::visible_directories(&search_path, &cx.policy),
        &shell,
        &view,
        &cx.policy,
        built.user,
        &built.proxy_variables,
    );
    let mut info = SandboxInfo::new("local", root.name(), view.work);
    info.isolation = built.isolation;
    info.mechanisms = built.mechanisms;
    info.enforcement = built.enforcement;
    info.network.clone_from(&cx.policy.network);
    if is_durable {
        info.survival = Survival::Workspace;
    }
    let limits = BackendLimits::new(&built.limits, &info.enforcement);
    root.set_limits(limits.files, !is_kept);
    Ok(LocalSandbox::new(Shared {
        limits,
        info,
        root: Arc::new(root),
        environment,
        shell,
        engine: built.engine,
        #[cfg(confined)]
        connections: cantle_core::sandbox::Connections::default(),
        #[cfg(confined)]
        notices: Arc::clone(&settings.notices),
        #[cfg(confined)]
        watch_places: Arc::new(tokio::sync::Semaphore::new(crate::notices::MAX_DIRECTORIES)),
        numbers: AtomicU32::new(0),
        state: Mutex::new(SandboxState::new(is_kept)),
    }))
}

fn find_shell(
    chosen: Option<&Path>,
    search_path: &std::ffi::OsStr,
) -> Result<PathBuf, SandboxError> {
    let unavailable =
        |message: String, advice: &str| SandboxError::unavailable(message).with_advice(advice);
    match chosen {
        Some(shell) if shell.is_absolute() && environment::is_executable(shell) => {
            Ok(shell.to_owned())
        }
        Some(shell) => Err(unavailable(
            format!("`{}` is not the path of a shell", shell.display()),
            "Give the absolute path of bash.",
        )),
        None => {
            // An empty search path is one empty directory, which must not be the current one.
            let mut candidates =
                std::env::split_paths(search_path).map(|it| Path::new("/").join(it).join("bash"));
            let found = candidates.find(|candidate| environment::is_executable(candidate));
            found.ok_or_else(|| {
                let places = search_path.to_string_lossy();
                unavailable(
                    format!("there is no bash in {places}"),
                    "Install bash (the package is called `bash` everywhere), or set PATH to where \
                     it is.",
                )
            })
        }
    }
}
