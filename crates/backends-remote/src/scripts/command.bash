# Runs the command as a process group of its own, and tells how it ended by a mark at the end of either
# channel: the connection stays open for as long as something holds the channels, the command need not.
exec {report}>&2
state='' looking=''
# The status alone doesn't tell `exit 137` from a death by KILL; the words for the job do. POSIX mode is
# what makes `wait` come back for the trap, while the job is still known.
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
how=code
by_itself='^[^ ]+ +[0-9]+ +(Done|Exit)[ (]*([0-9]*)'
if [[ $state =~ $by_itself ]]; then
  code=${BASH_REMATCH[2]:-0}
elif [[ $state ]] || ((code > 128)); then
  how=signal
  if [[ $state ]]; then
    # What came back before was the trap's.
    wait "$leader"
    code=$?
  fi
  ((code -= 128))
fi
left=''
if [[ $keep ]]; then left=$(list_own); else kill_own; fi
exec 2>&"$report" {report}>&-
# Where nobody reads, this waits; then there is no process any more that has the command's arguments. It ends
# as the command did, for one who comes when all is told.
tell='printf "\x1e%sE\x1e" "$1"; shift; printf "\x1e%sE%s %s %s\n%s\x1e" "$@" >&2
[[ $2 == signal ]] && { ulimit -c 0; kill -s "$3" "$$"; }
exit "$3"'
exec "$BASH" -p -c "$tell" cantle "$token" "$token" "$how" "$code" "$((${ended:-0} - ${began:-0}))" "$left"
