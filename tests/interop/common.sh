# Shared by the scripts here. GDX_INTEROP_FOLDER: image and running guest; GDX_TEST_PRELOAD: what to preload,
# sanitizer runtime first; GDX_INTEROP_PEER: our peer program; GDX_INTEROP_LINGER: what lets a queue pair outlive
# its last message.
set -u
PATH=$PATH:/usr/sbin:/sbin

host_ipv4=10.67.0.1 guest_ipv4=10.67.0.2
host_ipv6=fd67::1 guest_ipv6=fd67::2

# The cases repeat the reason of the guest's start.
skip() {
  mkdir -p "$GDX_INTEROP_FOLDER"
  echo "$*" > "$GDX_INTEROP_FOLDER/skipped"
  echo "SKIPPED: $*" >&2
  exit 77
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# need PROGRAM PACKAGE
need() {
  command -v "$1" > /dev/null || skip "$1 is missing; install Debian's $2 to test against Soft-RoCE"
}

# The process that owns the guest's network, if it lives and is the one that wrote its id.
guest_pid() {
  local pid
  pid=$(cat "$GDX_INTEROP_FOLDER/guest/pid" 2> /dev/null) || return 1
  { tr '\0' '\n' < "/proc/$pid/environ"; } 2> /dev/null | grep -x "GDX_INTEROP_FOLDER=$GDX_INTEROP_FOLDER" > /dev/null ||
    return 1
  echo "$pid"
}

# Options of unshare and nsenter for a user that may not make a network namespace without a user namespace.
if unshare -n true 2> /dev/null; then own_user=() enter_user=(); else own_user=(-r) enter_user=(-U --preserve-credentials); fi
