# A terminal belongs to the process that it was made for, so the command takes the place of this one.
export CANTLE_COMMAND=$token
printf '\x1e%sS%s\x1e' "$token" "$$"
exec -a "$name" -- "$program" "$@"
