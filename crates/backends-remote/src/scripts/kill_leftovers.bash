# Kills processes left by commands of an earlier owner.
for process in /proc/[0-9]*; do
  variables=()
  { mapfile -d '' -t variables < "$process/environ"; } 2>/dev/null
  IFS=$'\n'
  [[ $IFS"${variables[*]}" == *"${IFS}CANTLE_COMMAND="* ]] && kill -KILL "${process##*/}" 2>/dev/null
done
unset IFS
