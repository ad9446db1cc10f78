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

}  // namespace

Check whole(std::uint64_t least, std::uint64_t most) {
  return range(least, most, fmt::format("a whole number from {} to {}", least, most));
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
void Command::leave_help_out() const { command_->set_help_flag(); }

App::App(const std::string& what, const std::string& name)
    : Command(nullptr), app_(std::make_unique<CLI::App>(what, name)) {
  command_ = app_.get();
}

App::~App() = default;

void App::add_version(const std::string& version) { app_->set_version_flag("--version", version); }
void App::require_command() { app_->require_subcommand(1); }

std::optional<int> App::parse(std::string_view program, std::vector<std::string> arguments) {
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
    std::string what = error.what();
    const std::vector<std::string> unknown = app_->remaining();
    if (app_->get_require_subcommand_min() > 0 && app_->get_subcommands().empty()) {
      std::vector<std::string> names;
      for (const CLI::App* command : app_->get_subcommands({})) names.push_back(command->get_name());
      what = fmt::format("{}: use {}",
                         unknown.empty() ? "no command" : fmt::format("'{}' is no command", unknown.front()),
                         fmt::join(names, ", "));
    }
    std::string help(program);
    for (const CLI::App* command : app_->get_subcommands()) help += " " + command->get_name();
    print_error("{}: {}; see {} --help\n", program, what, help);
    return kExitUsage;
  }
}

std::optional<int> App::parse(std::string_view program, int argc, char** argv) {
  return parse(program, {argv + 1, argv + argc});
}

}  // namespace gdx::command_line
