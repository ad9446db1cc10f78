#!/usr/bin/env bash
# wheel.sh BUILD_FOLDER [PYTHON]: makes a wheel of the package gdx for PYTHON (python3), with the gdx of BUILD_FOLDER in
# it, and prints its path. auditwheel adds what else they link, but for what a process must have one copy of.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$1 python=${2:-python3}
folder=$here/../build/wheel
# rdma-core's parts, through which a second copy would find no providers; libfabric, which opens them; the driver's.
excluded=(libibverbs.so.1 libmlx5.so.1 librdmacm.so.1 libfabric.so.1 libcuda.so.1)

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
exec 9>"$folder/.lock"
flock 9
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
venv=$folder/venv-$tag
if ! cmp -s "$here/wheel_requirements.txt" "$venv/requirements.txt"; then
  "$python" -m venv --clear "$venv"
  "$venv/bin/pip" install -q -r "$here/wheel_requirements.txt"
  cp "$here/wheel_requirements.txt" "$venv/requirements.txt"
fi
rm -rf "$folder/gdx" "$folder/raw"
for component in libgdx0 libgdx-dev; do
  cmake --install "$build" --component $component --prefix "$folder/gdx" --strip >"$folder/log"
done
install -D -s -t "$folder/gdx/bin" "$build"/host/programs/{cli/gdx,daemon/gdxd} "$build/demo/gdx_demo"
install -D -s -t "$folder/gdx/lib" "$build/driver-shim/softhca/interpose/libgdx_softhca.so"
CMAKE_PREFIX_PATH=$folder/gdx "$venv/bin/pip" wheel -q --no-build-isolation --no-deps -w "$folder/raw" \
  --config-settings=cmake.define.GDX_WHEEL_PREFIX="$folder/gdx" --config-settings=build-dir="$folder/build-$tag" "$here"
PATH=$venv/bin:$PATH auditwheel repair "${excluded[@]/#/--exclude=}" -w "$folder" "$folder"/raw/*.whl \
  >"$folder/log" 2>&1 || { tail -20 "$folder/log" >&2 && exit 1; }
ls -t "$folder"/*"$tag"*.whl | head -1
