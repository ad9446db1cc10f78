#!/usr/bin/env bash
# steps.sh [STEP...]: README's commands, the abi and install labels, a short fuzzing and the demo by clang in this tree, or
# the named steps. Prints the time that each takes and what CTest counts. The matrix runs it in an empty Debian, the
# container file in an image.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
mkdir -p out/matrix
status=0

# step NAME COMMAND...: its output in out/matrix/NAME.log, a line here.
step() {
  local name=$1 began=$SECONDS code=0 counted
  shift
  "$@" >"out/matrix/$name.log" 2>&1 || code=$?
  counted=$(grep -E 'tests passed|^== skipped' "out/matrix/$name.log")
  echo "$*: status $code after $((SECONDS - began)) s${counted:+$'\n'}$counted"
  [ $code -eq 0 ] && return
  tail -n 60 "out/matrix/$name.log"
  status=1
}

# The demo once more, all of it by the clang that the fuzzing has installed.
clang_demo() {
  cmake -S . -B build/clang -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ &&
    cmake --build build/clang --target gdx gdx_demo gdx_softhca && build/clang/host/programs/cli/gdx demo
}

sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release
[ $# -gt 0 ] || set -- demo test abi install fuzz clang
for name in "$@"; do
  case $name in
    demo) step demo ./run demo ;;
    test) step test ./run test ;;
    unit) step unit ./run test -L unit ;;
    abi) step abi ./run test -L abi ;;
    install) step install ./run test -L install ;;
    # By clang: what it is installed as, and what it says of libraries and their headers.
    fuzz) step fuzz ./run fuzz 30 1 ;;
    clang) step clang clang_demo ;;
    *)
      echo "steps.sh: no step '$name': use demo, test, unit, abi, install, fuzz or clang" >&2
      exit 2
      ;;
  esac
  [[ $name =~ ^(demo|fuzz|clang)$ ]] && continue
  # A skip that nobody reads would hide that nothing has run.
  skipped=$(grep -c '[*][*][*]Skipped' "out/matrix/$name.log")
  passed=$(grep -c ' Passed ' "out/matrix/$name.log")
  [ "$name" != install ] || skipped=0
  if [ "$passed" -eq 0 ] || [ $((10 * skipped)) -gt "$passed" ]; then
    echo "$name: $skipped tests were skipped, and $passed passed: too many for a pass; out/matrix/$name.log has the reasons"
    status=1
  fi
done
dpkg-query -W -f='${Package} ${Version}\n' g++ libc6 rdma-core libibverbs1 perftest libucx0 libfabric1 python3-pyverbs
exit $status
