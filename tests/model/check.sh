#!/usr/bin/env bash
# check.sh MODEL.pml PROPERTY [VARIANT]: proves the LTL property of the model, or of a variant of it, by exhaustion
# with Spin; where the variant is a planted fault (FAULT_...), sees that it breaks the property.
set -euo pipefail
model=$(realpath "$1") property=$2 variant=${3:-}
for tool in spin cc; do
  package=$tool
  [ "$tool" = cc ] && package=gcc
  command -v "$tool" >/dev/null || { echo "SKIPPED: the model was not checked, $tool is missing; install Debian's $package"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
spin -a ${variant:+"-D$variant"} "$model" >spin.log || { cat spin.log; exit 1; }
# NFAIR: room for ten processes under weak fairness.
cc -O2 -w -DCOLLAPSE -DNFAIR=4 -DMEMLIM=3000 -o pan pan.c
# These two are safety properties: true of every state, whoever runs.
fairness=-f
[[ $property = conservation || $property = books ]] && fairness=
timeout 560 ./pan -a $fairness -m4000000 -N "$property" >pan.log 2>&1 || { tail -5 pan.log; echo "check.sh: no verdict"; exit 1; }
grep -E 'errors:|states, stored|assertion violated|acceptance cycle' pan.log
if grep -qE 'max search depth too small|out of memory|memory limit|too many processes' pan.log; then
  echo "check.sh: the search was cut short, which proves nothing"
  exit 1
fi
if [[ $variant != FAULT_* ]]; then
  grep -q 'errors: 0$' pan.log
else
  grep -q 'errors: 1$' pan.log || { echo "check.sh: $variant was not found"; exit 1; }
fi
