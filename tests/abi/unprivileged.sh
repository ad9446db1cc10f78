#!/usr/bin/env bash
# `gdx run` by a user without any right, who may lock 64 KiB of memory at most.
. "$(dirname "$0")/common.sh"
need setpriv util-linux
need ib_write_bw perftest

nobody=65534
chmod 755 "$scratch"
if [ "$(id -u)" = 0 ]; then
  drop=(setpriv --reuid=$nobody --regid=$nobody --clear-groups --inh-caps=-all)
else
  drop=()
fi
if ! "${drop[@]}" test -x "$GDX_TEST_GDX"; then
  echo "SKIPPED: an ordinary user cannot reach $GDX_TEST_GDX; build in a folder that all can read" >&2
  exit 77
fi

# Instead of preloading: the command that users type.
on_hca() {
  (ulimit -l 64 && cd / && TMPDIR=/tmp exec timeout 150 "${drop[@]}" "$GDX_TEST_GDX" run -- "$@")
}

on_hca sh -c 'id -u; ulimit -l' > "$scratch/who" 2>&1 || { cat "$scratch/who"; fail "gdx run exited with $?"; }
grep -qw 64 "$scratch/who" || fail "the limit on locked memory is not in force"
! grep -qx 0 "$scratch/who" || fail "still root"
both_ends ib_write_bw -n 200 -s 1048576 -F "${patience[@]}"
grep -Eq '^ *1048576 +200 ' "$scratch/client" || fail "no line of results"
both_ends ib_send_bw -c UD -n 200 -s 1024 -F
