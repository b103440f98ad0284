# Kills, terminates or lists the processes of a command.
token=$1 leader=$2
case $3 in
  kill) kill_own ;;
  terminate)
    find_own
    ((${#found[@]})) && kill -TERM "${found[@]}" 2>/dev/null
    exit 0
    ;;
  list) list_own ;;
esac
