// Common code of the command lines of all programs. Values are checked as text, before any conversion. An
// impossible line ends the process with status 2 and one line: the fault, the option, the remedy. CLI11 is
// hidden behind this header, because including it costs seconds of compiling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gdx::command_line {

inline constexpr int kExitUsage = 2;

// Returns the fault of a value's text; empty if there is none.
using Check = std::function<std::string(const std::string& text)>;

// Requires a decimal number without sign or leading zero, from `least` to `most`.
[[nodiscard]] Check whole(std::uint64_t least, std::uint64_t most);
// Requires a number from `least` to `most`; refuses NaN.
[[nodiscard]] Check real(double least, double most);
[[nodiscard]] Check one_of(std::vector<std::string> words);
[[nodiscard]] Check not_empty(std::string wanted);

// An option or a flag of a command, which must outlive it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option check(Check check) const;
  // Makes one text hold a list. `most`: the number of values; needed if no variable's type is a list.
  Option list(char delimiter, std::optional<int> most = std::nullopt) const;
  Option needs(Option other) const;
  Option excludes(Option other) const;

  // Returns whether the command line gave the option.
  [[nodiscard]] bool given() const;
  [[nodiscard]] bool is_flag() const;
  [[nodiscard]] std::string name() const;  // with its dashes
  [[nodiscard]] std::vector<std::string> values() const;

 private:
  CLI::Option* option_;
};

// A command of a program, or the program itself. Copies are one command. The App must outlive it, and so must
// variables that hold its options.
class Command {
 public:
  explicit Command(CLI::App* command) : command_(command) {}

  // T: std::string, double, a whole number; an optional of one; a vector, for a list.
  template <typename T>
  Option add_option(const std::string& name, T& value, const std::string& what) const;
  Option add_option(const std::string& name, const std::string& what) const;
  Option add_flag(const std::string& name, bool& value, const std::string& what) const;
  Option add_flag(const std::string& name, const std::string& what) const;
  [[nodiscard]] Command add_command(const std::string& name, const std::string& what) const;

  // Sets the action that parse() runs if this command was chosen.
  void when_chosen(std::function<void()> action) const;
  // Keeps unknown options, for another program.
  void keep_unknown() const;
  [[nodiscard]] std::vector<std::string> unknown() const;
  // Returns the fault of an unknown word: it is no option, with the nearest one, or else `advice`.
  [[nodiscard]] std::string fault_of_unknown(const std::string& word, const std::string& advice) const;
  // Removes --help from its options, so it is unknown.
  void leave_help_out() const;
  // Shows command lines at the end of --help.
  void show_examples(const std::vector<std::string>& lines) const;

 private:
  friend class App;
  CLI::App* command_;
};

class App : public Command {
 public:
  // `name`: the program's name in --help; if empty, the name under which it was started.
  explicit App(const std::string& what, const std::string& name = {});
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  void add_version(const std::string& version);
  // Requires that one of the commands is chosen. `help COMMAND` is then one of them: `COMMAND --help`.
  void require_command();

  // Parses `arguments`. Returns the status with which the process must end now: 0 after --help and --version,
  // kExitUsage after the one line on stderr. nullopt: the program continues.
  [[nodiscard]] std::optional<int> parse(std::string_view program, std::vector<std::string> arguments);
  [[nodiscard]] std::optional<int> parse(std::string_view program, int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace gdx::command_line
