# Figures of a process whose work ends on threads of its own, for scripts: numbers, each before its name.

# settled COMMAND...: what it prints, once that stands still for half a second. More may end later, so compare by no_more.
settled() {
  local now last='' same=0
  while [ $same -lt 10 ]; do
    now=$("$@")
    [ "$now" = "$last" ] && same=$((same + 1)) || same=0
    last=$now
    sleep 0.05
  done
  echo "$last"
}

# no_more BEFORE COMMAND...: whether no number of those that it prints is above that of BEFORE.
no_more() {
  local before=$1
  shift
  paste -d ' ' <(grep -o '[0-9]*' <<<"$before") <(grep -o '[0-9]*' <<<"$("$@")") | awk 'NF != 2 || $2 > $1 { exit bad = 1 } END { exit bad }'
}
