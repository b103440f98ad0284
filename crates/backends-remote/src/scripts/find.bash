# Finds the processes of a command, even if reparented or in another session: by the variable that they
# inherit unless they clear their environment, and by the command's process group.
# Uses only builtins: the process limit may be reached, and programs may be missing.
find_own() {
  found=()
  local own=$BASHPID process stat rest variables IFS
  local group='^. [0-9]+ ([0-9]+) '
  for process in /proc/[0-9]*; do
    process=${process##*/}
    [[ $process == "$$" || $process == "$own" ]] && continue
    { IFS= read -r stat < "/proc/$process/stat"; } 2>/dev/null || continue
    # PID (NAME) STATE PARENT GROUP …
    rest=${stat##*) }
    [[ $rest == [ZX]* ]] && continue
    if [[ $leader && $rest =~ $group && ${BASH_REMATCH[1]} == "$leader" ]]; then
      found+=("$process")
      continue
    fi
    variables=()
    { mapfile -d '' -t variables < "/proc/$process/environ"; } 2>/dev/null
    IFS=$'\n'
    [[ $IFS"${variables[*]}"$IFS == *"${IFS}CANTLE_COMMAND=$token"* ]] && found+=("$process")
  done
}
# Repeats, because a process may have forked before it was killed.
kill_own() {
  local round
  for ((round = 0; round < 100; round++)); do
    find_own
    ((${#found[@]})) || return 0
    kill -KILL "${found[@]}" 2>/dev/null
  done
  return 1
}
# One line each: the process id and the command line, shortened.
list_own() {
  local process words IFS=' '
  find_own
  for process in "${found[@]:0:20}"; do
    words=()
    { mapfile -d '' -t words < "/proc/$process/cmdline"; } 2>/dev/null
    words=${words[*]}
    words=${words//[$'\x1e\n']/ }
    printf '%s %s\n' "$process" "${words:0:120}"
  done
}
