#include "base/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "base/output.h"

namespace gdx::command_line {
namespace {

constexpr char kHelpCommand[] = "help";

template <typename T>
Check range(T least, T most, std::string wanted) {
  return [=](const std::string& text) {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    const bool inside = error == std::errc{} && stopped == end && value >= least && value <= most;
    return inside ? std::string{} : fmt::format("'{}': use {}", text, wanted);
  };
}

// Returns how many letters must be changed, added, left out or swapped to make one word of the other.
std::size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<std::vector<std::size_t>> rows(from.size() + 1, std::vector<std::size_t>(to.size() + 1));
  for (std::size_t i = 0; i <= from.size(); ++i) {
    for (std::size_t j = 0; j <= to.size(); ++j) {
      std::size_t& least = rows[i][j];
      least = i + j;
      if (i == 0 || j == 0) continue;
      const bool same = from[i - 1] == to[j - 1];
      least = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) least = std::min(least, rows[i - 2][j - 2] + 1);
    }
  }
  return rows.back().back();
}

// Returns "did you mean WORD" for the nearest of `words`, or `otherwise` if none is near.
std::string suggest(const std::string& wrong, const std::vector<std::string>& words,
                    const std::string& otherwise) {
  const auto distance = [&](const std::string& word) { return edit_distance(wrong, word); };
  const auto nearest = std::ranges::min_element(words, {}, distance);
  const bool near = nearest != words.end() && distance(*nearest) <= 1 + nearest->size() / 5;
  return near ? fmt::format("did you mean {}", *nearest) : otherwise;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// Returns the words that mean `COMMAND --help` where they are `help COMMAND`. An unknown command is left
// alone.
std::vector<std::string> without_help_command(const CLI::App& app, std::vector<std::string> words) {
  if (app.get_require_subcommand_min() == 0 || words.empty() || words.front() != kHelpCommand) return words;
  words.erase(words.begin());
  const auto names = command_names(app);
  if (words.empty() || std::ranges::count(names, words.front()) != 0) words.emplace_back("--help");
  return words;
}

// Returns the fault of an option that is known, with the remedy where CLI11 names none.
std::string fault_in_use(const CLI::ParseError& error) {
  std::string what = error.what();
  const std::string option = what.substr(0, what.find(':'));
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::RequiresError: return what + ": give both";
    case CLI::ExitCodes::ExcludesError: return what + ": leave one of them out";
    case CLI::ExitCodes::ArgumentMismatch:
      if (what.ends_with("missing")) return option + ": has no value; give one";
      return option + ": has too many values; leave some out";
    case CLI::ExitCodes::ConversionError: return what + ": give it another value, or none";
    default: return what;
  }
}

// Returns the fault that CLI11 found, in the words of this program.
std::string fault_of(CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  const auto chosen = app.get_subcommands();
  if (app.get_require_subcommand_min() > 0 && chosen.empty()) {
    const auto names = command_names(app);
    const std::string use = fmt::format("use {}", fmt::join(names, ", "));
    if (unknown.empty()) return "no command: " + use;
    return fmt::format("'{}' is no command: {}", unknown.front(), suggest(unknown.front(), names, use));
  }
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return fault_in_use(error);
  if (!chosen.empty() && !app.remaining().empty())
    return fmt::format("'{}' is no option before a command: give it after {}", unknown.front(),
                       chosen.front()->get_name());
  return Command(chosen.empty() ? &app : chosen.back()).fault_of_unknown(unknown.front(), "leave it out");
}

}  // namespace

Check whole(std::uint64_t least, std::uint64_t most) {
  const Check in_range = range(least, most, fmt::format("a whole number from {} to {}", least, most));
  return [in_range](const std::string& text) {
    const std::string fault = in_range(text);
    // CLI11 takes it for octal.
    const bool leading_zero = fault.empty() && text.size() > 1 && text.front() == '0';
    return leading_zero ? fmt::format("'{}': use it without the leading zero", text) : fault;
  };
}

Check real(double least, double most) {
  return range(least, most, fmt::format("a number from {} to {}", least, most));
}

Check one_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) {
    if (std::ranges::count(words, text) != 0) return std::string{};
    return fmt::format("'{}': use {}", text, fmt::join(words, ", "));
  };
}

Check not_empty(std::string wanted) {
  return [wanted = std::move(wanted)](const std::string& text) {
    return text.empty() ? fmt::format("'': use {}", wanted) : std::string{};
  };
}

Option Option::check(Check check) const {
  option_->check(
      CLI::Validator([check = std::move(check)](const std::string& text) { return check(text); }, ""));
  return *this;
}

Option Option::list(char delimiter, std::optional<int> most) const {
  option_->delimiter(delimiter);
  if (most) option_->expected(1, *most);
  return *this;
}

Option Option::needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

bool Option::given() const { return option_->count() != 0; }
bool Option::is_flag() const { return option_->get_items_expected_max() == 0; }
std::string Option::name() const { return option_->get_name(); }
std::vector<std::string> Option::values() const { return option_->results(); }

template <typename T>
Option Command::add_option(const std::string& name, T& value, const std::string& what) const {
  return Option(command_->add_option(name, value, what));
}

template Option Command::add_option(const std::string&, std::string&, const std::string&) const;
template Option Command::add_option(const std::string&, double&, const std::string&) const;
template Option Command::add_option(const std::string&, std::uint8_t&, const std::string&) const;
template Option Command::add_option(const std::string&, int&, const std::string&) const;
template Option Command::add_option(const std::string&, std::uint32_t&, const std::string&) const;
template Option Command::add_option(const std::string&, std::uint64_t&, const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<std::string>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<double>&, const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<std::uint32_t>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::optional<std::uint64_t>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&) const;
template Option Command::add_option(const std::string&, std::vector<std::uint64_t>&,
                                    const std::string&) const;

Option Command::add_option(const std::string& name, const std::string& what) const {
  return Option(command_->add_option(name, what));
}

Option Command::add_flag(const std::string& name, bool& value, const std::string& what) const {
  return Option(command_->add_flag(name, value, what));
}

Option Command::add_flag(const std::string& name, const std::string& what) const {
  return Option(command_->add_flag(name, what));
}

Command Command::add_command(const std::string& name, const std::string& what) const {
  return Command(command_->add_subcommand(name, what));
}

void Command::when_chosen(std::function<void()> action) const { command_->callback(std::move(action)); }
void Command::keep_unknown() const { command_->allow_extras(); }
std::vector<std::string> Command::unknown() const { return command_->remaining(); }

std::string Command::fault_of_unknown(const std::string& word, const std::string& advice) const {
  std::vector<std::string> names;
  for (const CLI::Option* option : command_->get_options()) names.push_back(option->get_name());
  return fmt::format("'{}' is no option: {}", word, suggest(word.substr(0, word.find('=')), names, advice));
}

void Command::show_examples(const std::vector<std::string>& lines) const {
  command_->footer(fmt::format("Examples:\n  {}", fmt::join(lines, "\n  ")));
}

void Command::leave_help_out() const { command_->set_help_flag(); }

App::App(const std::string& what, const std::string& name)
    : Command(nullptr), app_(std::make_unique<CLI::App>(what, name)) {
  command_ = app_.get();
}

App::~App() = default;

void App::add_version(const std::string& version) { app_->set_version_flag("--version", version); }

void App::require_command() {
  app_->require_subcommand(1);
  app_->add_subcommand(kHelpCommand, "Print what a command does and takes, as its --help: help COMMAND");
}

std::optional<int> App::parse(std::string_view program, std::vector<std::string> arguments) {
  arguments = without_help_command(*app_, std::move(arguments));
  // Reversed, because CLI11 takes arguments from the back.
  std::reverse(arguments.begin(), arguments.end());
  try {
    app_->parse(std::move(arguments));
    return std::nullopt;
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    const int status = app_->exit(asked, text, text);
    write_output(text.str());
    return status;
  } catch (const CLI::ParseError& error) {
    std::string help(program);
    for (const CLI::App* command : app_->get_subcommands()) help += " " + command->get_name();
    print_error("{}: {}; see {} --help\n", program, fault_of(*app_, error), help);
    return kExitUsage;
  }
}

std::optional<int> App::parse(std::string_view program, int argc, char** argv) {
  return parse(program, {argv + 1, argv + argc});
}

}  // namespace gdx::command_line
