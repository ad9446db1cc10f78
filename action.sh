#!/usr/bin/env bash
# action.sh: runs the line of bash GDX_ACTION_COMMAND under `gdx run`, with the options GDX_ACTION_OPTIONS and a seed
# that is drawn, or GDX_ACTION_SEED. Tells how to replay a failure and keeps its captures; action.yml is its form for
# forges.
set -uo pipefail
command=${GDX_ACTION_COMMAND:?is missing: set it to a line for bash}
read -ra options <<<"${GDX_ACTION_OPTIONS:-}"
seed=${GDX_ACTION_SEED:-$((RANDOM << 15 | RANDOM))}
gdx=(gdx)
command -v gdx >/dev/null || gdx=("$(dirname "$0")/run" gdx)
folder=$(mktemp -d "${RUNNER_TEMP:-${TMPDIR:-/tmp}}/gdx-captures-XXXXXX") || exit 1
{
  echo "seed=$seed"
  echo "folder=$folder"
} >>"${GITHUB_OUTPUT:-/dev/null}"

"${gdx[@]}" run "${options[@]}" --seed "$seed" --pcap "$folder/%p.pcap" -- bash -c "$command"
status=$?
if [ $status = 0 ]; then
  rm -rf "$folder"
else
  printf 'gdx: status %s with seed %s; replay: gdx run' "$status" "$seed" >&2
  printf ' %q' "${options[@]}" --seed "$seed" -- bash -c "$command" >&2
  printf '; captures: %s\n' "$folder" >&2
fi
exit $status
