// Values of environment variables: one of a few words, or a number.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/parse_number.h"
#include "base/result.h"

namespace gdx {

// Returns the choice whose word `variable` holds; the first if it is not set. Errors: kInvalidArgument, with
// all words.
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

// Returns the number that `variable` holds; nullopt if it is not set. Errors: kInvalidArgument, with the
// range.
[[nodiscard]] inline Result<std::optional<std::uint64_t>> number_from_environment(const char* variable,
                                                                                  std::uint64_t least,
                                                                                  std::uint64_t most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::optional<std::uint64_t>{};
  const auto value = parse_unsigned(text);
  if (value && *value >= least && *value <= most) return value;
  return fail(Status::kInvalidArgument,
              fmt::format("{} = '{}': use a number from {} to {}", variable, text, least, most));
}

}  // namespace gdx
