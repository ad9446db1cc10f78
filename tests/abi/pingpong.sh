#!/usr/bin/env bash
# Usage: pingpong.sh PROGRAM [options]. Both ends must say that they finished.
. "$(dirname "$0")/common.sh"
program=$1
shift
need "$program"

both_ends "$program" -n 200 -c "$@"
! grep -h 'invalid data' "$scratch/client" "$scratch/server" || fail "what arrived is not what was sent"
grep -q '200 iters in' "$scratch/client" || fail "the client does not report 200 iterations"
grep -q '200 iters in' "$scratch/server" || fail "the server does not report 200 iterations"
case " $* ${GDX_SOFTHCA_LINK_LAYER:-} " in
  *" -g "* | *" infiniband "*) ! grep -q 'by LID' "$scratch/client" || fail "warned about a LID where it is no surprise" ;;
  *) [ "$(grep -c 'by LID' "$scratch/client")" = 1 ] || fail "no single warning about the LID" ;;
esac
