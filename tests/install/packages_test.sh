#!/usr/bin/env bash
# packages_test.sh BUILD_FOLDER ROOT: Debian packages of the build folder, and python3-gdx, which is built against them.
# lintian finds no error in them. In an empty Debian apt installs them with what they depend on; the demo and
# examples/ring.py run, and demo/own is built and runs.
set -euo pipefail
. "$2/tests/matrix/root.sh"
command -v lintian >/dev/null || skip "lintian is missing, so packages were not checked: install Debian's lintian"
. /etc/os-release
[ "$ID" = debian ] || skip "packages of Debian are built on Debian, and this is ${PRETTY_NAME:-another system}"
make_root "$2" "$VERSION_ID" "debian-$VERSION_ID-packages"
mkdir "$root/srv/packages"
cpack --config "$1/CPackConfig.cmake" -B "$root/srv/packages" >"$root/srv/log" 2>&1 ||
  { tail -40 "$root/srv/log" >&2 && exit 1; }

# python_package: by Debian's Python, and nanobind of PyPI.
python_package() {
  local venv=$root/srv/venv
  if ! { /usr/bin/python3 -m venv "$venv" &&
    "$venv/bin/pip" install -q "$(grep nanobind "$2/tests/python/requirements.txt")"; } >"$root/srv/log" 2>&1; then
    tail -1 "$root/srv/log"
    echo "SKIPPED: python3-gdx was not built: there is no python3-venv, or no PyPI"
    return
  fi
  for package in "$root"/srv/packages/libgdx*.deb; do dpkg -x "$package" "$root/srv/stage"; done
  { cmake -G Ninja -S "$2/python" -B "$root/srv/python" -DCMAKE_BUILD_TYPE=Release -DCMAKE_SKIP_INSTALL_RPATH=ON \
    -DCMAKE_PREFIX_PATH="$root/srv/stage/usr" -DPython_EXECUTABLE="$venv/bin/python3" &&
    cmake --build "$root/srv/python" && cpack --config "$root/srv/python/CPackConfig.cmake" -B "$root/srv/packages"; } \
    >"$root/srv/log" 2>&1 || { tail -40 "$root/srv/log" >&2 && exit 1; }
}
python_package "$@"
rm -rf "$root/srv/packages/_CPack_Packages"
lintian --allow-root --fail-on error "$root"/srv/packages/*.deb
cp -r "$2/demo/own" "$2/examples/ring.py" "$root/srv"

cat >"$root/srv/steps" <<'STEPS'
#!/bin/bash
exec 2>&1
set -ex
export DEBIAN_FRONTEND=noninteractive GDX_CALL_TIMEOUT_S=150 GDX_BOOTSTRAP_TIMEOUT_S=150
apt-get update -qq
apt-get install -qq --no-install-recommends /srv/packages/gdx_*.deb >/dev/null
timeout 200 gdx demo --modes pull,push --min-bytes 8 --max-bytes 65536
apt-get install -qq --no-install-recommends /srv/packages/libgdx*.deb g++ cmake ninja-build >/dev/null
cmake -G Ninja -S /srv/own -B /srv/build
cmake --build /srv/build
ldd /srv/build/put | grep 'libgdx.so.0 => /'
timeout 200 gdx run --ranks 2 -- /srv/build/put | grep -x 'rank 1 has: put by a kernel'
[ -e /srv/packages/python3-gdx_*.deb ] || exit 0
apt-get install -qq --no-install-recommends /srv/packages/python3-gdx_*.deb >/dev/null
timeout 200 gdx run --ranks 4 -- python3 /srv/ring.py | grep -x 'ranks 0 to 3 add up to 6'
STEPS
chmod +x "$root/srv/steps"
enter_root /srv/steps
