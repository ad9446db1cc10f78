// The completion for bash: it takes its words from --help when it runs.
#pragma once

#include <string_view>

namespace gdx {

inline constexpr std::string_view kBashCompletion =
    R"bash(# Completion of gdx for bash: words of gdx help, or else names of files.
_gdx() {
  local gdx=${1/#\~/$HOME} word=${COMP_WORDS[COMP_CWORD]} words i
  COMPREPLY=()
  for ((i = 2; i < COMP_CWORD; i++)); do
    [ "${COMP_WORDS[i]}" = -- ] || continue
    ((i + 1 == COMP_CWORD)) && mapfile -t COMPREPLY < <(compgen -c -- "$word")
    return 0
  done
  if ((COMP_CWORD == 1)) || { ((COMP_CWORD == 2)) && [ "${COMP_WORDS[1]}" = help ]; }; then
    words=$("$gdx" help 2>/dev/null | sed -nE '/^Examples:/q; s/^  ([a-z]+) .*/\1/p')
  else
    words=$("$gdx" help "${COMP_WORDS[1]}" 2>/dev/null | sed -nE 's/^ +(-[a-z], *)?(--[a-z-]+).*/\2/p')
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _gdx gdx
)bash";

}  // namespace gdx
