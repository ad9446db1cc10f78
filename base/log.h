// The one logger: lines on stderr, level from GDX_LOG (debug, info, warn, error, off; default warn).
// Thread-safe. fmt formats; spdlog writes, and only log.cpp includes it.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace gdx::log {

enum class Level { kDebug, kInfo, kWarn, kError };

[[nodiscard]] bool enabled(Level level);
void write(Level level, std::string_view line);

template <typename... Args>
void line(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  line(Level::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  line(Level::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  line(Level::kWarn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  line(Level::kError, format, std::forward<Args>(args)...);
}

}  // namespace gdx::log
