// What a variable of the environment chooses among a few words.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace gdx {

// The choice whose word `variable` holds; where it is not set, the first. Errors: kInvalidArgument, with all
// words.
template <typename Choice>
[[nodiscard]] Result<Choice> choice_from_environment(
    const char* variable, std::initializer_list<std::pair<std::string_view, Choice>> words) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return words.begin()->second;
  std::string known;
  std::size_t left = words.size();
  for (const auto& [word, choice] : words) {
    if (text == word) return choice;
    --left;
    known += fmt::format("{}{}", word, left == 0 ? "" : left == 1 ? " or " : ", ");
  }
  return fail(Status::kInvalidArgument, fmt::format("{} is '{}': use {}", variable, text, known));
}

}  // namespace gdx
