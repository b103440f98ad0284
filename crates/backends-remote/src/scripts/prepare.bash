# Changes to the directory, sets the limits and finds the program. A failure is reported by a mark.
token=$1 keep=$2 root=$3 limits=$4
case $5 in
  plain) shift 5 ;;
  # Arguments that are not UTF-8 are sent quoted.
  quoted) eval "shift 6; set -- $6" ;;
esac
directory=$1
shift
unset CDPATH
refuse() { printf '\x1e%sF%s\x1e' "$token" "$1"; exit 0; }
[[ -e $directory ]] || refuse directory_missing
[[ -d $directory ]] || refuse no_directory
cd -P -- "$directory" 2>/dev/null || refuse directory_denied
# A directory inside the root must not lead out of it through links.
[[ $directory/ != "$root"/* || $PWD/ == "$root"/* || $PWD/ == /tmp/* ]] || refuse directory_outside
cd -- "$directory" 2>/dev/null
for limit in $limits; do
  # Fails if the current limit is lower, which is kept.
  ulimit -S"${limit%%=*}" "${limit##*=}" 2>/dev/null
  ulimit -H"${limit%%=*}" "${limit##*=}" 2>/dev/null
done
name=$1
shift
case $name in
  */*)
    [[ -e $name ]] || refuse program_missing
    program=$name
    [[ -f $name && -x $name ]] || refuse program_denied
    ;;
  *)
    program=$(type -P -- "$name")
    [[ $program ]] || refuse program_missing
    ;;
esac
