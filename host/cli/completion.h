// The completion of bash, which asks the programs' own --help for words.
#pragma once

#include <string_view>

namespace gdx {

inline constexpr std::string_view kBashCompletion =
    R"bash(# Completion of gdx for bash: words come from gdx help, and file names where it has none.
_gdx() {
  local gdx=${1/#\~/$HOME} word=${COMP_WORDS[COMP_CWORD]} words i
  COMPREPLY=()
  for ((i = 2; i < COMP_CWORD; i++)); do
    [ "${COMP_WORDS[i]}" = -- ] || continue
    ((i + 1 == COMP_CWORD)) && mapfile -t COMPREPLY < <(compgen -c -- "$word")
    return 0
  done
  if ((COMP_CWORD == 1)) || { ((COMP_CWORD == 2)) && [ "${COMP_WORDS[1]}" = help ]; }; then
    words=$("$gdx" help | sed -nE 's/^  ([a-z]+) .*/\1/p')
  else
    words=$("$gdx" help "${COMP_WORDS[1]}" 2>/dev/null | sed -nE 's/^ +(-[a-z], *)?(--[a-z-]+).*/\2/p')
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _gdx gdx
)bash";

}  // namespace gdx
