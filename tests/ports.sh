# TCP ports, for scripts that have a function `fail`.

# Returns whether a process listens at TCP port $1.
listens() {
  grep -Eq "^ *[0-9]+: [0-9A-F]+:$(printf '%04X' "$1") .* 0A " /proc/net/tcp /proc/net/tcp6 2> /dev/null
}

# A TCP port that nobody uses, below those that the kernel gives out by itself.
free_port() {
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 12000))
    grep -Eq "^ *[0-9]+: [0-9A-F]+:$(printf '%04X' "$port") " /proc/net/tcp /proc/net/tcp6 2> /dev/null && continue
    echo "$port"
    return
  done
  fail "no free port"
}
