# File operations that the protocol lacks: non-UTF-8 names, modes, links.
case $1 in
  # Prints the path with all links resolved.
  resolve) eval "readlink -f -- $2" ;;
  # Prints type and permissions (hexadecimal), and size.
  stat) eval "set -- $2"; [[ -e $1 || -L $1 ]] || exit 44; stat -c '%f %s' -- "$1" ;;
  # Prints all names, each terminated by NUL; another NUL; and for each name a line as above.
  list)
    eval "cd -- $2" || exit 1
    shopt -s dotglob nullglob
    LC_ALL=C
    names=(*)
    ((${#names[@]})) || exit 0
    printf '%s\0' "${names[@]}"
    printf '\0'
    printf './%s\0' "${names[@]}" | xargs -0 stat -c '%f %s' --
    ;;
  mkdir) eval "mkdir -p -- $2" ;;
  remove)
    eval "set -- $2"
    # Unwritable directories can't be emptied.
    rm -rf -- "$1" 2>/dev/null && exit 0
    [[ -d $1 && ! -L $1 ]] && chmod -R u+rwx -- "$1" 2>/dev/null
    rm -rf -- "$1"
    ;;
  move) eval "mv -fT -- $2" ;;
  mode) mode=$3; eval "chmod $mode -- $2" ;;
  read) start=$3; eval "exec tail -c +$start -- $2" ;;
esac
