#!/usr/bin/env bash
# wheel_steps.sh: the wheel beside this file, installed and used in an empty Debian. Each line must be true.
exec 2>&1
set -exo pipefail
cd /srv
export DEBIAN_FRONTEND=noninteractive GDX_CALL_TIMEOUT_S=150 GDX_BOOTSTRAP_TIMEOUT_S=150
python=/srv/venv/bin/python3
fails() { if "$@"; then exit 1; fi; }
apt_get() { apt-get "$@" >/srv/log || { tail -20 /srv/log && exit 1; }; }
apt_get update -qq
apt_get install -qq --no-install-recommends ca-certificates python3-venv
python3 -m venv venv
venv/bin/pip install -q ./*.whl

# Without the libraries of RDMA: imported, and what needs them names the line to type.
missing='libibverbs.so.1 is missing, by which gdx reaches RDMA devices: apt install libibverbs1 ibverbs-providers'
$python -c 'import gdx
try:
  gdx.Team()
except gdx.Error as error:
  print(error)' | grep -x "$missing"
fails $python -m gdx.demo >out 2>&1
grep -x "gdx: $missing" out
apt_get install -qq --no-install-recommends libibverbs1 ibverbs-providers

timeout 200 $python -m gdx.demo | tee out
[ "$(grep -c 'bytes in 12 messages verified' out)" = 2 ]
timeout 200 $python -m gdx.demo --loss 0.01 --seed 1
timeout 200 $python -m gdx.run --ranks 4 -- $python ring.py | grep -x 'ranks 0 to 3 add up to 6'
timeout 200 $python -m gdx demo --modes pull,push --min-bytes 8 --max-bytes 65536
venv/lib/python3*/site-packages/gdx/bin/gdxd --version

# One copy of each, of the system, in a process that has a team; the software HCA in none that has not asked for it.
$python -m gdx.run -- $python -c 'import gdx
team = gdx.Team()
print(open("/proc/self/maps").read())' >out
for library in libibverbs libmlx5 libgdx.so libgdx_softhca; do
  [ "$(grep -o "/[^ ]*/$library[-.].*" out | sort -u | wc -l)" = 1 ]
done
grep -q '/usr/lib/.*/libibverbs.so' out
$python -c 'import gdx
print(open("/proc/self/maps").read())' >out
fails grep softhca out
find venv -name '*.so*' -printf '%f\n' >out
fails grep -E '^lib(ibverbs|mlx5|rdmacm|fabric|cuda)' out

# The fixture, by the first example of its page too, and the script of the action.
apt_get install -qq --no-install-recommends ibverbs-utils
venv/bin/pip install -q pytest
awk '/^```/ { ++fences } fences == 1 && !/^```/' fixture.md >page_test.py
timeout 200 $python -m pytest -p no:cacheprovider page_test.py installed_test.py | tee out
grep -q ' 2 passed' out
export GDX_ACTION_OPTIONS='--hcas 2 --loss 0.01' RUNNER_TEMP=/srv PATH=/srv/venv/bin:$PATH
GDX_ACTION_COMMAND='ibv_devinfo -l | grep -c gdx' timeout 200 ./action.sh | grep -x 2
fails env GDX_ACTION_COMMAND='ibv_devinfo >/dev/null; exit 3' GDX_ACTION_SEED=7 timeout 200 ./action.sh >out 2>&1
grep '^gdx: status 3 with seed 7; replay: gdx run --hcas 2 --loss 0.01 --seed 7 ' out
ls gdx-captures-*/*.pcap

apt_get install -qq --no-install-recommends openmpi-bin
timeout 200 mpirun --allow-run-as-root --oversubscribe -n 4 $python -m gdx.run -- $python ring.py |
  grep -x 'ranks 0 to 3 add up to 6'
echo "passed: $(echo ./*.whl) on Debian $(cat /etc/debian_version)"
