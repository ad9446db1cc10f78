// The one logger: lines on stderr, level from GDX_LOG (debug, info, warn, error, off; default warn). A stderr
// that nobody reads costs lines, which are counted, and 0.1 s at most. Thread-safe. fmt formats; only log.cpp
// includes spdlog.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace gdx::log {

enum class Level { kDebug, kInfo, kWarn, kError };

[[nodiscard]] bool enabled(Level level);
void write(Level level, std::string_view line);
// Leaves a line out for which there is no memory: handlers of that failure log, too.
void write(Level level, fmt::string_view format, fmt::format_args args) noexcept;

template <typename... Args>
void line(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, format, fmt::make_format_args(args...));
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

// Limit on lines. Not thread-safe.
class LineRate {
 public:
  explicit LineRate(std::uint32_t per_s) : per_s_(per_s) {}
  // Returns the count of lines left out since the last that was not; nullopt: this one is left out, too.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t now_ns);

 private:
  std::uint32_t per_s_;
  std::uint64_t second_ns_ = 0;  // begin of the second of the next two
  std::uint32_t lines_ = 0;
  std::uint64_t left_out_ = 0;
};

// Takes one of the lines that others may cause in a second: ten, of all together. Tells of those left out.
[[nodiscard]] bool may_warn_of_others();

// Warns of what clients, peers or the owners of queues can cause again and again.
template <typename... Args>
void warn_of_others(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarn) && may_warn_of_others())
    write(Level::kWarn, format, fmt::make_format_args(args...));
}

}  // namespace gdx::log
