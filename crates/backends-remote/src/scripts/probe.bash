# Prints the working directory and the user id.
cd -P ~ 2>/dev/null || exit 1
[[ $1 ]] && { mkdir -p -- "$1" && cd -P -- "$1" || exit 1; }
printf '%s\n%s\n' "$PWD" "$EUID"
