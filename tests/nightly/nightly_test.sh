#!/usr/bin/env bash
# Usage: nightly_test.sh NIGHTLY_SCRIPT CASE. The script chooses, records and ages slices in a repository of three commits.
. "$(dirname "${BASH_SOURCE[0]}")/../program.sh" "$2"
nightly=$1
export GDX_NIGHTLY_ROOT=$folder/tree
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
unset GIT_DIR GIT_WORK_TREE

commit() { git add -A && git commit -qm "$1"; }

mkdir -p "$GDX_NIGHTLY_ROOT/tests/nightly" "$GDX_NIGHTLY_ROOT/a" "$GDX_NIGHTLY_ROOT/b"
cd "$GDX_NIGHTLY_ROOT"
git init -q
git config gc.auto 0
cat >tests/nightly/slices <<'TEXT'
# name | minutes | command | paths
alpha | 3 | echo ran alpha; ! grep -q broken a/file | a
beta | 6 | echo ran beta {seed}; ! grep -q broken b/file | b
gamma | 2 | exit 77 | c
TEXT
touch a/file b/file
commit first
first=$(git rev-parse HEAD)

records() { printf '%s\n' "alpha $1 2026-01-01" "beta $2 2026-01-01" "gamma $3 2026-01-01" >tests/nightly/passed; }

case $case_name in
  touched_slice_runs_and_sees_the_fault)
    # alpha passed longer ago than beta.
    git commit -q --allow-empty -m second
    records "$first" "$(git rev-parse HEAD)" "$first"
    commit records
    export GDX_NIGHTLY_BASE=HEAD~1
    echo broken >b/file
    commit fault
    run 100 "$nightly" next
    expect_status 1
    expect '^ran beta 4$'
    expect_no 'ran alpha'
    expect 'beta FAILED; repeat it'
    ;;
  oldest_slice_runs_where_none_is_touched)
    export GDX_NIGHTLY_BASE=HEAD~1
    git commit -q --allow-empty -m second
    second=$(git rev-parse HEAD)
    records "$first" "$second" "$second"
    commit records
    run 100 "$nightly" next
    expect_status 0
    expect '^ran alpha$'
    expect_no 'ran beta'
    grep -q "^alpha $(git rev-parse HEAD) " tests/nightly/passed || fail "no record of alpha's pass"
    ;;
  budget_is_kept_and_the_rest_named)
    export GDX_NIGHTLY_BASE=$first
    echo change | tee a/file >b/file
    commit change
    run 100 "$nightly" next 7
    expect_status 0
    expect '^ran alpha$'
    expect_no 'ran beta'
    expect 'touched but beyond 7 min: beta'
    ;;
  skipped_slice_makes_room_for_the_next)
    unset GDX_NIGHTLY_BASE
    records "$first" "$first" 0
    commit records
    run 100 "$nightly" next
    expect_status 0
    expect 'gamma was skipped'
    expect '^ran alpha$'
    ;;
  change_since_the_last_pass_is_seen_in_later_commits)
    unset GDX_NIGHTLY_BASE
    echo broken >b/file
    commit fault
    git commit -q --allow-empty -m later
    records "$(git rev-parse HEAD)" "$first" "$(git rev-parse HEAD)"
    commit records
    run 100 "$nightly" next
    expect_status 1
    expect 'beta FAILED'
    ;;
  skip_and_dirty_tree_are_not_recorded)
    echo change >a/file
    run 100 "$nightly" run gamma alpha
    expect_status 0
    expect 'gamma was skipped'
    expect 'alpha passed; not recorded'
    [ ! -e tests/nightly/passed ] || fail "recorded all the same"
    ;;
  check_fails_beyond_thirty_commits)
    records "$first" "$first" "$first"
    for i in $(seq 30); do git commit -q --allow-empty -m "$i"; done
    run 100 "$nightly" check
    expect_status 0
    git commit -q --allow-empty -m late
    run 100 "$nightly" check
    expect_status 1
    expect 'alpha passed more than 30 commits ago'
    ;;
  unknown_slice_is_refused)
    run 100 "$nightly" run delta
    expect_status 1
    expect "no slice 'delta': use one of alpha beta gamma"
    ;;
  *) fail "no such case" ;;
esac
