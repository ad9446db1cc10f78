// Output of programs. A stream that fails throws nothing; lost output of stdout shows in the exit status.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace gdx {

// Writes to stdout, which buffers until its buffer is full or the program ends.
void write_output(std::string_view text);
// Writes to stderr, at once. Refused output is lost, because there is no other place to report it.
void write_error(std::string_view text);

template <typename... T>
void print(fmt::format_string<T...> format, T&&... values) {
  write_output(fmt::format(format, std::forward<T>(values)...));
}

template <typename... T>
void print_error(fmt::format_string<T...> format, T&&... values) {
  write_error(fmt::format(format, std::forward<T>(values)...));
}

// One line on stderr that overwrites itself, if stderr is a terminal; otherwise nothing. The end removes it.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  template <typename... T>
  void show(fmt::format_string<T...> format, T&&... values) const {
    if (terminal_) write_error("\r\x1b[K" + fmt::format(format, std::forward<T>(values)...));
  }

 private:
  bool terminal_;
};

// Rows that come slowly are seen when they come. Returns whether stdout has lost nothing so far.
bool flush_output();

// Runs the body of main() and returns the process's exit status: the body's, or 1 if that is 0 and stdout
// lost output. An exception becomes status 1. Both print one line that begins with `program`. Opens failing
// descriptors in place of closed ones from 0 to 2, because files would get their numbers otherwise. Executed
// programs find them closed.
[[nodiscard]] int run_program(std::string_view program, const std::function<int()>& body);

}  // namespace gdx
