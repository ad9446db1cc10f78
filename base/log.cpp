#include "base/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <mutex>
#include <string_view>

#include "base/clock.h"
#include "base/fork_mutex.h"

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

constexpr std::uint32_t kOthersLinesPerS = 10;

struct Threshold {
  std::string_view word;
  spdlog::level::level_enum level;
};
constexpr std::array<Threshold, 5> kThresholds{{{"debug", spdlog::level::debug},
                                                {"info", spdlog::level::info},
                                                {"warn", spdlog::level::warn},
                                                {"error", spdlog::level::err},
                                                {"off", spdlog::level::off}}};

// A pipe or terminal that nobody reads stops no thread: the first line that finds no room waits a little for
// a slow reader, the others not at all, and the next that is written tells of those that were lost.
class StderrSink final : public spdlog::sinks::base_sink<ForkMutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    if (lost_ != 0) {
      fmt::format_to(std::back_inserter(text),
                     "{}gdx[{}] warning: {} lines were lost, because nobody read stderr\n",
                     is_torn_ ? "\n" : "", ::getpid(), lost_);
    }
    formatter_->format(message, text);
    if (put({text.data(), text.size()})) {
      lost_ = 0;
      is_torn_ = false;
    } else {
      ++lost_;
    }
  }
  void flush_() override {}

 private:
  static constexpr int kPatienceMs = 100;

  [[nodiscard]] bool has_room() const {
    pollfd out{STDERR_FILENO, POLLOUT, 0};
    const int ready = ::poll(&out, 1, 0);
    if (ready != 0) return ready == 1 || errno == EINVAL;  // a limit on open files of 0 permits no poll
    return lost_ == 0 && ::poll(&out, 1, kPatienceMs) == 1;
  }
  // Returns false if there is no room. What fails for another reason fails for ever, and nobody can be told.
  bool put(std::string_view text) {
    const std::size_t whole = text.size();
    while (!text.empty()) {
      // Room for this much is what poll(2) tells of a pipe.
      const std::size_t bytes = std::min<std::size_t>(text.size(), PIPE_BUF);
      const bool room = has_room();
      const ssize_t written = room ? ::write(STDERR_FILENO, text.data(), bytes) : 0;
      if (!room || (written < 0 && errno == EAGAIN)) {
        is_torn_ = is_torn_ || text.size() != whole;
        return false;
      }
      if (written < 0 && errno != EINTR) return true;
      text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    }
    return true;
  }

  std::uint64_t lost_ = 0;
  bool is_torn_ = false;  // the last that was written is no whole line
};

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
    auto* made = new spdlog::logger("gdx", std::make_shared<StderrSink>());
    made->set_pattern("gdx[%P] %l: %v");
    choose_level(*made);
    return made;
  }();
  return *instance;
}

}  // namespace

bool enabled(Level level) { return logger().should_log(to_spdlog(level)); }

std::optional<std::uint64_t> LineRate::take(std::uint64_t now_ns) {
  constexpr std::uint64_t kSecondNs = 1'000'000'000;
  if (now_ns - second_ns_ >= kSecondNs) {
    second_ns_ = now_ns;
    lines_ = 0;
  }
  if (lines_ == per_s_) {
    ++left_out_;
    return std::nullopt;
  }
  ++lines_;
  return std::exchange(left_out_, 0);
}

bool may_warn_of_others() {
  static ForkMutex mutex;
  static LineRate rate(kOthersLinesPerS);
  const auto left_out = [] {
    const std::lock_guard lock(mutex);
    return rate.take(monotonic_ns());
  }();
  if (left_out && *left_out != 0) warn("{} lines about what others did were left out", *left_out);
  return left_out.has_value();
}

void write(Level level, std::string_view line) {
  logger().log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void write(Level level, fmt::string_view format, fmt::format_args args) noexcept {
  try {
    fmt::memory_buffer text;
    fmt::vformat_to(std::back_inserter(text), format, args);
    write(level, {text.data(), text.size()});
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace gdx::log
