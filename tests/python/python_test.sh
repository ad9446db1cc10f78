#!/usr/bin/env bash
# python_test.sh BUILD_FOLDER ROOT COMPILER: the package gdx, built by pip against an installed libgdx in a virtual
# environment of BUILD_FOLDER; kernels.cu by a user's compiler; examples/ring.py, the tests of this folder by ranks of `gdx run`, and a check of types.
set -uo pipefail
build=$1 root=$2
here=$root/tests/python
folder=$build/python
export PIP_DISABLE_PIP_VERSION_CHECK=1 CXX=$3 GDX_STATUS_HEADER=$root/proto/status.h
# Calls, peers and ranks that meet outlast a machine that stands still for a minute.
export GDX_CALL_TIMEOUT_S=150 GDX_BOOTSTRAP_TIMEOUT_S=150

skip() {
  echo "SKIPPED: $*: the Python package was not tested"
  exit 77
}

# step COMMAND...: its output counts only when it fails.
step() {
  timeout 280 "$@" >"$folder/out" 2>&1 && return
  echo "FAILED: $*" >&2
  tail -60 "$folder/out" >&2
  exit 1
}

mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null ||
  skip "no headers of Python: install python3-dev"
if ! cmp -s "$here/requirements.txt" "$folder/venv/requirements.txt"; then
  python3 -m venv --clear "$folder/venv" >"$folder/out" 2>&1 || skip "no virtual environment: install python3-venv"
  "$folder/venv/bin/pip" install -q -r "$here/requirements.txt" >"$folder/out" 2>&1 ||
    { tail -3 "$folder/out" && skip "no packages of PyPI"; }
  cp "$here/requirements.txt" "$folder/venv/requirements.txt"
fi
python=$folder/venv/bin/python3

rm -rf "$folder/gdx"
for component in libgdx0 libgdx-dev; do
  step cmake --install "$build" --component $component --prefix "$folder/gdx"
done
CMAKE_PREFIX_PATH=$folder/gdx step "$python" -m pip install --no-build-isolation --no-deps --force-reinstall \
  --config-settings=build-dir="$folder/build" "$root/python"
step "$python" -m mypy --strict --python-executable "$python" "$root/examples/ring.py" "$here"/*.py
# Arrays whose type does not matter have none in the stub.
step "$python" -m mypy --strict --python-executable "$python" --disable-error-code type-arg -p gdx

# ranks NUMBER PROGRAM [OPTION...]: of `gdx run`.
ranks() {
  step "$build/host/programs/cli/gdx" run --ranks "$1" --label --timeout-s 250 "${@:3}" -- "$python" "$2"
}
PKG_CONFIG_PATH=$folder/gdx/lib/pkgconfig
export PKG_CONFIG_PATH GDX_TEST_KERNELS=$folder/kernels.so
# Words, each a flag.
# shellcheck disable=SC2046
step "$CXX" -std=c++20 -Wall -Werror -shared -fPIC -fvisibility=hidden -o "$folder/kernels.so" -x c++ "$here/kernels.cu" \
  -x none $(pkg-config --cflags --libs gdx)
GDX_DIRECT=off ranks 2 "$here/kernels_test.py" --loss 0.01
PATH=$build/host/programs/cli:$PATH step "$python" -m pytest -p no:cacheprovider "$here/fixture/installed_test.py"
ranks 4 "$root/examples/ring.py"
grep -qx '0: ranks 0 to 3 add up to 6' "$folder/out" ||
  { echo 'FAILED: examples/ring.py prints:' >&2 && cat "$folder/out" >&2 && exit 1; }
ranks 2 "$here/calls_test.py"
LD_LIBRARY_PATH=$build/driver-shim/cuda/fake/current ranks 2 "$here/streams_test.py"
GDX_DIRECT=off ranks 2 "$here/calls_test.py" --loss 0.01
PATH=$build/host/programs/cli:$PATH step "$python" -m gdx.demo --loss 0.01
[ "$(grep -c '^[01]: 53489688 bytes in 12 messages verified$' "$folder/out")" = 2 ] ||
  { echo 'FAILED: python -m gdx.demo prints:' >&2 && cat "$folder/out" >&2 && exit 1; }
step "$here/torchrun.sh" stand_in "$build" "$root" "$here/stand_in/torchrun"
# gpu_kernels: where there is a GPU.
gpu_kernels() {
  local architecture
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
  if [ -z "$architecture" ] || ! command -v nvcc >/dev/null; then
    echo "SKIPPED: no kernel ran on a GPU from Python: there is no GPU (nvidia-smi), or no nvcc in PATH"
    return
  fi
  "$python" -m pip install -q -r "$here/gpu_requirements.txt" >"$folder/out" 2>&1 ||
    { echo "SKIPPED: no kernel ran on a GPU from Python: pip has no cuda-core" && return; }
  step nvcc -std=c++17 --expt-relaxed-constexpr -arch="sm_$architecture" -cubin -I "$root" -o "$folder/kernels.cubin" \
    "$here/gpu_kernels.cu"
  GDX_TEST_CUBIN=$folder/kernels.cubin ranks 2 "$here/gpu_kernels_test.py"
}
gpu_kernels
GDX_DIRECT=off GDX_CALL_TIMEOUT_S=20 ranks 2 "$here/lost_rank_test.py"
grep -q '^0: PEER_UNREACHABLE of rank 1, syndrome 21: .*waited for the word at heap offset' "$folder/out" ||
  { echo 'FAILED: a lost rank is told as:' >&2 && cat "$folder/out" >&2 && exit 1; }
