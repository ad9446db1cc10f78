# Figures of a process whose work ends on threads of its own, for scripts.

# settled COMMAND...: what it prints, once that stands still for two seconds.
settled() {
  local now last='' same=0
  for _ in $(seq 1200); do
    now=$("$@")
    [ "$now" = "$last" ] && same=$((same + 1)) || same=0
    last=$now
    [ $same -lt 40 ] || break
    sleep 0.05
  done
  echo "$last"
}
