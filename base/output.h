// What programs print. A stream that fails throws nothing; what stdout lost shows in the exit status.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace gdx {

// To stdout, which keeps it until a buffer is full or the program ends.
void write_output(std::string_view text);
// To stderr, at once. What it refuses is lost: there is no other place to tell it.
void write_error(std::string_view text);

template <typename... T>
void print(fmt::format_string<T...> format, T&&... values) {
  write_output(fmt::format(format, std::forward<T>(values)...));
}

template <typename... T>
void print_error(fmt::format_string<T...> format, T&&... values) {
  write_error(fmt::format(format, std::forward<T>(values)...));
}

// Rows that come slowly are seen when they come.
void flush_output();

// Runs the body of main() and returns the process's exit status: that of the body, or 1 where it was 0 and
// stdout lost something. An exception becomes status 1. Both print one line that begins with `program`.
// Closed descriptors 0 to 2 are taken by ones that fail, so that no file of the program gets such a number;
// programs that it executes find them closed.
[[nodiscard]] int run_program(std::string_view program, const std::function<int()>& body);

}  // namespace gdx
