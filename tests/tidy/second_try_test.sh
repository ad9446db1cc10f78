#!/usr/bin/env bash
# Usage: second_try_test.sh TESTS CASE: which failures have a second try. Its tests are lines of shell under realtime.sh,
# in a build folder of two of them.
. "$(dirname "${BASH_SOURCE[0]}")/../program.sh" "$2"
tests=$1

# A test of this name is the rest of the line.
given() {
  local name=$1
  shift
  printf '%s\n' "$*" >"$folder/$name.sh"
  echo "add_test($name bash $tests/realtime.sh bash $folder/$name.sh)" >>"$folder/CTestTestfile.cmake"
  echo "set_tests_properties($name PROPERTIES LABELS realtime)" >>"$folder/CTestTestfile.cmake"
}
ran() {
  ctest --test-dir "$folder" >/dev/null 2>&1
  run 300 "$tests/second_try.sh" "$folder" ctest --test-dir "$folder" --output-on-failure
}
# Fails the first time it is run.
once="[ -e $folder/seen ] && exit 0; touch $folder/seen;"

case $case_name in
  slow_test_passes_alone)
    given good 'exit 0'
    given slow "$once echo 'FAIL (x): too slow: 3 s'; exit 1"
    ran
    expect_status 0
    expect '^FLAKY slow$'
    ;;
  slow_assertion_of_googletest_passes_alone)
    given slow "$once printf 'x_test.cpp:3: Failure\nExpected: (3) < (2)\ntoo slow\n'; exit 1"
    ran
    expect_status 0
    expect '^FLAKY slow$'
    ;;
  test_that_stays_slow_fails)
    given slow "echo 'FAIL (x): too slow: 3 s'; exit 1"
    ran
    expect_status 1
    expect_no FLAKY
    ;;
  test_that_is_slow_once_more_alone_fails)
    given slow "echo >>$folder/runs; [ \$(wc -l <$folder/runs) -gt 1 ] && [ \$(wc -l <$folder/runs) -ne 4 ] && exit 0" \
      "; echo 'FAIL (x): too slow: 3 s'; exit 1"
    ran
    expect_status 1
    expect_no FLAKY
    ;;
  test_without_the_label_fails)
    given slow "$once echo 'FAIL (x): too slow: 3 s'; exit 1"
    sed -i '/LABELS/d' "$folder/CTestTestfile.cmake"
    ran
    expect_status 1
    expect_no FLAKY
    ;;
  other_failure_beside_fails)
    given slow "$once printf 'x_test.cpp:3: Failure\ntoo slow\nx_test.cpp:4: Failure\na wrong byte\n'; exit 1"
    ran
    expect_status 1
    expect_no FLAKY
    ;;
  other_test_beside_fails)
    given slow "$once echo 'FAIL (x): too slow: 3 s'; exit 1"
    given wrong 'exit 1'
    ran
    expect_status 1
    expect_no FLAKY
    ;;
  race_leak_and_crash_fail)
    for end in 'echo "WARNING: ThreadSanitizer: data race"; exit 1' \
      'echo "ERROR: LeakSanitizer: detected memory leaks"; exit 1' 'exit 23' 'kill -SEGV $$' 'kill -ABRT $$'; do
      rm -f "$folder/CTestTestfile.cmake" "$folder/seen"
      given slow "$once echo 'FAIL (x): too slow: 3 s'; $end"
      ctest --test-dir "$folder" >/dev/null 2>&1
      "$tests/second_try.sh" "$folder" ctest --test-dir "$folder" >"$out" 2>&1 && fail "a second try after: $end"
      expect_no FLAKY
    done
    ;;
  *) fail "no such case" ;;
esac
