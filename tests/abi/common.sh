# Shared by the scripts here. GDX_TEST_PRELOAD: what to preload, sanitizer runtime first.
set -u

need() {
  command -v "$1" > /dev/null && return
  echo "SKIPPED: $1 is missing; install Debian's ibverbs-utils to run this test" >&2
  exit 77
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Runs a program on the software HCA, for at most 60 s.
on_hca() {
  env LD_PRELOAD="$GDX_TEST_PRELOAD" timeout 60 "$@"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
