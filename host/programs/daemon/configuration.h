// Configuration of gdxd. A value comes from its flag, else its environment variable, else the file, else it
// is the default. One key names the flag and the variable as well:
//
//   quota.registered_bytes   --quota-registered-bytes   GDXD_QUOTA_REGISTERED_BYTES
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/command_line.h"
#include "base/result.h"
#include "host/programs/daemon/server.h"

namespace gdx::daemon {

// Set for the second start, under the software HCA.
inline constexpr char kOnSoftwareVariable[] = "GDXD_ON_SOFTWARE_HCA";

class Configuration {
 public:
  Configuration();
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

  void add_options(const command_line::Command& app);
  // Reads all sources, once the flags are parsed. Errors: kInvalidArgument with source, line and reason.
  [[nodiscard]] Result<void> read();
  // Returns the values as TOML, each with its source as a comment.
  [[nodiscard]] std::string text() const;

  [[nodiscard]] const ServerOptions& server() const { return server_; }
  [[nodiscard]] const std::string& metrics() const { return metrics_; }  // ADDRESS:PORT; empty: none
  [[nodiscard]] bool hardware() const { return hardware_; }              // gdxd never uses the software HCA

 private:
  struct Setting {
    std::string key;
    std::variant<std::string*, std::uint32_t*, std::uint64_t*, bool*> value;
    std::string what;
    command_line::Check check;
    std::string source = "default";
    std::optional<command_line::Option> flag = std::nullopt;
  };
  struct Place {
    std::string path;  // path of the file
    std::string key;   // name of a table in the file, with its dot; or empty
  };
  [[nodiscard]] static std::string text_of(const Setting& setting);
  static Result<void> store(Setting& setting, const std::string& text, const std::string& source);
  [[nodiscard]] Result<void> refuse_unknown_variables() const;
  Result<void> read_file(const std::string& path, bool required);
  template <typename Table>
  Result<void> read_table(const Table& table, const Place& place);

  ServerOptions server_;
  std::string mode_ = "0600";
  std::string group_;
  std::string monitor_group_;
  std::string metrics_;
  bool hardware_ = false;
  std::optional<command_line::Option> file_;
  std::vector<Setting> settings_;
};

}  // namespace gdx::daemon
