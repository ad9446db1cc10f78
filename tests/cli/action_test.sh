#!/usr/bin/env bash
# action_test.sh GDX ROOT: action.sh as a forge calls it: a command that passes, and one that fails and is replayed.
. "$(dirname "$0")/../program.sh" action
PATH=$(dirname "$1"):$PATH
root=$2
command -v ibv_devinfo >/dev/null || { echo "SKIPPED: the action was not tested: install ibverbs-utils" && exit 77; }
export PATH RUNNER_TEMP=$folder/kept GITHUB_OUTPUT=$folder/outputs GDX_ACTION_OPTIONS="--hcas 2 --loss 0.25"
mkdir "$RUNNER_TEMP"

GDX_ACTION_COMMAND='ibv_devinfo -l | grep -c gdx' run 100 "$root/action.sh"
expect_status 0
expect '^2$'
[ -z "$(ls "$RUNNER_TEMP")" ] || fail "captures are kept of a run that passed"

export GDX_ACTION_COMMAND='echo "$GDX_SOFTHCA_SEED $GDX_SOFTHCA_LOSS"; ibv_devinfo >/dev/null; exit 3'
GDX_ACTION_SEED=77 run 100 "$root/action.sh"
expect_status 3
expect '^77 0.25$'
expect '^gdx: status 3 with seed 77; replay: gdx run --hcas 2 --loss 0.25 --seed 77 -- bash -c .*; captures: .*/kept/'
ls "$RUNNER_TEMP"/*/*.pcap >/dev/null || fail "no captures are kept"
[ "$(tail -2 "$GITHUB_OUTPUT" | paste -sd ' ')" = "seed=77 folder=$(ls -d "$RUNNER_TEMP"/*)" ] ||
  fail "not these outputs"
# The line that it prints does the same.
replay=$(sed -n 's/^gdx: .*replay: \(.*\); captures: .*/\1/p' "$out")
run 100 bash -c "$replay"
expect_status 3
expect '^77 0.25$'

# Drawn seeds differ.
run 100 "$root/action.sh"
seeds=$(sed -n 's/^seed=//p' "$GITHUB_OUTPUT" | sort -u | wc -l)
[ "$seeds" -ge 3 ] || fail "the same seed is drawn twice"
# Variables that the action sets are those that the script reads.
for name in $(grep -o 'GDX_ACTION_[A-Z]*' "$root/action.yml"); do
  grep -q "{$name:" "$root/action.sh" || fail "action.sh does not read $name"
done
