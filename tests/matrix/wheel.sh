#!/usr/bin/env bash
# wheel.sh 12|13: HEAD's wheel of the package gdx is built by ./run wheel in a Debian of that release, and installed in
# an empty one by wheel_steps.sh.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
. "$tree/tests/matrix/root.sh"
git -C "$tree" rev-parse -q --verify HEAD >/dev/null || skip "$tree is no git checkout: clone the repository"
release=${1:-}

make_root "$tree" "$release" "debian-$release-wheel-build"
built=$root/srv/gdx/build/wheel
git clone -q --no-hardlinks "$tree" "$root/srv/gdx"
if ! (enter_root /srv/gdx/run wheel) >"$root/srv/log" 2>&1; then
  tail -40 "$root/srv/log" >&2
  grep -q 'No matching distribution found' "$root/srv/log" && skip "no packages of PyPI: no wheel was built"
  echo "FAILED: ./run wheel on Debian $release" >&2
  exit 1
fi
exec 8>&-

make_root "$tree" "$release" "debian-$release-wheel"
cp "$built"/*.whl "$tree/examples/ring.py" "$tree/tests/matrix/wheel_steps.sh" "$tree/action.sh" \
  "$tree/docs/fixture.md" "$tree/tests/python/fixture/installed_test.py" "$root/srv"
enter_root /srv/wheel_steps.sh
