#!/usr/bin/env bash
# install_test.sh BUILD_FOLDER ROOT COMPILER LIBRARY_FOLDER: installs, builds demo/own against that, by CMake and by
# pkg-config, and runs both; then an example, and the tutorials. Users have no headers of fmt, spdlog and nlohmann/json.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Calls, peers (8 tries of 8.6 s) and ranks that meet outlast a machine that stands still for a minute.
export GDX_CALL_TIMEOUT_S=150 GDX_ACK_TIMEOUT=21 GDX_RETRY_COUNT=7 GDX_BOOTSTRAP_TIMEOUT_S=150

# step COMMAND...: its output counts only when it fails.
step() {
  timeout 200 "$@" >"$folder/out" 2>&1 && return
  echo "FAILED: $*" >&2
  tail -40 "$folder/out" >&2
  exit 1
}

# run_put PROGRAM: two ranks of it.
run_put() {
  step "$folder/gdx/bin/gdx" run --ranks 2 --timeout-s 180 -- "$1"
  grep -q '^rank 1 has: put by a kernel$' "$folder/out" || { cat "$folder/out" >&2 && exit 1; }
}

# A tree in which nothing is built.
step cmake -G Ninja -S "$2" -B "$folder/tree" -DCMAKE_CXX_COMPILER="$3" -DBUILD_TESTING=OFF
timeout 200 cmake --install "$folder/tree" --prefix "$folder/half" >"$folder/out" 2>&1 && cat "$folder/out" && exit 1
{ grep -q 'nothing is installed, because' "$folder/out" && [ ! -e "$folder/half" ]; } ||
  { echo "FAILED: half a prefix" >&2 && cat "$folder/out" >&2 && exit 1; }

own=$2/demo/own
step cmake --install "$1" --prefix "$folder/gdx"
headers=$(grep -rlE '#include *[<"](fmt|spdlog|nlohmann)/' "$folder/gdx/include") && {
  echo "FAILED: installed headers need what users need not have: $headers" >&2
  exit 1
}
step cmake -G Ninja -S "$own" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/gdx" -DCMAKE_CXX_COMPILER="$3" \
  -DCMAKE_DISABLE_FIND_PACKAGE_{fmt,spdlog,nlohmann_json}=ON
step cmake --build "$folder/build"
zgrep -q '^\.SH "GDX MODEL"$' "$folder/gdx/share/man/man1/gdx.1.gz" || { echo "FAILED: no manual page" >&2 && exit 1; }
zgrep -q '^\.SH ENVIRONMENT$' "$folder/gdx/share/man/man8/gdxd.8.gz" || { echo "FAILED: no manual page of gdxd" >&2 && exit 1; }
grep -qx "ExecStart=$folder/gdx/bin/gdxd" "$folder/gdx/lib/systemd/system/gdxd.service" || { echo "FAILED: the unit starts another gdxd" >&2 && exit 1; }
step bash -c '. "$1" && complete -p gdx' - "$folder/gdx/share/bash-completion/completions/gdx"
run_put "$folder/build/put"

export PKG_CONFIG_PATH=$folder/gdx/$4/pkgconfig
LD_LIBRARY_PATH=$(pkg-config --variable=libdir gdx)
export LD_LIBRARY_PATH
for package in gdx gdx-static; do
  step pkg-config --print-errors --exists $package
  # Words, each a flag.
  # shellcheck disable=SC2046
  step "$3" -std=c++20 -o "$folder/put" "$own/main.cpp" -x c++ "$own/put.cu" -x none $(pkg-config --cflags --libs $package)
  run_put "$folder/put"
  case $package:$(ldd "$folder/put" | grep -c 'libgdx.so.0 =>') in
    gdx:1 | gdx-static:0) ;;
    *) echo "FAILED: pkg-config $package links the other of archives and libgdx.so.0" >&2 && exit 1 ;;
  esac
done
unset LD_LIBRARY_PATH

step cmake -G Ninja -S "$2/examples" -B "$folder/examples" -DCMAKE_PREFIX_PATH="$folder/gdx" -DCMAKE_CXX_COMPILER="$3"
step cmake --build "$folder/examples" --target ring_allreduce
step "$folder/gdx/bin/gdx" run --ranks 3 --timeout-s 180 -- "$folder/examples/ring_allreduce"

# The tutorials' commands, in one shell after the other, in a home that has gdx as they say.
for page in TUTORIAL tutorials/{signals,push,failure,measuring}; do
  awk '/^```sh$/ { shown = 1; next } /^```$/ { shown = 0 } shown' "$2/docs/$page.md"
done >"$folder/tutorials.sh"
step env HOME="$folder" bash -eu "$folder/tutorials.sh"
for line in 'rank 0 of 2 has 1000 to 1999' 'rank 4 of 5 has 3000 to 3999' '100 rounds of 2 workers: 0 numbers of another round' \
  '  softhca_staging_sends 256' 'rank 1: launch ok, kernel invalid argument' 'status 3'; do
  grep -qx "$line" "$folder/out" || { echo "FAILED: the tutorials do not print: $line" >&2 && cat "$folder/out" >&2 && exit 1; }
done

command -v nvcc >/dev/null || { echo "no nvcc in PATH: kernels for a GPU were not built" && exit 0; }
step cmake -G Ninja -S "$own" -B "$folder/cuda" -DCMAKE_PREFIX_PATH="$folder/gdx" -DCMAKE_CXX_COMPILER="$3" \
  -DPUT_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=80
step cmake --build "$folder/cuda"
