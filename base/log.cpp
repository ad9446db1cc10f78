#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace gdx::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarn: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

struct Threshold {
  std::string_view word;
  spdlog::level::level_enum level;
};
constexpr std::array<Threshold, 5> kThresholds{{{"debug", spdlog::level::debug},
                                                {"info", spdlog::level::info},
                                                {"warn", spdlog::level::warn},
                                                {"error", spdlog::level::err},
                                                {"off", spdlog::level::off}}};

// Ignores an unknown level, so that a wrong word silences nothing.
void choose_level(spdlog::logger& made) {
  made.set_level(spdlog::level::warn);
  const char* const wanted = std::getenv("GDX_LOG");
  if (wanted == nullptr || *wanted == '\0') return;
  const auto* const found = std::ranges::find(kThresholds, wanted, &Threshold::word);
  if (found != kThresholds.end()) return made.set_level(found->level);
  made.log(spdlog::level::warn, "GDX_LOG={}: use debug, info, warn, error or off; now it is warn", wanted);
}

// Never destroyed, because the software HCA logs while the process runs its exit handlers.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("gdx", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("gdx[%P] %l: %v");
    choose_level(*made);
    return made;
  }();
  return *instance;
}

}  // namespace

bool enabled(Level level) { return logger().should_log(to_spdlog(level)); }

void write(Level level, std::string_view line) {
  logger().log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace gdx::log
