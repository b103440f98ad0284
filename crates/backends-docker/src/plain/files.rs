//! File operations by the image's own programs.

use std::sync::Arc;

use bytes::Bytes;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    ByteRange, ByteStream, Channel, FileInfo, FileKind, SandboxError, SandboxErrorKind,
    SandboxPath, WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use tokio::io::AsyncWriteExt as _;

use super::Shared;
use super::exec::{Exec, Script};

/// Maximum size of a listing.
const MAX_LISTING_BYTES: usize = 64 << 20;

/// Functions that resolve `$1` to `$T` and refuse paths outside the working directory `$W` and `/tmp`.
const RESOLVE: &str = r#"
within() { case "$1/" in "$W"/*|/tmp/*) ;; *) echo outside; exit 1 ;; esac; }
above() { p=${1%/*}; p=$(readlink -f -- "${p:-/}" 2>/dev/null) || { echo missing; exit 1; }; within "$p"; [ -d "$p" ] || { echo notdir; exit 1; }; T=$p/${1##*/}; }
real() { above "$1"; T=$(readlink -f -- "$1") || { echo missing; exit 1; }; within "$T"; }
make() { case "$1" in "$W"|/|/tmp|'') return ;; esac; make "${1%/*}"; if [ -e "$1" ] || [ -L "$1" ]; then [ -d "$1" ] || { echo "$2"; exit 1; }; within "$(readlink -f -- "$1")"; else mkdir -- "$1" 2>/dev/null || [ -d "$1" ] || { mkdir -- "$1"; exit 1; }; fi; }
umask 022
"#;

async fn run(
    shared: &Shared,
    doing: &str,
    body: &str,
    arguments: Vec<String>,
    has_input: bool,
) -> Result<Exec, SandboxError> {
    let text = format!("{RESOLVE}W=$1; shift\n{body}");
    let mut all = vec![shared.absolute(&SandboxPath::working_directory())?];
    all.extend(arguments);
    let script = Script {
        text: &text,
        arguments: all,
        variables: &shared.variables,
        has_input,
    };
    Exec::start(shared, script).await?.into_result(doing)
}

pub(super) async fn read(
    shared: &Arc<Shared>,
    path: &SandboxPath,
    range: ByteRange,
) -> Result<ByteStream, SandboxError> {
    let doing = format!("failed to read `{path}`");
    let length = range
        .length
        .map_or_else(String::new, |length| length.to_string());
    let arguments = vec![
        shared.absolute(path)?,
        (range.offset + 1).to_string(),
        length,
    ];
    let body = r#"real "$1"
[ -e "$T" ] || { echo missing; exit 1; }
[ -f "$T" ] || { echo notfile; exit 1; }
[ -r "$T" ] || { echo denied; exit 1; }
echo ok
if [ -n "$3" ]; then [ "$3" = 0 ] || tail -c "+$2" -- "$T" | head -c "$3"
elif [ "$2" = 1 ]; then exec cat -- "$T"
else exec tail -c "+$2" -- "$T"; fi"#;
    let exec = run(shared, &doing, body, arguments, false).await?;
    let reading = Some((Arc::clone(shared), exec));
    Ok(Box::pin(stream::unfold(reading, move |reading| {
        let doing = doing.clone();
        async move {
            let (shared, mut exec) = reading?;
            loop {
                match exec.next().await {
                    Some(Ok(chunk)) if chunk.channel == Channel::Stderr => {}
                    Some(Ok(chunk)) => return Some((Ok(chunk.bytes), Some((shared, exec)))),
                    Some(Err(error)) => return Some((Err(shared.reason(error).await), None)),
                    // An interrupted read must not look like the end of the file.
                    None => match exec.check_exit(&shared, &doing).await {
                        Ok(()) => return None,
                        Err(error) => return Some((Err(error), None)),
                    },
                }
            }
        }
    })))
}

pub(super) async fn write(
    shared: &Shared,
    path: &SandboxPath,
    options: WriteOptions,
    mut data: ByteStream,
) -> Result<(), SandboxError> {
    let doing = format!("failed to write `{path}`");
    if path.is_base() {
        let message = format!("{doing}: it is a directory");
        return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
    }
    if let (Some(limit), Some(size)) = (shared.limits.file_size_bytes, options.size_bytes)
        && size > limit
    {
        let field = PolicyField::FileSize;
        let message = format!("{doing}: it exceeds the policy's {field} limit");
        return Err(SandboxError::new(SandboxErrorKind::StorageFull, message));
    }
    let token = cantle_core::ids::unique_id();
    let target = shared.absolute(path)?;
    // The name is given only when all is there: a stream that breaks leaves nothing.
    let begin = format!("{TARGET}: > \"$N\" || exit 1\necho ok\nexec cat > \"$N\"");
    let arguments = vec![target.clone(), token.clone()];
    let mut exec = run(shared, &doing, &begin, arguments, true).await?;
    let sent = send(&doing, &mut exec, options.size_bytes, &mut data).await;
    let ended = exec.rest(0).await;
    let mode = format!("{:o}", options.mode & 0o777);
    let (mode, size, result) = match sent.and_then(|size| ended.map(|_| size)) {
        Ok(size) => (mode, size.to_string(), Ok(())),
        Err(error) => (String::new(), String::new(), Err(error)),
    };
    let end = format!(
        r#"{TARGET}if [ -z "$3" ]; then rm -f -- "$N"; echo ok; exit; fi
[ "$(stat -c %s -- "$N")" = "$4" ] && chmod "$3" -- "$N" && mv -f -- "$N" "$T" && {{ echo ok; exit; }}
rm -f -- "$N"; echo "No space left""#
    );
    let committed = run(shared, &doing, &end, vec![target, token, mode, size], false).await;
    result.and(committed.map(drop))
}

/// Resolves the target to `$T`, and names the temporary file beside it `$N`.
const TARGET: &str = r#"make "${1%/*}" notdir
if [ -L "$1" ] && [ -e "$1" ]; then real "$1"; else above "$1"; fi
if [ -e "$T" ] && [ ! -f "$T" ]; then echo notfile; exit 1; fi
N=${T%/*}/.cantle-$2
"#;

/// Copies the data to the script; returns the number of bytes.
async fn send(
    doing: &str,
    exec: &mut Exec,
    size: Option<u64>,
    data: &mut ByteStream,
) -> Result<u64, SandboxError> {
    let mut written = 0_u64;
    let mut input = exec.input.take();
    let announced = |written: u64| size.is_none_or(|size| written <= size);
    while let (Some(piece), Some(input)) = (data.next().await, &mut input) {
        let bytes: Bytes = piece?;
        written += bytes.len() as u64;
        if !announced(written) {
            break;
        }
        let sent = input.write_all(&bytes).await;
        sent.map_err(|error| SandboxError::io(doing, error))?;
    }
    if let Some(mut input) = input {
        let closed = input.shutdown().await;
        closed.map_err(|error| SandboxError::io(doing, error))?;
    }
    if size.is_none_or(|size| size == written) {
        return Ok(written);
    }
    let message = format!("{doing}: the data don't have the announced size");
    Err(SandboxError::new(SandboxErrorKind::InvalidInput, message))
}

/// Parses a line of `stat -c "%f %s"`: the mode in hexadecimal digits and the size.
fn parse_stat(path: SandboxPath, text: &str) -> Option<FileInfo> {
    let (mode, size) = text.trim().split_once(' ')?;
    let mode = u32::from_str_radix(mode, 16).ok()?;
    let kind = match mode & 0o170_000 {
        0o100_000 => FileKind::File,
        0o040_000 => FileKind::Directory,
        0o120_000 => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = size.parse().ok()?;
    Some(FileInfo::new(path, kind, size, Some(mode & 0o777)))
}

pub(super) async fn stat(shared: &Shared, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
    let doing = format!("failed to stat `{path}`");
    let body = r#"if [ "$1" = "$W" ]; then T=$1; else above "$1"; fi
[ -e "$T" ] || [ -L "$T" ] || { echo missing; exit 1; }
echo ok
exec stat -c '%f %s' -- "$T""#;
    let mut exec = run(shared, &doing, body, vec![shared.absolute(path)?], false).await?;
    let text = exec.rest(1000).await?;
    parse_stat(path.clone(), &String::from_utf8_lossy(&text))
        .ok_or_else(|| SandboxError::new(SandboxErrorKind::Io, doing))
}

pub(super) async fn list(
    shared: &Shared,
    path: &SandboxPath,
) -> Result<Vec<FileInfo>, SandboxError> {
    let doing = format!("failed to list `{path}`");
    let body = r#"real "$1/."
[ -d "$T" ] || { echo notdir; exit 1; }
cd -- "$T" 2>/dev/null && [ -r . ] || { echo denied; exit 1; }
echo ok
for f in * .[!.]* ..?*; do
  [ -e "$f" ] || [ -L "$f" ] || continue
  stat -c '%f %s' -- "./$f" && printf '%s\0' "$f"
done
exit 0"#;
    let body = body.replace(
        "real \"$1/.\"",
        "[ \"$1\" = \"$W\" ] && T=$1 || real \"$1\"",
    );
    let mut exec = run(shared, &doing, &body, vec![shared.absolute(path)?], false).await?;
    let text = exec.rest(MAX_LISTING_BYTES).await?;
    exec.check_exit(shared, &doing).await?;
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
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

pub(super) async fn mkdir(shared: &Shared, path: &SandboxPath) -> Result<(), SandboxError> {
    let doing = format!("failed to create the directory `{path}`");
    let body = "make \"$1\" exists\necho ok";
    run(shared, &doing, body, vec![shared.absolute(path)?], false).await?;
    Ok(())
}

pub(super) async fn remove(shared: &Shared, path: &SandboxPath) -> Result<(), SandboxError> {
    let doing = format!("failed to remove `{path}`");
    if path.is_base() {
        let message = format!("{doing}: the working directory can't be removed");
        return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
    }
    let body = r#"above "$1"
[ -e "$T" ] || [ -L "$T" ] || { echo missing; exit 1; }
[ "$T" = "$W" ] && { echo denied; exit 1; }
[ -L "$T" ] || find "$T" -type d -exec chmod u+rwx {} \; 2>/dev/null
rm -rf -- "$T" && echo ok"#;
    run(shared, &doing, body, vec![shared.absolute(path)?], false).await?;
    Ok(())
}

pub(super) async fn rename(
    shared: &Shared,
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
    let arguments = vec![shared.absolute(from)?, shared.absolute(to)?];
    run(shared, &doing, body, arguments, false).await?;
    Ok(())
}
