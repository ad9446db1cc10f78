#!/usr/bin/env bash
# systemd_test.sh BUILD_FOLDER: gdxd's units of an installed gdx under a systemd of their own, in a container. The
# container's root is a throw-away view of this machine's. Programs activate gdxd by its socket; it is confined as its
# unit says; it is started again after its death; nothing is left behind.
set -u
folder=$(mktemp -d)
trap 'rm -rf --one-file-system "$folder"' EXIT
skip() {
  echo "SKIPPED: $*: gdxd's units were not started"
  exit 77
}
[ "$(id -u)" -eq 0 ] || skip 'only root starts containers: run this as root'
command -v systemd-nspawn >/dev/null || skip 'there is no systemd-nspawn: install systemd-container'
[ -x /lib/systemd/systemd ] || skip 'there is no systemd: install systemd'
unshare -m true 2>/dev/null || skip 'no mount namespace may be made here: allow it to root'

DESTDIR=$folder/installed timeout 200 cmake --install "$1" --prefix /opt/gdx >"$folder/out" 2>&1 || { tail -40 "$folder/out" >&2 && exit 1; }
units=$folder/installed/opt/gdx/lib/systemd/system
mkdir "$folder/root" "$folder/shared"

# Script of the container. Each line must be true.
cat >"$folder/shared/trial" <<'TRIAL'
#!/bin/bash
exec >/trial/out 2>&1
set -ex
touch /trial/began
export GDX_DAEMON=unix:/run/gdx/gdxd.sock GDX_CALL_TIMEOUT_S=200 GDX_BOOTSTRAP_TIMEOUT_S=200
demo() { timeout 100 /opt/gdx/bin/gdx demo --modes pull,push --min-bytes 8 --max-bytes 65536; }
value() { systemctl show --value -p "$1" gdxd.service; }
systemctl start gdxd.socket
[ "$(value ActiveState)" = inactive ]
demo
[ "$(value ActiveState)" = active ]
first=$(value MainPID)
# No way to more rights: no new privileges, one capability, a filter of system calls.
grep -x 'NoNewPrivs:.1' "/proc/$first/status"
grep -x 'CapBnd:.0000000000004000' "/proc/$first/status"
grep -x 'Seccomp:.2' "/proc/$first/status"
systemctl kill -s KILL gdxd.service
for _ in {1..600}; do
  [ "$(value NRestarts)" = 1 ] && [ "$(value ActiveState)" = active ] && break
  sleep 0.1
done
demo
[ "$(value MainPID)" != "$first" ]
systemctl stop gdxd.service
[ "$(value Result)" = success ]
demo
systemctl stop gdxd.service gdxd.socket
[ ! -e /run/gdx/gdxd.sock ]
touch /trial/passed
TRIAL
chmod +x "$folder/shared/trial"
cat >"$folder/trial.service" <<'UNIT'
[Service]
Type=oneshot
ExecStart=/trial/trial
ExecStopPost=/bin/systemctl poweroff --no-block
UNIT

export folder units
timeout --kill-after=5 250 unshare -m bash -c '
  mount --make-rprivate / && mount --bind / "$folder/root" &&
  exec systemd-nspawn --quiet --directory="$folder/root" --volatile=overlay --private-network --register=no --keep-unit --capability=CAP_IPC_LOCK \
    --machine="gdx-$$" --bind="$folder/shared:/trial" --bind-ro="$folder/installed/opt/gdx:/opt/gdx" \
    --bind-ro="$folder/trial.service:/etc/systemd/system/trial.service" \
    --bind-ro="$units/gdxd.service:/etc/systemd/system/gdxd.service" \
    --bind-ro="$units/gdxd.socket:/etc/systemd/system/gdxd.socket" --boot systemd.unit=trial.service
' >"$folder/boot" 2>&1 </dev/null
[ -e "$folder/shared/began" ] || { tail -5 "$folder/boot" && skip 'systemd did not start in a container'; }
[ -e "$folder/shared/passed" ] && exit 0
echo 'FAILED: the last of these commands:' >&2
cat "$folder/shared/out" >&2
exit 1
