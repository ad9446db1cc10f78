#!/usr/bin/env bash
# through_gdxd.sh GDXD COMMAND...: a gdxd of its own, and the command as its client. gdxd must end in order when it is
# told to. It may log where it listens, and the newest events of endpoints whose faults the command causes.
set -euo pipefail
gdxd=$1
shift
folder=$(mktemp -d)
export GDXD_CONFIG=/dev/null  # not this machine's
"$gdxd" --socket "$folder/socket" 2>"$folder/log" &
daemon=$!
trap 'kill -9 $daemon 2>/dev/null || true; rm -rf "$folder"' EXIT
until grep -qs '^gdxd listens' "$folder/log"; do
  kill -0 $daemon || { cat "$folder/log"; exit 1; }
  sleep 0.05
done
status=0
GDX_DAEMON=unix:$folder/socket "$@" || status=$?
kill $daemon
wait $daemon || { echo "gdxd ended with status $?"; cat "$folder/log"; exit 1; }
[ ! -e "$folder/socket" ] || { echo "gdxd left its socket behind"; exit 1; }
if grep -vE '^gdxd listens| ends with syndrome 0x[0-9a-f]+; its newest events:$|^ +[0-9]+\.[0-9]{9} |^$' "$folder/log"; then
  echo "gdxd had more to say than where it listens"
  exit 1
fi
exit $status
