#!/usr/bin/env bash
# Usage: nightly_test.sh NIGHTLY_SCRIPT CASE. The script chooses, records and ages shards in a repository of its own.
. "$(dirname "${BASH_SOURCE[0]}")/../program.sh" "$2"
nightly=$1
export GDX_NIGHTLY_ROOT=$folder/tree
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
unset GIT_DIR GIT_WORK_TREE GDX_LANDING GDX_SLOWNESS_PERCENT

commit() { git add -A && git commit -qm "$1"; }

mkdir -p "$GDX_NIGHTLY_ROOT/tests/nightly" "$GDX_NIGHTLY_ROOT/a" "$GDX_NIGHTLY_ROOT/b"
cd "$GDX_NIGHTLY_ROOT"
git init -q
git config gc.auto 0
cat >tests/nightly/shards <<'TEXT'
# name | minutes | command | paths
asan | part | echo ran asan | a b
tsan | part | echo ran tsan | a b
alpha | 3 | echo ran alpha; ! grep -q broken a/file | a
beta | 6 | echo ran beta {seed}; ! grep -q broken b/file | b
gamma | 2 | exit 77 | c
TEXT
touch a/file b/file
commit first
first=$(git rev-parse HEAD)

# records NAME LANDING...: that the others passed at landing 20, which is the last.
records() {
  local name
  for name in alpha asan beta gamma landing tsan; do
    [[ " $* " =~ \ $name\ ([0-9]+) ]] && echo "$name ${BASH_REMATCH[1]} $first 2026-01-01" || echo "$name 20 $first 2026-01-01"
  done >tests/nightly/passed
  commit records
}
expect_order() {
  [ "$(grep '^ran' "$out" | paste -sd,)" = "$1,$2" ] || fail "not '$1' and then '$2'"
}
passed() { awk -v name="$1" '$1 == name { print $2, $3 }' tests/nightly/passed; }

case $case_name in
  touched_shard_runs_first_and_sees_the_fault)
    records alpha 13
    echo broken >b/file
    commit fault
    run 100 "$nightly" next 600
    expect_status 1
    expect_order 'ran beta 3' 'ran alpha'
    expect 'beta FAILED; repeat it'
    [ "$(passed beta)" = "20 $first" ] || fail "a failure is kept as a pass"
    ;;
  shard_that_nears_its_age_runs_before_a_touched_one)
    records alpha 12
    echo change >b/file
    commit change
    run 100 "$nightly" next 600
    expect_status 0
    expect_order 'ran alpha' 'ran beta 3'
    ;;
  oldest_shard_runs_first_where_none_is_touched)
    records beta 12
    run 100 "$nightly" next 1000
    expect_status 0
    expect_order 'ran beta 2' 'ran alpha'
    run 100 "$nightly" next 250
    expect 'left out, beyond the time that was left: beta'
    expect_no 'ran beta'
    ;;
  slow_machine_runs_fewer)
    records alpha 12
    GDX_SLOWNESS_PERCENT=300 run 100 "$nightly" next 600
    expect_status 0
    expect '^ran alpha$'
    expect 'left out, beyond the time that was left: beta'
    ;;
  skipped_shard_makes_room_and_is_not_kept)
    records gamma 1
    run 100 "$nightly" next 600
    expect_status 0
    expect 'gamma was skipped'
    expect '^ran alpha$'
    [ "$(passed gamma)" = "1 $first" ] || fail "a skip is kept as a pass"
    ;;
  part_that_passed_longest_ago_is_next)
    records tsan 15
    run 100 "$nightly" part
    expect '^tsan$'
    records asan 0
    run 100 "$nightly" part
    expect '^asan$'
    ;;
  commit_of_passes_counts_as_the_one_before)
    records
    head=$(git rev-parse HEAD)
    run 100 "$nightly" run alpha
    [ "$(passed alpha)" = "20 $first" ] || fail "alpha is kept of another commit than the one before the records"
    echo change >a/file
    commit change
    head=$(git rev-parse HEAD)
    run 100 "$nightly" run alpha
    commit passes
    run 100 "$nightly" run beta
    [ "$(passed alpha) $(passed beta)" = "20 $head 20 $head" ] || fail "beta is kept of the commit of passes"
    ;;
  landing_is_counted_and_taken_over)
    records
    export GDX_LANDING=21
    run 100 "$nightly" run alpha
    "$nightly" flaky slow_test
    run 100 "$nightly" landed
    expect "^passed: alpha 21 $first "
    expect "^passed: flaky:slow_test@21 21 $first "
    expect "^passed: landing 21 $first "
    cp "$out" "$folder/log"
    git checkout -q tests/nightly/passed
    "$nightly" take <"$folder/log"
    [ "$(passed alpha) $(passed landing)" = "21 $first 21 $first" ] || fail "not taken over"
    run 100 "$nightly" take
    expect_status 0
    "$nightly" take <<<"passed: alpha 3 $first 2026-01-01"
    [ "$(passed alpha)" = "21 $first" ] || fail "an older pass replaced a newer one"
    ;;
  changed_tree_is_not_recorded)
    records
    echo change >a/file
    run 100 "$nightly" run alpha
    expect_status 0
    expect 'alpha passed; not recorded'
    [ "$(passed alpha)" = "20 $first" ] || fail "recorded all the same"
    ;;
  check_fails_beyond_ten_landings)
    records alpha 10 tsan 10
    run 100 "$nightly" check
    expect_status 0
    records alpha 9 tsan 9
    run 100 "$nightly" check
    expect_status 1
    expect 'alpha passed more than 10 landings ago'
    expect 'tsan passed more than 10 landings ago'
    ;;
  check_fails_where_a_test_was_flaky_twice)
    records
    echo "flaky:slow_test@12 12 $first 2026-01-01" >>tests/nightly/passed
    run 100 "$nightly" check
    expect_status 0
    echo "flaky:slow_test@20 20 $first 2026-01-01" >>tests/nightly/passed
    run 100 "$nightly" check
    expect_status 1
    expect 'slow_test passed at a second try only, in two of 10 landings'
    run 100 "$nightly" landed
    expect_status 1
    expect_no '^passed: '
    ;;
  hung_shard_fails)
    sed -i 's/^alpha .*/alpha | 1 | sleep 1000 | a/' tests/nightly/shards
    sed 's/timeout --kill-after=30 \$((minutes \* patience))m/timeout 1s/' "$nightly" >"$folder/impatient.sh"
    run 100 bash "$folder/impatient.sh" run alpha
    expect_status 1
    expect 'alpha FAILED: it hung'
    ;;
  unknown_shard_is_refused)
    run 100 "$nightly" run delta
    expect_status 1
    expect "no shard 'delta': use one of alpha beta gamma asan tsan"
    ;;
  *) fail "no such case" ;;
esac
