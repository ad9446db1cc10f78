#!/usr/bin/env bash
# help_test.sh CASE GDX MAN_PAGE: what gdx says of its commands: help, near words, completion, manual.
. "$(dirname "$0")/../program.sh"
gdx=$2 man_page=$3 gdxd=$4
own=(run info demo bench topo doctor completion)
other=(model calibrate proxy)

# complete_line WORDS...: what bash offers for the last of them, in $out.
complete_line() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _gdx "$1" "${@: -1}" "${@: -2:1}"
  printf '%s\n' "${COMPREPLY[@]}" >"$out"
}

case $case_name in
  help)
    same() {
      "$gdx" $1 >"$folder/wanted" && run 100 "$gdx" $2 && expect_status 0
      cmp "$folder/wanted" "$out" || fail "not as gdx $1"
    }
    same --help help
    for command in "${own[@]}" "${other[@]}"; do same "$command --help" "help $command"; done
    refused "'rest' is no command: use run" "$gdx" help rest
    ;;
  examples)
    # Options in examples stand in the same help.
    for command in "${own[@]}" "${other[@]}"; do
      run 100 "$gdx" help "$command"
      expect_status 0
      lines=$(sed -n '/^Examples:/,$p' "$out" | grep -c "gdx.* $command")
      [ "$lines" -ge 2 ] || fail "$lines examples of $command"
      mapfile -t options < <(sed -n '/^Examples:/,$p' "$out" | sed 's/ -- .*//' | grep -oE -- ' --[a-z-]+' | sort -u)
      for option in "${options[@]}"; do
        sed '/^Examples:/,$d' "$out" | grep -E -- "^ +(-[a-z], *)?${option# }([ ,]|\$)" >/dev/null ||
          fail "no option$option in the help of $command"
      done
    done
    ;;
  near)
    refused "'rnu' is no command: did you mean run; see gdx --help" "$gdx" rnu
    refused "'doctr' is no command: did you mean doctor; see" "$gdx" doctr
    refused "'launch' is no command: use run, info" "$gdx" launch
    refused "'--rank' is no option: did you mean --ranks; see gdx run --help" "$gdx" run --rank 2 -- true
    refused "'true' is no option: use gdx run .OPTIONS. -- PROGRAM; see gdx run --help" "$gdx" run true
    refused "'--josn' is no option: did you mean --json; see gdx topo --help" "$gdx" topo --josn
    refused "'--pth=SYS' is no option: did you mean --path; see gdx model --help" "$gdx" model --pth=SYS
    refused "'--mods=pull,push' is no option: did you mean --modes; see gdx demo --help" "$gdx" demo --mods=pull,push
    refused "'--slot-byte' is no option: did you mean --slot-bytes; see gdx calibrate" "$gdx" calibrate --slot-byte 64
    refused "'--bogus' is no option: leave it out; see gdx demo --help" "$gdx" demo --bogus
    refused "--ranks: '010': use it without the leading zero; see gdx run --help" "$gdx" run --ranks 010 -- true
    refused "'--ranks' is no option before a command: give it after run; see gdx run" "$gdx" --ranks 2 run -- true
    ;;
  refusals)
    # One shape: the program, what it refuses, and after a colon or semicolon what to do.
    while read -ra words; do
      refused '^gdx( [a-z]+)?: [^:]+.*[:;] (use|give|leave|add|choose|did you mean) ' "$gdx" "${words[@]}"
    done <<'COMMANDS'
rnu
info --hca
info --jsn
info extra
topo --xml
doctor --hca x
doctor --hca
run
run true
run --ranks
run --ranks 0 -- true
run --ranks 010 -- true
run --ranks 2 --ranks 3 -- true
run --loss 2 -- true
run --wire x -- true
run --mtu 1 -- true
run --addr 255.255.255.255 -- true
run --addr 127.0.0.9 --ranks 2 -- true
run --hardware --loss 0.1 -- true
run --device-memory-bytes 100 -- true
run --pcap /nonexistent/x -- true
run --pcap / -- true
bench teleport_bw
bench --size 0
bench --size 8:4
bench --modes x
bench --format x
bench --rounds 0
bench --quick --json --csv
demo -- x
demo --modes x
demo --min-bytes 12
demo --min-bytes 64 --max-bytes 8
demo --slots 0
demo --kill-rank 2
calibrate --softhca --max-bytes 5000
calibrate --softhca --path-class SYS
calibrate --softhca --payload gpu
calibrate --softhca --rounds 0
model --path X
model --mode x
model --size-bytes 0
model --queues x
model --doorbell x
model --platform x
model --plot x.gif
model --plot x.svg --size-bytes 8
proxy
proxy --provider
proxy --explain --provider
completion zsh
COMMANDS
    ;;
  complete)
    run 100 "$gdx" completion bash && expect_status 0
    . "$out" || fail "bash does not take it"
    complete -p gdx >"$out" || fail "nothing completes gdx"
    complete_line "$gdx" '' && expect '^run$' && expect '^model$' && expect '^help$' && expect_no '[^a-z]' && expect_no '^gdx$'
    complete_line "$gdx" ca && expect '^calibrate$' && expect_one_line
    complete_line "$gdx" help dem && expect '^demo$' && expect_one_line
    complete_line "$gdx" run --gr && expect '^--grace-s$' && expect_one_line
    complete_line "$gdx" model --size && expect '^--size-bytes$' && expect_one_line
    complete_line "$gdx" run -- tru && expect '^true$'
    complete_line "$gdx" run -- true --ra && expect_no .
    refused "shell: 'tcsh': use bash" "$gdx" completion tcsh
    # Every option of every command.
    for command in "${own[@]}" "${other[@]}"; do
      "$gdx" "$command" --help | sed '/^Examples:/,$d' | grep -oE -- '^ +(-[a-z], *)?--[a-z-]+' | grep -oE -- '--.*' | sort >"$folder/wanted"
      complete_line "$gdx" "$command" --
      [ "$(sort "$out")" = "$(cat "$folder/wanted")" ] || fail "not all options of $command"
    done
    ;;
  manual)
    run 100 "$man_page" "$gdx"
    expect_status 0
    expect '^\.TH GDX 1 "" "gdx [0-9]' && expect '^\.SH "GDX RUN"$'
    cp "$out" "$folder/gdx.1"
    for option in grace-s path-class size-bytes hardware; do
      expect "^  \\\\-\\\\-${option//-/\\\\-}" || fail "no --$option"
    done
    expect_no "^'"
    run 100 "$man_page" "$gdxd"
    expect_status 0
    expect '^\.TH GDXD 8 "" "gdxd [0-9]' && expect '^  \\-\\-quota\\-slots ' && expect_no "^'"
    if command -v man >/dev/null && man -w ls >/dev/null 2>&1; then
      cp "$out" "$folder/gdxd.8"
      MANWIDTH=200 run 100 man --warnings -l "$folder/gdxd.8" && expect_status 0
      expect ' --quota-slots ' && expect_no 'warning'
      MANWIDTH=200 run 100 man --warnings -l "$folder/gdx.1" && expect_status 0
      expect ' --grace-s ' && expect_no 'warning'
    fi
    ;;
  *)
    echo "no such case: $case_name"
    exit 2
    ;;
esac
echo "ok: $case_name"
