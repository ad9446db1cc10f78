#!/usr/bin/env bash
# Usage: silent.sh. Programs that ask for nothing unusual find no word of the software HCA on their stderr.
. "$(dirname "$0")/common.sh"
need ibv_devinfo
need ib_write_bw perftest

on_hca ibv_devinfo -v > "$scratch/out" 2> "$scratch/errors" || fail "ibv_devinfo exited with $?"
both_ends ib_write_bw -F -n 100 "${patience[@]}"
cat "$scratch/server" "$scratch/client" >> "$scratch/errors"
grep -E '^gdx\[' "$scratch/errors" && fail "the software HCA has something to say"
exit 0
