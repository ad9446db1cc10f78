#!/usr/bin/env bash
# measurements_test.sh CASE GDX_MEASUREMENTS: what runner.sh of perf passes on becomes medians, ratios by round, and errors.
. "$(dirname "$0")/../program.sh"
program=$2
report() { run 100 sh -c 'printf "%b" "$1" | "$2" --measured "a machine" $3' - "$1" "$program" "${2-}"; }

samples='sample|1|a|2\nsample|1|b|4\nsample|2|a|30\nsample|2|b|10\nsample|3|a|4\nsample|3|b|4\nsample|1|once|7e3\n'
rows='value|us|0.5|a|the a|\nratio|a|b|a / b|<= 2\nvalue|us|1|once|the other|\n'
# The median of the rounds' ratios 0.5, 3 and 1, not the ratio 4 / 4 of the medians.
report "$samples$rows"
expect_status 0
expect '^measured: a machine; gdx at [0-9a-z-]+; intervals of level 0.75$'
expect '^the a, us +2 +\[1, 15\] +$'
expect '^a / b +1 +\[0.5, 3\]  <= 2$'
expect '^the other, us +7000 +-  $'
report "$samples${rows/b|a/once|a}" --json
expect_status 0
python3 - "$out" <<'PYTHON' || fail "its JSON is not what was passed"
import json, sys
told = json.load(open(sys.argv[1]))
value, ratio, once = told["rows"]
assert told["measured"] == "a machine" and value["median"] == 2 and value["rounds"] == 3, told
assert ratio["ratio"] == round(2 / 7000, 7) and ratio["rounds"] == 1 and ratio["says"] == "too few rounds", ratio
PYTHON
# refused_lines LINES REASON
refused_lines() {
  report "$samples$1"
  expect_status 1
  expect "^gdx_measurements: .*$2"
  expect_one_line
}
refused_lines 'value|us|1|c|none|' "'c' was never sampled"
refused_lines 'value|us|1|a|the a' 'use 6 fields'
refused_lines 'sample|1|a|3' "'a' was sampled twice in a round"
refused_lines 'sample|9|c|1\nratio|a|c|a / c|' 'a and c share no round'
refused_lines 'value|us|x|a|the a|' 'sto[a-z]*$'
