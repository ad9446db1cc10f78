// What the command lines of all programs share: values are checked as text, before anything is converted, and
// a line that cannot be served ends the process with status 2 and one line: what, of which option, what next.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gdx::command_line {

inline constexpr int kExitUsage = 2;

namespace impl {

template <typename T>
CLI::Validator range(T least, T most, std::string wanted) {
  return {[=](const std::string& text) {
            T value{};
            const char* const end = text.data() + text.size();
            const auto [stopped, error] = std::from_chars(text.data(), end, value);
            const bool inside = error == std::errc{} && stopped == end && value >= least && value <= most;
            return inside ? std::string{} : fmt::format("'{}': use {}", text, wanted);
          },
          ""};
}

}  // namespace impl

// The value is a decimal number without sign, from `least` to `most`.
inline CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
  return impl::range(least, most, fmt::format("a whole number from {} to {}", least, most));
}

// The value is a number from `least` to `most`; NaN is none.
inline CLI::Validator real(double least, double most) {
  return impl::range(least, most, fmt::format("a number from {} to {}", least, most));
}

inline CLI::Validator one_of(std::vector<std::string> words) {
  return {[words = std::move(words)](const std::string& text) {
            if (std::ranges::count(words, text) != 0) return std::string{};
            return fmt::format("'{}': use {}", text, fmt::join(words, ", "));
          },
          ""};
}

inline CLI::Validator not_empty(std::string wanted) {
  return {[wanted = std::move(wanted)](const std::string& text) {
            return text.empty() ? fmt::format("'': use {}", wanted) : std::string{};
          },
          ""};
}

// Parses `arguments` into `app`. Returns the status with which the process ends now: 0 after --help and
// --version, kExitUsage after the one line on stderr; nothing where the program goes on.
inline std::optional<int> parse(CLI::App& app, std::string_view program, std::vector<std::string> arguments) {
  // CLI11 takes arguments from the back.
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(std::move(arguments));
    return std::nullopt;
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    std::string what = error.what();
    const std::vector<std::string> unknown = app.remaining();
    if (app.get_require_subcommand_min() > 0 && app.get_subcommands().empty()) {
      std::vector<std::string> names;
      for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
      what = fmt::format("{}: use {}",
                         unknown.empty() ? "no command" : fmt::format("'{}' is no command", unknown.front()),
                         fmt::join(names, ", "));
    }
    std::string help(program);
    for (const CLI::App* command : app.get_subcommands()) help += " " + command->get_name();
    fmt::print(stderr, "{}: {}; see {} --help\n", program, what, help);
    return kExitUsage;
  }
}

inline std::optional<int> parse(CLI::App& app, std::string_view program, int argc, char** argv) {
  return parse(app, program, {argv + 1, argv + argc});
}

}  // namespace gdx::command_line
