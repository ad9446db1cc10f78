#include "host/programs/daemon/configuration.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "base/parse_number.h"
#include "host/bootstrap/frame.h"
#include "host/ipc/daemon.h"
#include "host/programs/daemon/metrics.h"
#include "host/staging/staging_pool.h"

namespace gdx::daemon {
namespace {

constexpr char kUsualFile[] = "/etc/gdx/gdxd.toml";
constexpr char kFileVariable[] = "GDXD_CONFIG";
constexpr std::uint64_t kMostMappings = 65530;  // mappings that Linux permits a process by default
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;
// Below this rate 256 clients of a user would wait longer for their turn than for an answer.
constexpr std::uint64_t kLeastRequestsPerS = 100;
constexpr std::uint64_t kMostRequestsPerS = 1'000'000;

std::string absolute(const std::string& text) {
  return text.starts_with('/') ? std::string{} : fmt::format("'{}': use an absolute path", text);
}

std::string octal_mode(const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("01234567") == std::string::npos;
  if (digits && text.size() <= 4 && std::strtoul(text.c_str(), nullptr, 8) <= 0777) return {};
  return fmt::format("'{}' is no mode of a file: use an octal number as 0660", text);
}

std::string known_group(const std::string& text) {
  if (text.empty() || getgrnam(text.c_str()) != nullptr) return {};
  return fmt::format("this machine has no group '{}': add it, or name another", text);
}

std::string truth(const std::string& text) {
  return text == "true" || text == "false" ? std::string{} : fmt::format("'{}': use true or false", text);
}

std::string metrics_address(const std::string& text) {
  if (text.empty() || parse_metrics_address(text)) return {};
  return fmt::format("'{}': use ADDRESS:PORT, as 127.0.0.1:9464 or [::1]:9464", text);
}

// Returns the key with another separator and prefix: quota.max as --quota-max.
// Returns the members that the group's entry lists. Those whose primary group it is stand elsewhere.
std::set<uid_t> members_of(const std::string& name) {
  std::set<uid_t> users;
  std::vector<std::string> names;
  const group* const found = name.empty() ? nullptr : getgrnam(name.c_str());
  for (char** member = found != nullptr ? found->gr_mem : nullptr; member != nullptr && *member != nullptr;
       ++member)
    names.emplace_back(*member);
  for (const std::string& one : names) {
    if (const passwd* const user = getpwnam(one.c_str())) users.insert(user->pw_uid);
  }
  return users;
}

std::string name_of(const std::string& key, std::string_view prefix, char separator) {
  std::string name(prefix);
  for (const char letter : key) {
    const bool mark = letter == '.' || letter == '_';
    const bool upper = separator == '_' && letter >= 'a' && letter <= 'z';
    name += mark ? separator : upper ? static_cast<char>(letter - 'a' + 'A') : letter;
  }
  return name;
}

std::string quoted(const std::string& text) {
  std::ostringstream stream;
  stream << toml::value<std::string>(text);
  return stream.str();
}

}  // namespace

Configuration::Configuration() {
  using command_line::whole;
  server_.path = ipc::default_socket_path();
  Limits& limits = server_.limits;
  GroupLimits& quota = limits.group;
  settings_ = {
      {"socket", &server_.path, "Absolute path of its socket", absolute},
      {"mode", &mode_, "Rights of the socket, octal: who may connect", octal_mode},
      {"group", &group_, "Group of the socket", known_group},
      {"monitor_group", &monitor_group_, "Group whose listed members see all users' figures", known_group},
      {"hardware", &hardware_, "Never the software HCA", truth},
      {"metrics", &metrics_, "ADDRESS:PORT at which Prometheus finds its metrics", metrics_address},
      {"users", &limits.max_groups, "Users that it serves at once", whole(1, kMostMappings)},
      {"clients", &limits.max_clients, "Programs that it serves at once", whole(1, kMostMappings)},
      {"pools", &limits.pools_per_hca, "Even parts of a NIC's memory, for a staging pool each",
       whole(1, kMaxProcessesPerHca)},
      {"quota.clients", &quota.max_clients, "Programs of a user", whole(1, kMostMappings)},
      {"quota.endpoints", &quota.max_endpoints, "Endpoints of a user", whole(1, kMostMappings / 2)},
      {"quota.regions", &quota.max_regions, "Registered regions of a user", whole(1, kMostMappings)},
      {"quota.registered_bytes", &quota.max_registered_bytes, "Registered bytes of a user",
       whole(1, kMostBytes)},
      {"quota.pools", &quota.max_pools, "Staging pools of a user", whole(1, kMaxProcessesPerHca)},
      {"quota.nic_pools", &quota.max_nic_pools,
       "Of a NIC's parts, how many a user has: one for each kind of rules", whole(1, kMaxProcessesPerHca)},
      {"quota.slots", &quota.max_slots, "Slots of a staging pool", whole(1, 1u << 20)},
      {"quota.requests_per_s", &quota.max_requests_per_s, "Requests of a user; more of them wait",
       whole(kLeastRequestsPerS, kMostRequestsPerS)},
  };
}

std::string Configuration::text_of(const Setting& setting) {
  return std::visit([](const auto* value) { return fmt::format("{}", *value); }, setting.value);
}

void Configuration::add_options(const command_line::Command& app) {
  file_ = app.add_option("--config", fmt::format("Configuration file ({}, if it is there)", kUsualFile))
              .check(command_line::not_empty("use the path of a file"));
  for (Setting& setting : settings_) {
    const std::string name = name_of(setting.key, "--", '-');
    const bool flag = std::holds_alternative<bool*>(setting.value);
    const std::string value = text_of(setting);
    const std::string what =
        value.empty() || flag ? setting.what : fmt::format("{} ({})", setting.what, value);
    setting.flag = flag ? app.add_flag(name, what) : app.add_option(name, what);
    setting.flag->check(setting.check);
  }
}

Result<void> Configuration::store(Setting& setting, const std::string& text, const std::string& source) {
  if (const std::string fault = setting.check(text); !fault.empty())
    return fail(Status::kInvalidArgument, fault);
  setting.source = source;
  const auto number = parse_unsigned(text).value_or(0);
  if (auto* const to_text = std::get_if<std::string*>(&setting.value)) **to_text = text;
  if (auto* const to_flag = std::get_if<bool*>(&setting.value)) **to_flag = text == "true";
  if (auto* const to_long = std::get_if<std::uint64_t*>(&setting.value)) **to_long = number;
  if (auto* const to_word = std::get_if<std::uint32_t*>(&setting.value))
    **to_word = static_cast<std::uint32_t>(number);
  return {};
}

template <typename Table>
Result<void> Configuration::read_table(const Table& table, const Place& place) {
  for (const auto& [name, node] : table) {
    const std::string key = place.key + std::string(name.str());
    if (const auto* const inner = node.as_table(); inner != nullptr && place.key.empty() && key == "quota") {
      GDX_TRY(read_table(*inner, {place.path, key + "."}));
      continue;
    }
    const std::string source = fmt::format("{}:{}", place.path, name.source().begin.line);
    const auto refuse = [&](std::string_view reason) {
      return fail(Status::kInvalidArgument, fmt::format("{}: {}: {}", source, key, reason));
    };
    const auto setting = std::ranges::find(settings_, key, &Setting::key);
    if (setting == settings_.end())
      return refuse("no such key: leave it out, or use one that gdxd --print-config shows");
    std::optional<std::string> text;
    const bool wants_text = std::holds_alternative<std::string*>(setting->value);
    const bool wants_flag = std::holds_alternative<bool*>(setting->value);
    if (wants_text && node.is_string()) text = node.as_string()->get();
    if (wants_flag && node.is_boolean()) text = node.as_boolean()->get() ? "true" : "false";
    if (!wants_text && !wants_flag && node.is_integer()) text = fmt::to_string(node.as_integer()->get());
    if (!text)
      return refuse(wants_text   ? "use a text in quotes"
                    : wants_flag ? "use true or false"
                                 : "use a whole number");
    const auto stored = store(*setting, *text, source);
    if (!stored) return refuse(stored.error().message);
  }
  return {};
}

Result<void> Configuration::read_file(const std::string& path, bool required) {
  std::ifstream file(path);
  if (!file && !required && errno == ENOENT) return {};
  if (file) file.peek();
  if (!file.is_open() || file.bad())
    return fail(Status::kInvalidArgument, fmt::format("cannot read the configuration {}: {}; name another",
                                                      path, std::strerror(errno)));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    return read_table(toml::parse(text), {path, {}});
  } catch (const toml::parse_error& error) {
    return fail(Status::kInvalidArgument,
                fmt::format("{}:{}: {}", path, error.source().begin.line, error.description()));
  }
}

// A misspelt limit would leave the default in force.
Result<void> Configuration::refuse_unknown_variables() const {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    const auto names_it = [&](const Setting& setting) { return name_of(setting.key, "GDXD_", '_') == name; };
    if (!name.starts_with("GDXD_") || name == kFileVariable || name == kOnSoftwareVariable ||
        std::ranges::any_of(settings_, names_it))
      continue;
    return fail(
        Status::kInvalidArgument,
        fmt::format("{}: no such variable: unset it, or use a key that gdxd --print-config shows", name));
  }
  return {};
}

Result<void> Configuration::read() {
  const char* const variable = std::getenv(kFileVariable);
  const std::string path = file_->given()        ? file_->values().back()
                           : variable != nullptr ? variable
                                                 : kUsualFile;
  GDX_TRY(read_file(path, file_->given() || variable != nullptr));
  for (Setting& setting : settings_) {
    const std::string name = name_of(setting.key, "GDXD_", '_');
    if (const char* const text = std::getenv(name.c_str())) {
      const auto stored = store(setting, text, name);
      if (!stored) return fail(Status::kInvalidArgument, fmt::format("{}: {}", name, stored.error().message));
    }
    if (setting.flag->given()) GDX_TRY(store(setting, setting.flag->values().back(), setting.flag->name()));
  }
  GDX_TRY(refuse_unknown_variables());
  const Limits& limits = server_.limits;
  if (limits.group.max_nic_pools > limits.pools_per_hca) {
    const auto source = [&](const char* key) {
      return std::ranges::find(settings_, key, &Setting::key)->source;
    };
    return fail(
        Status::kInvalidArgument,
        fmt::format(
            "quota.nic_pools {} ({}) is more than the {} parts of pools ({}): lower it or raise pools",
            limits.group.max_nic_pools, source("quota.nic_pools"), limits.pools_per_hca, source("pools")));
  }
  server_.mode = static_cast<std::uint32_t>(std::strtoul(mode_.c_str(), nullptr, 8));
  if (const group* const found = group_.empty() ? nullptr : getgrnam(group_.c_str()))
    server_.group = found->gr_gid;
  server_.monitors = members_of(monitor_group_);
  return {};
}

std::string Configuration::text() const {
  std::string all;
  std::string table;
  for (const Setting& setting : settings_) {
    std::string name = setting.key;
    if (const auto dot = name.find('.'); dot != std::string::npos) {
      if (table != name.substr(0, dot)) all += fmt::format("\n[{}]\n", name.substr(0, dot));
      table = name.substr(0, dot);
      name.erase(0, dot + 1);
    }
    const bool is_text = std::holds_alternative<std::string*>(setting.value);
    const std::string value = text_of(setting);
    const auto source = bootstrap::decode_text(std::as_bytes(std::span(setting.source)));
    all += fmt::format("{} = {}  # {}\n", name, is_text ? quoted(value) : value, source);
  }
  return all;
}

}  // namespace gdx::daemon
