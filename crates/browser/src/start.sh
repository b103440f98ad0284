# Starts the browser with descriptors 3 and 4, which `--remote-debugging-pipe` uses, as the command's pipes.
# Arguments: the name of the profile's directory, the program or nothing, further arguments of the program.
#
# The profile is new, and outside of the working directory, whose files are delivered. Debian's `/usr/bin/chromium` is
# a script that needs configuration which the sandbox does not show, so the program itself is tried first. The proxy
# is the sandbox's own; Chromium reaches loopback addresses without it.
profile=${TMPDIR:-/tmp}/$1 program=$2
shift 2
rm -rf "$profile"
mkdir -p "$profile/Default" || exit 1
# A document of Chromium's viewer has no text for a snapshot.
printf '{"plugins":{"always_open_pdf_externally":true}}' > "$profile/Default/Preferences"
if [ -z "$program" ]; then
    for program in /usr/lib/chromium/chromium /usr/lib/chromium-browser/chromium-browser \
        /opt/google/chrome/chrome chromium chromium-browser google-chrome chrome ''; do
        command -v "$program" >/dev/null 2>&1 && break
    done
fi
command -v "$program" >/dev/null 2>&1 || exit 127
export HOME="$profile" XDG_CACHE_HOME="$profile/cache" XDG_CONFIG_HOME="$profile/config"
export DBUS_SESSION_BUS_ADDRESS=disabled: DBUS_SYSTEM_BUS_ADDRESS=disabled:

# Chromium's own sandbox needs user namespaces and system calls that Cantle's refuses. Cantle's is the boundary: the
# browser and its pages may do what any command of the model may do. Without a sandbox of its own, a process per site
# separates nothing; it would hide frames from the connection.
set -- --no-sandbox --disable-features=IsolateOrigins,site-per-process,Translate,MediaRouter \
    --disable-site-isolation-trials "$@"
# `/dev/shm` is small in sandboxes and containers. The sandbox's proxy carries TCP.
set -- --disable-dev-shm-usage --disable-gpu --disable-quic "$@"
# Nothing is requested but what pages request.
set -- --disable-background-networking --disable-component-update --disable-default-apps --disable-extensions \
    --disable-sync --metrics-recording-only "$@"
set -- --no-default-browser-check --no-first-run --password-store=basic --mute-audio --hide-scrollbars "$@"
proxy=${HTTP_PROXY:-$http_proxy}
[ -z "$proxy" ] || set -- "--proxy-server=$proxy" "$@"
"$program" "--user-data-dir=$profile" --remote-debugging-pipe "$@" 3<&0 4>&1 0</dev/null 1>&2
code=$?
rm -rf "$profile"
[ $code != 127 ] || code=1
exit $code
