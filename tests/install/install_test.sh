#!/usr/bin/env bash
# install_test.sh BUILD_FOLDER SOURCE_FOLDER COMPILER: install, build SOURCE_FOLDER against it, run it.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# step COMMAND...: its output counts only when it fails.
step() {
  timeout 200 "$@" >"$folder/out" 2>&1 && return
  echo "FAILED: $*" >&2
  tail -40 "$folder/out" >&2
  exit 1
}

step cmake --install "$1" --prefix "$folder/gdx"
step cmake -G Ninja -S "$2" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/gdx" -DCMAKE_CXX_COMPILER="$3"
step cmake --build "$folder/build"
step "$folder/gdx/bin/gdx" run --ranks 2 --timeout-s 60 -- "$folder/build/put"
grep -q '^rank 1 has: put by a kernel$' "$folder/out" || { cat "$folder/out" >&2 && exit 1; }
grep -q '^\.SH "GDX MODEL"$' "$folder/gdx/share/man/man1/gdx.1" || { echo "FAILED: no manual page" >&2 && exit 1; }
step bash -c '. "$1" && complete -p gdx' - "$folder/gdx/share/bash-completion/completions/gdx"
