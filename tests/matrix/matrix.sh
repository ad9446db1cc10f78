#!/usr/bin/env bash
# matrix.sh 12|13 [STEP...]: HEAD of this tree on that Debian, from an empty root, by steps.sh.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
. "$tree/tests/matrix/root.sh"
git -C "$tree" rev-parse -q --verify HEAD >/dev/null || skip "$tree is no git checkout: clone the repository"
make_root "$tree" "${1:-}" "debian-${1:-}"
shift
# Lies in /srv, which an ordinary user may read, because a test runs as one.
git clone -q --no-hardlinks "$tree" "$root/srv/gdx"
enter_root /srv/gdx/tests/matrix/steps.sh "$@"
