#!/usr/bin/env bash
# Usage: pyverbs.sh unpack FOLDER VERSION...: puts rdma-core's own tests into FOLDER, from the installed package
#                   or, where its documentation was left out, from the archive. It must be of one of these versions.
#        pyverbs.sh run FOLDER MODULE...: on the software HCA, against pyverbs_table.txt.
#        pyverbs.sh modules FOLDER MODULE...: are these all?
. "$(dirname "$0")/common.sh"
# Debian's own: what python3-pyverbs belongs to.
python=/usr/bin/python3
here=$(cd "$(dirname "$0")" && pwd)
command=$1
folder=$2
shift 2

skip() {
  echo "SKIPPED: $*" >&2
  exit 77
}

# Leaves the tests in $scratch/tests, or says why not.
find_tests() {
  local installed=/usr/share/doc/rdma-core/tests
  if [ ! -e $installed/run_tests.py ]; then
    need apt-get apt
    (cd "$scratch" && timeout 60 apt-get download -qq python3-pyverbs && dpkg-deb -x ./*.deb .) ||
      skip "python3-pyverbs is here without its documentation, which holds the tests, and cannot be downloaded"
    installed=$scratch$installed
  fi
  cp -rL $installed "$scratch/tests" && gunzip -q "$scratch"/tests/*.gz || fail "no tests in $installed"
}

unpack() {
  local version
  rm -rf "$folder"
  version=$(dpkg-query -W -f='${Version}' python3-pyverbs 2> /dev/null)
  $python -c 'import pyverbs.device' 2> /dev/null ||
    skip "pyverbs is missing; install Debian's python3-pyverbs to run this test"
  version=${version%%[.-]*}
  [[ " $* " == *" $version "* ]] ||
    skip "pyverbs_table.txt is about rdma-core $*, and python3-pyverbs here is of $version"
  find_tests
  mkdir -p "$folder" && cp -r "$scratch/tests" "$folder" && echo "$version" > "$folder/version" ||
    fail "cannot write to $folder"
  ls "$folder/tests"
}

table=$here/pyverbs_table.txt
[ "$command" = unpack ] || [ -e "$folder/tests" ] ||
  skip "rdma-core's tests are not there: abi.pyverbs_is_unpacked says why"
case $command in
  unpack) unpack "$@" ;;
  modules) $python "$here/pyverbs_table.py" "$table" "$folder" --modules "$@" || exit 1 ;;
  run)
    export PYTHONDONTWRITEBYTECODE=1
    on_hca $python "$here/pyverbs_table.py" "$table" "$folder" "$@" > "$scratch/out" 2>&1
    status=$?
    cat "$scratch/out"
    [ $status = 77 ] && exit 77
    [ $status = 0 ] || fail "exit status $status"
    ;;
  *) fail "no command $command" ;;
esac
exit 0
