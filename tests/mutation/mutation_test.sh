#!/usr/bin/env bash
# Usage: mutation_test.sh TESTS: mutation.sh, on a project of four functions, tells the mutants that a test notices from those
# that survive it, that nothing reaches, and that are accepted. It plants none in what the compiler computes.
set -euo pipefail
tests=$1
/usr/bin/python3 -c 'import clang.cindex; clang.cindex.Index.create()' 2>/dev/null ||
  { echo "SKIPPED: mutants are made with clang's library: install python3-clang"; exit 77; }
project=$(mktemp -d)
trap 'rm -rf "$project"' EXIT
mkdir -p "$project"/{host,tests/tidy}
cp -r "$tests/mutation" "$project/tests/"
cp "$tests/tidy/changed_code.py" "$project/tests/tidy/"
cat >"$project/host/four.cpp" <<'CPP'
bool noticed(int a, int b) {
  return a < b;
}
int survivor(int a) {
  return a + 0;
}
bool unreached(bool a, bool b) {
  return a && b;
}
int accepted(int a) {
  return a * 1;
}
constexpr int kComputed = 2 + 3;
static const int kAlsoComputed = kComputed * 4;
template <int n>
struct Words {
  char words[n + 5];
};
unsigned long constant() {
  if constexpr (kAlsoComputed > 6) return sizeof(Words<8>);
  return sizeof(Words<7>);
}
CPP
cat >"$project/tests/four_test.cpp" <<'CPP'
bool noticed(int, int);
int survivor(int);
bool unreached(bool, bool);
int accepted(int);
int main(int count, char**) {
  if (count > 9) return unreached(true, true);
  survivor(0);
  accepted(1);
  return noticed(1, 2) && !noticed(1, 1) ? 0 : 1;
}
CPP
cat >"$project/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(four LANGUAGES CXX)
enable_testing()
add_executable(four_test host/four.cpp tests/four_test.cpp)
target_include_directories(four_test PRIVATE ${PROJECT_SOURCE_DIR})
add_custom_target(gdx_tests_fast DEPENDS four_test)
add_custom_target(gdx_tests_full DEPENDS four_test)
add_test(NAME four COMMAND four_test)
set_tests_properties(four PROPERTIES LABELS fast)
CMAKE
cat >"$project/CMakePresets.json" <<'JSON'
{"version": 6, "configurePresets": [{"name": "cpu", "generator": "Ninja", "binaryDir": "${sourceDir}/build/cpu",
 "cacheVariables": {"CMAKE_EXPORT_COMPILE_COMMANDS": "ON"}}]}
JSON
cat >"$project/tests/mutation/accepted" <<'TEXT'
host/four.cpp: operator: a * 1 => (a) + (1) | return a * 1;
host/four.cpp: constant: 1 => 1 + 1 | return a * 1;
TEXT
echo build >"$project/.gitignore"
git -C "$project" init -q
git -C "$project" add .
status=0
report=$("$project/tests/mutation/mutation.sh" --sample 100 --seed 7) || status=$?
printf '%s\n' "$report"
expect() { grep -qxE "$1" <<<"$report" || { echo "FAILED: no line '$1'"; exit 1; }; }
[ $status -eq 1 ] || { echo "FAILED: survivors, and exit status $status"; exit 1; }
expect 'survives .* host/four.cpp: operator: a \+ 0 => .*|survives .* host/four.cpp: constant: 0 => 0 \+ 1'
expect 'unreached .* host/four.cpp: (operator|returned): a && b => .*'
expect '== mutation: 1 noticed, 1 accepted, 1 survives, 1 unreached'
