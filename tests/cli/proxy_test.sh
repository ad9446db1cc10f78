#!/usr/bin/env bash
# proxy_test.sh CASE GDX: the contract of the host's poster, as gdx proxy prints it.
. "$(dirname "$0")/../program.sh"
gdx=$2

run 100 "$gdx" proxy --explain --provider tcp
if [ "$status" -ne 0 ] && grep 'built without libfabric' "$out" >/dev/null; then
  echo "SKIPPED: $(cat "$out")"
  exit 77
fi

case $case_name in
  explain)
    expect_status 0
    expect '^tcp;ofi_rxm \(version 1[0-9.]+, API 1\.17\)$'
    expect '^  signal after put     native     the provider delivers a message after'
    expect '^  signal               emulated   a message, which the target'
    expect '^  check of writers     absent     nobody is authenticated.*GDX_INSECURE=1$'
    run 100 "$gdx" proxy --explain --provider shm
    expect_status 0
    expect '^  check of writers     native     processes of this host that know the key'
    # Each provider here has its part.
    run 100 "$gdx" proxy --explain
    expect_status 0
    expect '^tcp;ofi_rxm ' && expect '^shm ' && expect '^ibverbs'
    ;;
  json)
    run 100 "$gdx" proxy --explain --provider tcp --json
    expect_status 0
    python3 - "$out" <<'PYTHON' || fail "not as documented"
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    (provider,) = json.load(file)["providers"]
assert provider["provider"] == "tcp;ofi_rxm", provider
support = {row["subject"]: row["support"] for row in provider["contract"]}
assert support["put"] == "native" and support["signal"] == "emulated" and support["GPU memory"] == "absent", support
PYTHON
    ;;
  refused)
    refused 'nothing to do: give --explain' "$gdx" proxy
    run 100 "$gdx" proxy --explain --provider nothing
    expect_status 127 && expect_one_line && expect "^gdx proxy: libfabric has no provider 'nothing' .*: fi_info "
    GDX_INSECURE=yes run 100 "$gdx" proxy --explain
    expect_status 2 && expect_one_line && expect "^gdx proxy: GDX_INSECURE is 'yes': use 0 or 1$"
    ;;
esac
