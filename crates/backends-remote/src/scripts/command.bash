# Runs the command as a process group, and reports its end by a mark at the end of each channel: background
# processes may keep the channels, and so the connection, open after the command has ended.
exec {report}>&2
state='' looking=''
# `exit 137` and death by KILL have the same status; the job's description distinguishes them. In POSIX mode
# `wait` returns for the trap, while the job is still listed.
look() {
  [[ $looking ]] && return
  local LC_ALL=C
  looking=1
  state=$(jobs -l 2>/dev/null)
  looking=''
}
began=${EPOCHREALTIME//[!0-9]/}
set -o posix -m
trap look CHLD
(
  trap - CHLD
  exec {report}>&-
  set +o posix
  export CANTLE_COMMAND=$token
  printf '\x1e%sS%s\x1e' "$token" "$BASHPID"
  exec -a "$name" -- "$program" "$@"
) <&0 &
leader=$!
set +m
exec </dev/null 2>/dev/null
while :; do
  wait "$leader"
  code=$?
  [[ $state == *' Running '* || $state == *' Stopped'* ]] || break
  state=''
done
trap - CHLD
set +o posix
ended=${EPOCHREALTIME//[!0-9]/}
kind=code
exited='^[^ ]+ +[0-9]+ +(Done|Exit)[ (]*([0-9]*)'
if [[ $state =~ $exited ]]; then
  code=${BASH_REMATCH[2]:-0}
elif [[ $state ]] || ((code > 128)); then
  kind=signal
  if [[ $state ]]; then
    # The earlier status may be that of the interrupted `wait`.
    wait "$leader"
    code=$?
  fi
  ((code -= 128))
fi
left=''
if [[ $keep ]]; then left=$(list_own); else kill_own; fi
exec 2>&"$report" {report}>&-
# This blocks until the output is read; `exec` has removed the command's arguments from the process list by
# then. It exits as the command did, for a client that connects after the marks were written.
report_end='printf "\x1e%sE\x1e" "$1"; shift; printf "\x1e%sE%s %s %s\n%s\x1e" "$@" >&2
[[ $2 == signal ]] && { ulimit -c 0; kill -s "$3" "$$"; }
exit "$3"'
exec "$BASH" -p -c "$report_end" cantle "$token" "$token" "$kind" "$code" "$((${ended:-0} - ${began:-0}))" "$left"
