// What the command lines of all programs share: values are checked as text, before anything is converted, and
// a line that cannot be served ends the process with status 2 and one line: what, of which option, what next.
// CLI11 stays behind this: whoever includes it spends seconds of compiling on it.
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

// What is wrong with a value's text; nothing where it will do.
using Check = std::function<std::string(const std::string& text)>;

// The value is a decimal number without sign, from `least` to `most`.
[[nodiscard]] Check whole(std::uint64_t least, std::uint64_t most);
// The value is a number from `least` to `most`; NaN is none.
[[nodiscard]] Check real(double least, double most);
[[nodiscard]] Check one_of(std::vector<std::string> words);
[[nodiscard]] Check not_empty(std::string wanted);

// An option or a flag of a command, which must outlive it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option check(Check check) const;
  // One text holds a list. `most`: so many values; needed where no variable says that it is a list.
  Option list(char delimiter, std::optional<int> most = std::nullopt) const;
  Option needs(Option other) const;
  Option excludes(Option other) const;

  // What the command line said of it.
  [[nodiscard]] bool given() const;
  [[nodiscard]] bool is_flag() const;
  [[nodiscard]] std::string name() const;  // with its dashes
  [[nodiscard]] std::vector<std::string> values() const;

 private:
  CLI::Option* option_;
};

// A command of a program, or the program itself. A copy is the same command; the App must outlive it, and so
// must variables that options are kept in.
class Command {
 public:
  explicit Command(CLI::App* command) : command_(command) {}

  // T: std::string, double, a whole number; an optional of these; a vector, for a list.
  template <typename T>
  Option add_option(const std::string& name, T& value, const std::string& what) const;
  Option add_option(const std::string& name, const std::string& what) const;
  Option add_flag(const std::string& name, bool& value, const std::string& what) const;
  Option add_flag(const std::string& name, const std::string& what) const;
  [[nodiscard]] Command add_command(const std::string& name, const std::string& what) const;

  // Called by parse() where this command was chosen.
  void when_chosen(std::function<void()> action) const;
  // What it does not know it keeps, for another program.
  void keep_unknown() const;
  [[nodiscard]] std::vector<std::string> unknown() const;
  // --help is no option of it, but unknown.
  void leave_help_out() const;

 private:
  friend class App;
  CLI::App* command_;
};

class App : public Command {
 public:
  // `name`: what --help calls the program; where it is empty, as it was started.
  explicit App(const std::string& what, const std::string& name = {});
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  void add_version(const std::string& version);
  // One of the commands must be chosen.
  void require_command();

  // Parses `arguments`. Returns the status with which the process ends now: 0 after --help and --version,
  // kExitUsage after the one line on stderr; nothing where the program goes on.
  [[nodiscard]] std::optional<int> parse(std::string_view program, std::vector<std::string> arguments);
  [[nodiscard]] std::optional<int> parse(std::string_view program, int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace gdx::command_line
