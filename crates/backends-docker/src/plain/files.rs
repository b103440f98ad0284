//! File operations by the image's own programs.

use std::sync::Arc;

use cantle_command_driver::parse_stat;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    ByteRange, ByteStream, Channel, FileInfo, MAX_LIST_ENTRIES, OutputChunk, SandboxError,
    SandboxErrorKind, SandboxPath, WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;

use super::ExecRunner;
use super::exec::{Exec, Script, in_time};
use crate::container::ExecInput;

/// Maximum size of a listing.
const MAX_LISTING_BYTES: usize = 64 << 20;

/// Functions that resolve `$1` to `$T` and refuse paths outside the working directory `$W` and `/tmp`.
const RESOLVE: &str = r#"
within() { case "$1/" in "${W%/}/"*|/tmp/*) ;; *) echo outside; exit 1 ;; esac; }
above() { p=${1%/*}; p=$(readlink -f -- "${p:-/}" 2>/dev/null) || { echo missing; exit 1; }; within "$p"; [ -d "$p" ] || { echo notdir; exit 1; }; T=$p/${1##*/}; }
real() { above "$1"; T=$(readlink -f -- "$1") || { echo missing; exit 1; }; within "$T"; }
make() { case "$1" in "$W"|/|/tmp|'') return ;; esac; make "${1%/*}"; if [ -e "$1" ] || [ -L "$1" ]; then [ -d "$1" ] || { echo "$2"; exit 1; }; within "$(readlink -f -- "$1")"; else mkdir -- "$1" 2>/dev/null || [ -d "$1" ] || { mkdir -- "$1"; exit 1; }; fi; }
umask 022
"#;

/// Resolves the target to `$T`, and names the temporary file beside it `$N`.
const TARGET: &str = r#"make "${1%/*}" notdir
if [ -L "$1" ] && [ -e "$1" ]; then real "$1"; else above "$1"; fi
if [ -e "$T" ] && [ ! -f "$T" ]; then echo notfile; exit 1; fi
N=${T%/*}/.cantle-$2
"#;

impl ExecRunner {
    /// Starts a script with the functions of [`RESOLVE`].
    async fn run(
        &self,
        doing: &str,
        body: &str,
        arguments: &[&str],
        has_input: bool,
    ) -> Result<Exec, SandboxError> {
        let text = format!("{RESOLVE}W=$1; shift\n{body}");
        let directory = self.absolute(&SandboxPath::working_directory())?;
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        let script = Script {
            text: &text,
            arguments: std::iter::once(directory).chain(arguments).collect(),
            variables: &self.variables,
            has_input,
        };
        Exec::start(self, script).await?.into_result(doing)
    }

    pub(crate) async fn read(
        self: &Arc<Self>,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        let doing = format!("failed to read `{path}`");
        let length = range
            .length
            .map(|length| length.to_string())
            .unwrap_or_default();
        let start = (range.offset + 1).to_string();
        let arguments = [&self.absolute(path)?, &*start, &length];
        let body = r#"real "$1"
[ -e "$T" ] || { echo missing; exit 1; }
[ -f "$T" ] || { echo notfile; exit 1; }
[ -r "$T" ] || { echo denied; exit 1; }
echo ok
if [ "$3" = 0 ]; then exit 0
elif [ -n "$3" ] && [ "$2" = 1 ]; then exec head -c "$3" -- "$T"
elif [ -n "$3" ]; then
  exec 3>&1
  s=$({ { tail -c "+$2" -- "$T"; echo $? >&4; } | head -c "$3" >&3; } 4>&1) && [ "$s" = 0 ]
elif [ "$2" = 1 ]; then exec cat -- "$T"
else exec tail -c "+$2" -- "$T"; fi"#;
        let exec = self.run(&doing, body, &arguments, false).await?;
        let reading = (Arc::clone(self), exec, range.length);
        Ok(Box::pin(stream::try_unfold(
            reading,
            move |(runner, mut exec, left)| {
                let doing = doing.clone();
                async move {
                    loop {
                        match exec.next_in_time().await {
                            Some(Ok(chunk)) if chunk.channel == Channel::Stderr => {}
                            Some(Ok(OutputChunk { bytes, .. })) => {
                                let left = left.map(|left| left.saturating_sub(bytes.len() as u64));
                                return Ok(Some((bytes, (runner, exec, left))));
                            }
                            Some(Err(error)) => return Err(runner.reason(error).await),
                            // At the end of the range, `tail` fails because `head` has ended.
                            None if left == Some(0) => return Ok(None),
                            // An interrupted read must not look like the end of the file.
                            None => return exec.check_exit(&runner, &doing).await.map(|()| None),
                        }
                    }
                }
            },
        )))
    }

    /// Writes a file in a task, which removes the temporary file if the returned future is dropped.
    pub(crate) async fn write(
        self: &Arc<Self>,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        let (runner, path) = (Arc::clone(self), path.clone());
        let (mut done, written) = oneshot::channel();
        self.tasks.spawn(async move {
            let written = runner
                .write_unless_closed(&mut done, &path, options, data)
                .await;
            // Fails if the future was dropped.
            let _ = done.send(written);
        });
        written.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Writes a file, unless the receiver of `done` is dropped before all is there.
    async fn write_unless_closed<T>(
        &self,
        done: &mut oneshot::Sender<T>,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        let doing = format!("failed to write `{path}`");
        if path.is_base() {
            let message = format!("{doing}: it is a directory");
            return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
        }
        if let (Some(limit), Some(size)) = (self.limits.file_size_bytes, options.size_bytes)
            && size > limit
        {
            let field = PolicyField::FileSize;
            let message = format!("{doing}: it exceeds the policy's {field} limit");
            return Err(SandboxError::new(SandboxErrorKind::StorageFull, message));
        }
        let token = cantle_core::ids::unique_id();
        let target = self.absolute(path)?;
        // The name is given only when all is there: a stream that breaks leaves nothing.
        let begin = format!("{TARGET}: > \"$N\" || exit 1\necho ok\nexec cat > \"$N\"");
        let mut exec = self.run(&doing, &begin, &[&target, &token], true).await?;
        let abandoned = || {
            let message = format!("{doing}: the caller no longer waits for it");
            SandboxError::new(SandboxErrorKind::Io, message)
        };
        let mut input = exec.input.take();
        let sent = tokio::select! {
            sent = send(path, input.as_mut(), options, data) => sent,
            () = done.closed() => Err(abandoned()),
        };
        // Also after an error: the program reads to the end of its input.
        let closed = match input {
            Some(mut input) => in_time(input.shutdown()).await,
            None => Ok(Ok(())),
        };
        let closed = closed.and_then(|closed| closed.map_err(|it| SandboxError::io(&*doing, it)));
        let ended = exec.rest(0).await;
        let sent = sent.and_then(|size| closed.and(ended).map(|_| size));
        let sent = match sent {
            Ok(_) if done.is_closed() => Err(abandoned()),
            sent => sent,
        };
        // Without a mode, the script removes the temporary file.
        let (mode, size) = match &sent {
            Ok(size) => (format!("{:o}", options.mode & 0o777), size.to_string()),
            Err(_) => (String::new(), String::new()),
        };
        let end = format!(
            r#"{TARGET}if [ -z "$3" ]; then rm -f -- "$N"; echo ok; exit; fi
[ "$(stat -c %s -- "$N")" = "$4" ] && chmod "$3" -- "$N" && mv -f -- "$N" "$T" && {{ echo ok; exit; }}
rm -f -- "$N"; echo "No space left""#
        );
        let committed = self
            .run(&doing, &end, &[&target, &token, &mode, &size], false)
            .await;
        sent?;
        committed.map(drop)
    }

    pub(crate) async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let doing = format!("failed to stat `{path}`");
        let body = r#"if [ "$1" = "$W" ]; then T=$1; else above "$1"; fi
[ -e "$T" ] || [ -L "$T" ] || { echo missing; exit 1; }
echo ok
exec stat -c '%f %s' -- "$T""#;
        let mut exec = self
            .run(&doing, body, &[&self.absolute(path)?], false)
            .await?;
        let text = exec.rest(1000).await?;
        parse_stat(path.clone(), &String::from_utf8_lossy(&text))
            .ok_or_else(|| SandboxError::new(SandboxErrorKind::Io, doing))
    }

    pub(crate) async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let doing = format!("failed to list `{path}`");
        let body = r#"[ "$1" = "$W" ] && T=$1 || real "$1"
[ -d "$T" ] || { echo notdir; exit 1; }
cd -- "$T" 2>/dev/null && [ -r . ] || { echo denied; exit 1; }
echo ok
for f in * .[!.]* ..?*; do
  [ -e "$f" ] || [ -L "$f" ] || continue
  stat -c '%f %s' -- "./$f" && printf '%s\0' "$f"
done
exit 0"#;
        let mut exec = self
            .run(&doing, body, &[&self.absolute(path)?], false)
            .await?;
        let text = exec.rest(MAX_LISTING_BYTES).await?;
        exec.check_exit(self, &doing).await?;
        let mut found = Vec::new();
        for entry in text
            .split(|byte| *byte == 0)
            .filter(|entry| !entry.is_empty())
        {
            let mut parts = entry.splitn(2, |byte| *byte == b'\n');
            let line = String::from_utf8_lossy(parts.next().unwrap_or_default());
            let path = SandboxPath::new(parts.next().unwrap_or_default())?;
            found.extend(parse_stat(path, &line));
        }
        if found.len() > MAX_LIST_ENTRIES {
            return Err(SandboxError::too_many_entries(path));
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    pub(crate) async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let doing = format!("failed to create the directory `{path}`");
        let body = "make \"$1\" exists\necho ok";
        self.run(&doing, body, &[&self.absolute(path)?], false)
            .await?;
        Ok(())
    }

    pub(crate) async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let doing = format!("failed to remove `{path}`");
        if path.is_base() {
            let message = format!("{doing}: the working directory can't be removed");
            return Err(SandboxError::invalid_input(message));
        }
        let body = r#"above "$1"
[ -e "$T" ] || [ -L "$T" ] || { echo missing; exit 1; }
[ "$T" = "$W" ] && { echo denied; exit 1; }
[ -L "$T" ] || find "$T" -type d -exec chmod u+rwx {} \; 2>/dev/null
rm -rf -- "$T" && echo ok"#;
        self.run(&doing, body, &[&self.absolute(path)?], false)
            .await?;
        Ok(())
    }

    pub(crate) async fn rename(
        &self,
        from: &SandboxPath,
        to: &SandboxPath,
    ) -> Result<(), SandboxError> {
        let doing = format!("failed to move `{from}` to `{to}`");
        let body = r#"above "$1"; F=$T
[ -e "$F" ] || [ -L "$F" ] || { echo missing; exit 1; }
make "${2%/*}" notdir; above "$2"
if [ -d "$T" ] && [ ! -L "$T" ]; then
  [ -d "$F" ] && [ ! -L "$F" ] || { echo exists; exit 1; }
  rmdir -- "$T" 2>/dev/null || { echo exists; exit 1; }
fi
mv -f -- "$F" "$T" && echo ok"#;
        let arguments = [&*self.absolute(from)?, &*self.absolute(to)?];
        self.run(&doing, body, &arguments, false).await?;
        Ok(())
    }
}

/// Copies the data to the script; returns the number of bytes.
async fn send(
    path: &SandboxPath,
    mut input: Option<&mut ExecInput>,
    options: WriteOptions,
    mut data: ByteStream,
) -> Result<u64, SandboxError> {
    let failed = |error| SandboxError::io(format!("failed to write `{path}`"), error);
    let mut written = 0_u64;
    while let (Some(piece), Some(input)) = (data.next().await, &mut input) {
        let bytes = piece?;
        written += bytes.len() as u64;
        options.check_size(path, written, false)?;
        in_time(input.write_all(&bytes)).await?.map_err(failed)?;
    }
    options.check_size(path, written, true)?;
    Ok(written)
}
