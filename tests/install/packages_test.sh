#!/usr/bin/env bash
# packages_test.sh BUILD_FOLDER ROOT: Debian packages of the build folder. lintian finds no error in them; in an empty
# Debian apt installs them with what they depend on, the demo runs, and demo/own is built and runs.
set -euo pipefail
. "$2/tests/matrix/root.sh"
command -v lintian >/dev/null || skip "lintian is missing, so packages were not checked: install Debian's lintian"
. /etc/os-release
[ "$ID" = debian ] || skip "packages of Debian are built on Debian, and this is ${PRETTY_NAME:-another system}"
make_root "$2" "$VERSION_ID" "debian-$VERSION_ID-packages"
mkdir "$root/srv/packages"
cpack --config "$1/CPackConfig.cmake" -B "$root/srv/packages" >"$root/srv/log" 2>&1 || { tail -40 "$root/srv/log" >&2 && exit 1; }
rm -rf "$root/srv/packages/_CPack_Packages"
lintian --allow-root --fail-on error "$root"/srv/packages/*.deb
cp -r "$2/demo/own" "$root/srv/own"

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
STEPS
chmod +x "$root/srv/steps"
enter_root /srv/steps
